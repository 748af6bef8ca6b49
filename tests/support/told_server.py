"""A server that answers as a test tells it, byte for byte: for clients, whose server may do anything.

`OpenAI` is one that behaves: it counts words as tokens, and answers with as many as it is asked for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from patience import PATIENCE_SECONDS

HOLD_SECONDS = PATIENCE_SECONDS
Json = dict[str, Any]
Piece = bytes | threading.Event | None  # to write; to wait for; to hang up
Told = Callable[[str, Json], Sequence[Piece]]


def reply(status: int, body: bytes | Json, *headers: str) -> bytes:
    """A whole reply with its length."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (f"HTTP/1.1 {status} word", f"Content-Length: {len(raw)}", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: Json | str) -> bytes:
    """One server-sent event."""
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()


def said(text: str) -> Json:
    """A chunk of a chat's answer."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def usage(prompt: int, output: int, cached: int = 0) -> Json:
    """The last chunk, with the server's account."""
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [], "usage": counts}


def stream(*events: Json | str) -> bytes:
    """A whole streamed reply."""
    return HEAD + b"".join(chunk(event(each)) for each in events) + END


@dataclass
class ToldServer:
    """Where it is, and what came: (path, body) of each request, with which key, and as whom."""

    url: str
    asked: list[tuple[str, Json]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    agents: list[str | None] = field(default_factory=list)
    connections: int = 0


@contextmanager
def told_server(told: Told) -> Iterator[ToldServer]:
    """A server on loopback; `told` is called in its threads."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            server.connections += 1

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else {}
            server.asked.append((self.path, body))
            server.keys.append(self.headers.get("Authorization"))
            server.agents.append(self.headers.get("User-Agent"))
            for piece in told(self.path, body):
                if piece is None:
                    self.close_connection = True
                    return
                if isinstance(piece, threading.Event):
                    piece.wait(HOLD_SECONDS)
                    continue
                self.wfile.write(piece)

        do_GET = do_POST = _answer  # noqa: N815 (the base class's names)

        def handle(self) -> None:
            with suppress(ConnectionError):  # the client has gone, as some tests have it
                super().handle()

        def log_message(self, *_: object) -> None: ...

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    server = ToldServer(f"http://127.0.0.1:{httpd.server_address[1]}")
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join(HOLD_SECONDS)


class OpenAI:
    """Answers as a server of the API does. A chat's template adds three tokens to each message and two at the end; a
    plain prompt gets one special token."""

    METRICS = (
        '# HELP octavo_requests_running x\nother{} 1\noctavo_requests_running{model_name="m"} 3\n'
        'octavo_requests_waiting{model_name="m",reason="kv_full"} 2\noctavo_requests_waiting{reason="new"} 1\n'
        'octavo_kv_cache_usage_ratio{model_name="m"} 0.25\nvllm:num_requests_running 3\n'
        'octavo_preemptions_total{reason="kv_full"} 7\n'
    )

    def __call__(self, path: str, body: Json) -> Sequence[Piece]:
        if path == "/v1/models":
            return [reply(200, {"data": [{"id": "told"}]})]
        if path == "/metrics":
            return [reply(200, self.METRICS.encode())]
        if path == "/tokenize":
            return [reply(200, {"count": self.count(body)})]
        return [self.answer(path, body)]

    def count(self, body: Json) -> int:
        if "messages" in body:
            return 2 + sum(3 + len(message["content"].split()) for message in body["messages"])
        return len(body["prompt"].split()) + bool(body.get("add_special_tokens", True))

    def answer(self, path: str, body: Json) -> bytes:
        tokens = body["max_tokens"]
        if path.endswith("chat/completions"):
            words = [said(f"w{number} ") for number in range(tokens)]
        else:
            words = [{"choices": [{"index": 0, "text": f"w{number} "}]} for number in range(tokens)]
        return stream(*words, usage(self.count(body), tokens), "[DONE]")
