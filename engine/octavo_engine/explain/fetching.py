"""One question to a server's management port, with a limit of time and words for what goes wrong."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

from octavo_engine.errors import InvalidConfiguration, OctavoError

DEFAULT_URL = "http://127.0.0.1:8001"
SECONDS = 10.0
MAX_BYTES = 16 * 1024 * 1024


class NoAnswer(OctavoError):
    """The server cannot be reached, or answered something else; the message says what to check."""


class NotKnown(OctavoError):
    """It answered that it does not know what was asked for."""


class ManagementPort:
    """The management port at `url`, such as http://127.0.0.1:8001."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfiguration(f"--url is {url!r}; it must be like http://127.0.0.1:8001")
        self._parts = parts
        self.url = f"{parts.scheme}://{parts.netloc}"

    def json(self, *path: str, query: str = "") -> dict[str, Any]:
        """The JSON object at a path, given in pieces that may hold anything."""
        try:
            document = json.loads(self.text(*path, query=query))
        except ValueError as error:
            raise self._no_answer("its answer is no JSON") from error
        if not isinstance(document, dict):
            raise self._no_answer("its answer is no JSON object")
        return document

    def text(self, *path: str, query: str = "") -> str:
        """The body at a path. Raises NoAnswer or NotKnown."""
        target = "/" + "/".join(quote(piece, safe="") for piece in path) + query
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        assert self._parts.hostname is not None
        connection = kind(self._parts.hostname, self._parts.port, timeout=SECONDS)
        try:
            connection.request("GET", target, headers={"Accept-Encoding": "identity"})
            reply = connection.getresponse()
            body = reply.read(MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if reply.status == 404 and _is_answer(body):
            raise NotKnown(f"{self.url} does not know {'/'.join(path)}")
        if reply.status != 200:
            raise self._no_answer(f"it answered {reply.status}")
        return body.decode("utf-8", "replace")

    def _no_answer(self, why: str) -> NoAnswer:
        return NoAnswer(f"{self.url} is not the management port of an Octavo server that runs: {why}; see --url")


def _is_answer(body: bytes) -> bool:
    """Whether a 404 says that there is no such thing, not that there is no such route."""
    try:
        document = json.loads(body)
    except ValueError:
        return False
    return isinstance(document, dict) and isinstance(document.get("error"), str)
