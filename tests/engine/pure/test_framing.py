"""Lines end with CR LF and nothing else: any other end is refused as soon as it shows, and its connection closed."""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import h11
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from authority import Authority
from octavo_engine.server.certificates import CertificateFiles, Certificates
from octavo_engine.server.framing import MAX_HEAD_BYTES, FrugalConnection
from octavo_engine.server.listeners import Listener, api_listener, bind
from patience import PATIENCE_SECONDS

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
NEXT = b"GET /next HTTP/1.1\r\n"

# -- one connection, without a socket ----------------------------------------------------------------------------------


def events(connection: h11.Connection, parts: Iterable[bytes]) -> list[tuple[object, ...]]:
    """What a connection makes of what comes; the parts of a body are one. Raises RemoteProtocolError."""
    found: list[tuple[object, ...]] = []
    body = b""
    for part in parts:
        connection.receive_data(part)
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Request):
                found.append((event.method, event.target, list(event.headers)))
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                found.append((body, list(event.headers)))
    return found


def strict() -> FrugalConnection:
    return FrugalConnection(h11.SERVER, MAX_HEAD_BYTES)


def cut(whole: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % len(whole) for place in places} - {0})
    return [whole[start:end] for start, end in zip([0, *ends], [*ends, len(whole)], strict=True)]


headers = st.lists(st.from_regex(rb"X-[a-z]{1,3}: [a-z \t]{0,9}", fullmatch=True), max_size=4)
chunks = st.lists(st.sampled_from([b"x", b"\n", b"\r", b"\r\n\r\n", b"0\r\n\r\n", b"\n\n", b"y" * 300]), max_size=4)
places = st.lists(st.integers(0, 10_000), max_size=12)


@st.composite
def messages(draw: st.DrawFn) -> list[bytes]:
    """A chunked request in parts that each have to be followed by CR LF."""
    lines = [b"POST /a HTTP/1.1", b"Host: x", b"Transfer-Encoding: chunked", *draw(headers), b""]
    for chunk in draw(chunks):
        extension = draw(st.sampled_from([b"", b"", b";a=b", b' ; a="b c"']))
        lines += [b"%x" % len(chunk) + extension.lstrip(), chunk]
    return [*lines, b"0", *draw(headers), b""]


@given(messages(), places)
def test_what_is_http_is_read_as_h11_reads_it_however_it_is_cut(lines: list[bytes], at: list[int]):
    whole = b"\r\n".join(lines) + b"\r\n"
    expected = events(h11.Connection(h11.SERVER), [whole])
    assert len(expected) == 2, "a head and an end"
    assert events(strict(), cut(whole, at)) == expected
    assert events(strict(), (whole[place : place + 1] for place in range(len(whole)))) == expected


@given(
    messages(), places, st.integers(0, 1000), st.sampled_from([b"\n", b"\r", b"\n\r", b"\r\r\n", b"\n\n", b"\r\n\n"])
)
def test_one_wrong_end_of_a_line_and_it_is_refused_however_it_is_cut(
    lines: list[bytes], at: list[int], which: int, end: bytes
):
    ends = [b"\r\n"] * len(lines)
    place = which % len(ends)
    assume(place < len(ends) - 1 or not end.startswith(b"\r\n"))  # what follows the last end is the next message's
    ends[place] = end
    whole = b"".join(map(bytes.__add__, lines, ends)) + NEXT
    with pytest.raises(h11.RemoteProtocolError):
        events_of_a_whole_message(cut(whole, at))


@pytest.mark.parametrize("fold", [b"\r\n ", b"\r\n\t", b"\r\n  "])
@pytest.mark.parametrize("where", [b"GET / HTTP/1.1\r\nHost: x\r\nX: a%bb\r\n\r\n", POST + b"0\r\nX: a%bb\r\n\r\n"])
def test_no_header_is_folded(where: bytes, fold: bytes):
    with pytest.raises(h11.RemoteProtocolError, match="folds"):
        events(strict(), [where.replace(b"%b", fold)])


def events_of_a_whole_message(parts: list[bytes]) -> None:
    """Raises RemoteProtocolError; fails where the message came to its end, or waits for more."""
    found = events(strict(), parts)
    pytest.fail(f"it was taken: {found}" if len(found) == 2 else f"it is waited for: {found}")


# -- the server, on sockets --------------------------------------------------------------------------------------------

