"""A real HTTP server whose replies go wrong by script: what a model source does on a bad day.

`Replies` decides what a path holds; `Fault`s say what happens to the next requests for it.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from patience import PATIENCE_SECONDS

PIECE = 4096  # how bodies are written when they are held up or cut


@dataclass(frozen=True)
class Reply:
    """What a path holds."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    ranged: bool = True
    chunked: bool = False  # without a length


@dataclass
class Fault:
    """What happens to requests whose path contains `path`, `times` times."""

    path: str
    status: int | None = None  # this status instead
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None  # the connection ends after so many bytes of the body
    gate: threading.Event | None = None  # the body stands still until it is set, after its first `before_gate` bytes
    before_gate: int = 32 * 1024
    silent: float = 0.0  # seconds without an answer
    flip: int | None = None  # the bit of this byte of the reply's body is turned
    reset: bool = False  # the connection ends instead of an answer
    times: int = 1
    bodies_only: bool = True  # not for requests of one byte, which only ask


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    path: str  # with its query
    headers: dict[str, str]

    @property
    def range(self) -> tuple[int, int] | None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return (int(found[1]), int(found[2]) + 1) if found else None


Answer = Callable[[Asked], Reply]


class FaultyServer(ThreadingHTTPServer):
    """Serves `answer` on a free port of loopback."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answer, self.tls = answer, tls
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.server_address[1]}"

    def requests(self, part: str) -> list[Asked]:
        """The requests whose path contains `part`."""
        with self.lock:
            return [asked for asked in self.asked if part in asked.path]

    def take_fault(self, asked: Asked) -> Fault | None:
        with self.lock:
            self.asked.append(asked)
            probing = asked.range is not None and asked.range[1] - asked.range[0] == 1
            for fault in self.faults:
                if fault.path in asked.path and fault.times > 0 and not (probing and fault.bodies_only):
                    fault.times -= 1
                    return fault
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyServer
    timeout = PATIENCE_SECONDS

    def do_GET(self) -> None:
        self._respond(with_body=True)

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """The server keeps what was asked."""

    def _respond(self, with_body: bool) -> None:
        asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()})
        fault = self.server.take_fault(asked) or Fault("")
        if fault.silent:
            time.sleep(fault.silent)
        if fault.reset or fault.silent:
            self.close_connection = True
            return
        reply = Reply(status=fault.status, headers=fault.headers) if fault.status else self.server.answer(asked)
        body, status, headers = _ranged(reply, asked)
        if fault.flip is not None and fault.flip < len(body):
            body = body[: fault.flip] + bytes([body[fault.flip] ^ 1]) + body[fault.flip + 1 :]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if reply.chunked:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self._write(body, fault)

    def _write(self, body: bytes, fault: Fault) -> None:
        end = len(body) if fault.cut_after is None else fault.cut_after
        for start in range(0, min(end, len(body)), PIECE):
            if fault.gate is not None and start >= fault.before_gate:
                fault.gate.wait(PATIENCE_SECONDS)
            self.wfile.write(body[start : min(end, start + PIECE)])
        if end < len(body):
            self.close_connection = True


def _ranged(reply: Reply, asked: Asked) -> tuple[bytes, int, dict[str, str]]:
    """The part that was asked for, by RFC 9110: whole when If-Range or If-Match say so."""
    etag, headers = reply.headers.get("ETag"), dict(reply.headers)
    if_match, if_range = asked.headers.get("if-match"), asked.headers.get("if-range")
    if reply.status != 200:
        return reply.body, reply.status, headers
    if if_match is not None and if_match.strip('"') != (etag or "").strip('"'):
        return b"", 412, headers
    wanted = asked.range if reply.ranged and not reply.chunked else None
    if wanted is None or (if_range is not None and if_range != etag):
        return reply.body, 200, headers
    start, end = wanted
    if start >= len(reply.body):
        return b"", 416, headers | {"Content-Range": f"bytes */{len(reply.body)}"}
    part = reply.body[start:end]
    return part, 206, headers | {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(reply.body)}"}


@contextmanager
def running(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[FaultyServer]:
    """A server while the block runs."""
    server = FaultyServer(answer, tls)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
