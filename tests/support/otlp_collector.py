"""A collector of traces on loopback: takes OTLP over HTTP, and reads what comes with the protocol's own messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from patience import PATIENCE_SECONDS

DEADLINE_SECONDS = PATIENCE_SECONDS


@dataclass(frozen=True)
class Received:
    """One span, with ids in hexadecimal digits and times in Unix nanoseconds."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    began: int
    ended: int
    failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """What has come. While `gate` is closed it takes requests and does not answer."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    gate: threading.Event = field(default_factory=threading.Event)

    def until(self, count: int) -> list[Received]:
        """The spans, once there are so many."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(self.spans) < count:
            assert time.monotonic() < deadline, self.spans
            time.sleep(0.01)
        return list(self.spans)

    def take(self, body: bytes) -> None:
        """Read one request."""
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            resource = _values(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [_received(span, resource) for span in scope.spans]


def _received(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        failed=span.status.code == span.status.STATUS_CODE_ERROR,
        attributes=_values(span.attributes),
        resource=resource,
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collector() -> Iterator[Collector]:
    """One that listens."""
    made = Collector()
    made.gate.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.headers.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            made.gate.wait(DEADLINE_SECONDS)
            if made.status == 200:
                made.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(made.status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.gate.set()
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE_SECONDS)
