"""Sockets and the uvicorn servers behind them, one for each port. Signals are not theirs: `serve` decides what ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.server.connections import RecyclingProtocol

MAX_HEAD_BYTES = 32 * 1024
# A kept connection without a request: longer than clients and balancers keep theirs (5 s for OpenAI's client, 60 s for
# most proxies), so that it is they who close, who know that no request is on its way.
IDLE_SECONDS = 75
FLUSH_SECONDS = 3  # for replies that are written but not yet read when the server stops


def bind(flag: str, host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, so that a taken port is known before minutes of loading.

    Raises InvalidConfiguration naming `flag`.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise InvalidConfiguration(f"{flag}: cannot listen on {host}:{port}: {error.strerror}") from error
    return bound


def url_of(bound: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Listener(uvicorn.Server):
    """A uvicorn server that leaves the process's signals alone."""

    _serving: asyncio.Task[None]

    async def start(self, bound: socket.socket, *, on_end: Callable[[], object]) -> None:
        """Listen, in a task; returns once connections are accepted. `on_end` is called when the task ends."""
        self._serving = asyncio.create_task(self.serve(sockets=[bound]))
        self._serving.add_done_callback(lambda _: on_end())
        while not self.started and not self._serving.done():
            await asyncio.sleep(0.005)

    def retire(self) -> None:
        """End every kept connection as soon as it is idle, so that its client opens the next one elsewhere."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, RecyclingProtocol):
                connection.retire()

    async def stop(self) -> None:
        """Close the port and let replies that are being sent end; raises what went wrong while serving."""
        self.should_exit = True
        await self._serving

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def api_listener(app: ASGIApp) -> Listener:
    """The server of the API port."""
    return _listener(app, RecyclingProtocol)


def start_management(app: ASGIApp, bound: socket.socket) -> Listener:
    """Serve `app` in a thread and a loop of its own, so that probes answer while the API is busy or not there yet."""
    # From here on a probe waits in the socket's queue; it is not refused because the thread has only just started.
    bound.listen()
    listener = _listener(app, "h11")
    threading.Thread(target=listener.run, args=([bound],), name="octavo-management", daemon=True).start()
    return listener


def _listener(app: ASGIApp, http: type | str) -> Listener:
    config = uvicorn.Config(
        app,
        http=http,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )
    return Listener(config)