WRONG = {
    "LF alone": (b"GET / HTTP/1.1\n", b"Host: x\n\n"),
    "LF after the request line only": (b"GET / HTTP/1.1\n", b"Host: x\r\n\r\n"),
    "LF after a header": (GET + b"X: a\n", b"Y: b\r\n\r\n"),
    "LF in the place of the empty line": (GET + b"\n", b""),
    "LF before the request line": (b"\n", GET + b"\r\n"),
    "CR in the request line": (b"GET /\r H", b"TTP/1.1\r\nHost: x\r\n\r\n"),
    "CR in a header": (GET + b"X: a\rb", b"\r\n\r\n"),
    "CR in the place of the empty line": (GET + b"\rX", b"\r\n\r\n"),
    "CR before CR LF": (GET + b"X: a\r\r", b"\n\r\n"),
    "LF after a chunk's size": (POST + b"4\n", b"body\r\n0\r\n\r\n"),
    "CR after a chunk's size": (POST + b"4\rbody\r\n", b"0\r\n\r\n"),
    "CR in what follows a chunk's size": (POST + b"4;a\rb\r\n", b"body\r\n0\r\n\r\n"),
    "LF after a chunk": (POST + b"4\r\nbody\n", b"0\r\n\r\n"),
    "LF after the last chunk": (POST + b"4\r\nbody\r\n0\n", b"\r\n"),
    "LF after a trailer": (POST + b"0\r\nX: a\n", b"\r\n"),
    "LF in the place of the last line": (POST + b"0\r\n\n", b""),
}
"""Up to the byte that gives it away, and what would come then."""


@dataclass
class Served:
    """A server, and which requests its application got whole."""

    port: int
    tls: ssl.SSLContext | None
    whole: list[str] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)


@asynccontextmanager
async def serving(folder: Path | None) -> AsyncIterator[Served]:
    """With TLS where there is a `folder` of certificates."""
    pair = None if folder is None else CertificateFiles(certificate=f"{folder}/tls.crt", key=f"{folder}/tls.key")
    bound = bind("--port", "127.0.0.1", 0)
    served = Served(bound.getsockname()[1], None if folder is None else Authority(folder.parent).client())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            pass
        if message["type"] == "http.disconnect":
            return
        served.whole.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"well"})

    listener: Listener = api_listener(app, certificates=None if pair is None else Certificates(pair))
    await listener.start(bound, on_end=lambda: None)
    try:
        yield served
    finally:
        await listener.stop()


@pytest.fixture(scope="module", params=["plain", "TLS"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    if request.param == "plain":
        return None
    ours = Authority.make(tmp_path_factory.mktemp("authority"))
    return ours.issue(ours.folder / "server", "server")


def is_refused_and_closed(reply: bytes) -> bool:
    head, _, body = reply.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 400 ") and b"connection: close" in head.lower() and b'"invalid_http"' in body


@pytest.mark.parametrize("before", [0, 2], ids=["first", "third"])
async def test_a_wrong_end_is_refused_at_once_and_the_connection_closed(folder: Path | None, before: int):
    """Pipelined behind good requests, all in one packet; and again when it comes byte by byte on a kept connection."""
    async with serving(folder) as served, asyncio.timeout(PATIENCE_SECONDS):
        good = GET + b"\r\n"
        for name, (shown, rest) in WRONG.items():
            served.whole.clear()
            for pieces in ([good * before + shown + rest], [good] * before + [bytes([byte]) for byte in shown]):
                reader, writer = await served.connect()
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)
                replies = (await reader.read(-1)).split(b"well")
                writer.close()
                assert len(replies) == before + 1, name
                assert is_refused_and_closed(replies[-1]), (name, replies[-1])
            assert served.whole == ["/"] * (2 * before), name


async def test_a_body_may_hold_any_byte_and_the_next_request_is_read(folder: Path | None):
    body = b"\n\n\r\r\n\r\n\n"
    measured = b"POST /measured HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    chunked = POST.replace(b"/ ", b"/chunked ") + b"%x;a=b\r\n%b\r\n0\r\nX: a\r\n\r\n" % (len(body), body)
    async with serving(folder) as served, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await served.connect()
        writer.write((measured + chunked) * 2 + GET + b"Connection: close\r\n\r\n")
        assert (await reader.read(-1)).count(b"well") == 5
        writer.close()
    assert served.whole == ["/measured", "/chunked"] * 2 + ["/"]


MIB = 1 << 20
CROWD, HEADER = 32, 16 * MIB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_heads_without_an_end_are_not_kept():
    """Half a gigabyte in all, 16 MiB each, at once: the server holds some KiB of each, and not for long."""
    piece = b"a" * 65_536

    async def send(served: Served) -> int:
        reader, writer = await served.connect()
        sent = 0
        with suppress(ConnectionError):
            writer.write(GET + b"X: ")
            while sent < HEADER:
                writer.write(piece)
                sent += len(piece)
                await writer.drain()
            await reader.read(-1)
        writer.transport.abort()
        return sent

    async with serving(None) as served, asyncio.timeout(PATIENCE_SECONDS):
        before = resident_bytes()
        sent = await asyncio.gather(*(send(served) for _ in range(CROWD)))
        assert resident_bytes() - before < 32 * MIB
    assert max(sent) < HEADER, "it was cut off on the way"
    assert not served.whole
