"""Sockets and the uvicorn servers behind them, one for each port. Signals are not theirs: `serve` decides what ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.server.certificates import Certificates
from octavo_engine.server.connections import RecyclingProtocol
from octavo_engine.server.deadlines import DEFAULTS, Deadlines, PunctualProtocol

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


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    """Where a bound socket is reached."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Listener(uvicorn.Server):
    """A uvicorn server that leaves the process's signals alone."""

    _serving: asyncio.Task[None]
    _watching: asyncio.Task[None] | None = None

    def __init__(self, config: uvicorn.Config, deadlines: Deadlines, certificates: Certificates | None = None) -> None:
        """With `certificates` it speaks TLS and nothing else."""
        super().__init__(config)
        self._deadlines = deadlines
        self._certificates = certificates

    async def start(self, bound: socket.socket, *, on_end: Callable[[], object]) -> None:
        """Listen, in a task; returns once connections are accepted. `on_end` is called when the task ends."""
        self._serving = asyncio.create_task(self.serve(sockets=[bound]))
        self._serving.add_done_callback(lambda _: on_end())
        while not self.started and not self._serving.done():
            await asyncio.sleep(0.005)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections. uvicorn's own way knows no deadline for handshakes, which are the first of a head."""
        if self._certificates is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        made: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        state = self.lifespan.state
        loop, context = asyncio.get_running_loop(), self._certificates.context
        self.servers = [
            await loop.create_server(
                partial(made, config=self.config, server_state=self.server_state, app_state=state),
                sock=bound,
                ssl=context,
                backlog=self.config.backlog,
                ssl_handshake_timeout=self._deadlines.head,
                ssl_shutdown_timeout=self._deadlines.write,
            )
            for bound in sockets or ()
        ]
        self._watching = loop.create_task(self._certificates.watch())
        self.started = True

    def retire(self) -> None:
        """End every kept connection as soon as it is idle, so that its client opens the next one elsewhere."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, RecyclingProtocol):
                connection.retire()

    async def stop(self) -> None:
        """Close the port and let replies that are being sent end; raises what went wrong while serving."""
        if self._watching is not None:
            self._watching.cancel()
        self.should_exit = True
        await self._serving

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def api_listener(app: ASGIApp, deadlines: Deadlines = DEFAULTS, certificates: Certificates | None = None) -> Listener:
    """The server of the API port."""
    return _listener(app, RecyclingProtocol, deadlines, certificates)


def start_management(app: ASGIApp, bound: socket.socket) -> Listener:
    """Serve `app` in a thread and a loop of its own, so that probes answer while the API is busy or not there yet."""
    # From here on a probe waits in the socket's queue; it is not refused because the thread has only just started.
    bound.listen()
    listener = _listener(app, PunctualProtocol, DEFAULTS)
    threading.Thread(target=listener.run, args=([bound],), name="octavo-management", daemon=True).start()
    return listener


def _listener(
    app: ASGIApp, protocol: type[PunctualProtocol], deadlines: Deadlines, certificates: Certificates | None = None
) -> Listener:
    config = uvicorn.Config(
        app,
        http=partial(protocol, deadlines=deadlines),  # type: ignore[arg-type]  # uvicorn only calls it
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )
    return Listener(config, deadlines, certificates)
