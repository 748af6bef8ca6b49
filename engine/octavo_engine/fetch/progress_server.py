"""The management port of a fetch: `/progress` and `/livez`, from a thread of the standard library's server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.fetch.progress import Progress

IDLE_SECONDS = 10


@contextmanager
def serving(progress: Progress, host: str, port: int) -> Iterator[int]:
    """Answer on `host:port` while the block runs; yields the port. Raises InvalidConfiguration when it is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_SECONDS

        def do_GET(self) -> None:
            answers = {
                "/progress": (json.dumps(progress.document()), "application/json"),
                "/livez": ("ok", "text/plain"),
            }
            text, kind = answers.get(self.path, ("not found", "text/plain"))
            self.send_response(200 if self.path in answers else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Probes are no news."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise InvalidConfiguration(f"--management-port: cannot listen on {host}:{port}: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, name="octavo-management", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
