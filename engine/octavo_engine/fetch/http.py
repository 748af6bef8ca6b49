"""HTTP as all sources but object stores use it: one client, ranges, and every failure as one of few kinds.

Messages never hold a URL, a header or a body: any of them may carry a token or a signature.
"""

from __future__ import annotations

import contextlib
import email.utils
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx2

from octavo_engine import __version__
from octavo_engine.errors import ModelAccessDenied, ModelNotFound, OctavoError
from octavo_engine.fetch.remote import Broken, Changed, Digest

CONNECT_SECONDS, READ_SECONDS = 5.0, 20.0
MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
AGENT = {"User-Agent": f"octavo/{__version__}", "Accept-Encoding": "identity"}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class Unauthorized(ModelAccessDenied):
    """HTTP 401 with the server's challenge, which a registry wants answered."""

    reason = ModelAccessDenied.__name__

    def __init__(self, message: str, challenge: str | None) -> None:
        super().__init__(message)
        self.challenge = challenge


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server tells about a file. `size` is in bytes; None when it does not say."""

    size: int | None
    etag: str | None  # a strong one: a weak one may stay when bytes change, and differ between a name's servers
    modified: str | None
    digest: Digest | None
    ranged: bool


class Http:
    """A client that knows the environment's proxies and authorities. Its token does not follow to another host.

    `remedy` is what a person can do when access is denied. `what` names a file in messages, `headers` are added.
    """

    def __init__(self, *, remedy: str, headers: Mapping[str, str] | None = None) -> None:
        self._remedy = remedy
        self._client = httpx2.Client(
            follow_redirects=True,
            headers={**AGENT, **(headers or {})},
            timeout=httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=64),
        )

    def close(self) -> None:
        """Let go of all connections."""
        self._client.close()

    def read_range(
        self,
        url: str,
        start: int,
        end: int,
        *,
        what: str,
        size: int | None = None,
        etag: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[bytes]:
        """The bytes `[start, end)` of a file of `size` bytes, also from a server that only sends whole files.

        Raises Changed when the server's `etag` or size is another, else what `failure` and `trouble` say.
        """
        asked = {"Range": f"bytes={start}-{end - 1}", **(headers or {})}
        asked |= {"If-Range": etag} if etag and is_strong(etag) else {}
        with self._get(url, asked, what) as response:
            if response.status_code == httpx2.codes.RANGE_NOT_SATISFIABLE:
                raise Changed
            self._check(response, what)
            begins = _begins(response, start, size, etag)
            yield from _cut(response.iter_raw(), begins, start, end)  # as they arrive: a cut loses none

    def read_document(
        self, url: str, *, what: str, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        """A whole small document, and its headers."""
        with self._get(url, headers, what) as response:
            self._check(response, what)
            content = bytearray()
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > MAX_DOCUMENT_BYTES:
                    raise ModelNotFound(f"{what} is larger than {MAX_DOCUMENT_BYTES} bytes: no such document")
            return bytes(content), response.headers

    def probe(self, url: str, *, what: str) -> Facts:
        """Size, ETag, hash, and whether ranges work, found by asking for one byte: signed URLs often refuse HEAD."""
        with self._get(url, {"Range": "bytes=0-0"}, what) as response:
            etag, modified = response.headers.get("ETag"), response.headers.get("Last-Modified")
            etag = etag if etag and is_strong(etag) else None
            if response.status_code == httpx2.codes.RANGE_NOT_SATISFIABLE:  # some say so of an empty file
                return Facts(0, etag, modified, None, ranged=True)
            self._check(response, what)
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            ranged = response.status_code == httpx2.codes.PARTIAL_CONTENT
            total = found[2] if ranged and found else response.headers.get("Content-Length", "*")
            size = int(total) if total.isdecimal() else None
            return Facts(size, etag, modified, stated_digest(response.headers), ranged)

    @contextlib.contextmanager
    def _get(self, url: str, headers: Mapping[str, str] | None, what: str) -> Iterator[httpx2.Response]:
        with translated(what), self._client.stream("GET", url, headers=headers) as response:
            yield response

    def _check(self, response: httpx2.Response, what: str) -> None:
        if not response.is_success:
            raise failure(response.status_code, what, remedy=self._remedy, headers=response.headers)


def _begins(response: httpx2.Response, start: int, size: int | None, etag: str | None) -> int:
    """The position of the reply's first byte; raises Changed for the reply about another file."""
    theirs = response.headers.get("ETag")
    if etag and theirs and theirs != etag:
        raise Changed
    if response.status_code != httpx2.codes.PARTIAL_CONTENT:
        length = response.headers.get("Content-Length")
        if size is not None and length is not None and int(length) != size:
            raise Changed
        return 0
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != start:
        raise Broken("the server answered with another range than was asked for")
    if size is not None and found[2] not in ("*", str(size)):
        raise Changed
    return start


def _cut(chunks: Iterator[bytes], position: int, start: int, end: int) -> Iterator[bytes]:
    """Of a stream that begins at `position`, the bytes `[start, end)`; raises Broken when it ends before."""
    for chunk in chunks:
        wanted = chunk[max(0, start - position) : max(0, end - position)]
        position += len(chunk)
        if wanted:
            yield wanted
        if position >= end:
            return
    raise Broken("the connection ended early")


def stated_digest(headers: httpx2.Headers) -> Digest | None:
    """The SHA-256 that artifact stores put into a header."""
    value = headers.get("X-Checksum-Sha256", "").lower()
    return Digest("sha256", value) if re.fullmatch(r"[0-9a-f]{64}", value) else None


def is_strong(etag: str) -> bool:
    """Strong tags alone may be used in If-Range."""
    return etag.startswith('"')


def failure(status: int, what: str, *, remedy: str, headers: Mapping[str, str] | None = None) -> OctavoError | Broken:
    """The error for an HTTP status: who is to do something about it."""
    if status == 401:
        return Unauthorized(f"{what}: access denied (HTTP 401); {remedy}", (headers or {}).get("WWW-Authenticate"))
    if status in (403, 407):
        return ModelAccessDenied(f"{what}: access denied (HTTP {status}); {remedy}")
    if status in (404, 410):
        return ModelNotFound(f"{what}: not found (HTTP {status})")
    if status in (408, 425, 429) or status >= 500:
        return Broken(f"the server answers HTTP {status}", retry_after=retry_after((headers or {}).get("Retry-After")))
    return ModelNotFound(f"{what}: the server answers HTTP {status}")


def retry_after(value: str | None) -> float | None:
    """Seconds to wait, from either form of the header (RFC 9110, section 10.2.3)."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value)
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what the client raises into Broken, in words of ours."""
    try:
        yield
    except httpx2.TooManyRedirects:
        raise ModelNotFound(f"{what}: the server redirects in a circle") from None
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
        raise ModelNotFound(f"{what}: the server leads to an address that is none") from None
    except httpx2.TransportError as error:
        raise Broken(trouble(error)) from None


def trouble(error: Exception) -> str:
    """What is wrong with the connection, in a few words."""
    text = f"{error} {error.__cause__} {error.__context__}".lower()
    if isinstance(error, httpx2.TimeoutException):
        return "the server does not answer in time"
    if "name or service" in text or "getaddrinfo" in text or "name resolution" in text or "no address" in text:
        return "its host name cannot be resolved"
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError) or "certificate" in text or "ssl" in text:
        return "its TLS certificate is not trusted, or it does not speak TLS"
    if "refused" in text:
        return "the connection is refused"
    if "unreachable" in text or "no route" in text:
        return "there is no route to it"
    return "the connection was cut"
