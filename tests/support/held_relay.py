"""A relay before a server that passes on so much of what it sends and no more: who reads stays in the middle of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PIECE = 1 << 16


class HeldRelay:
    """Listens on a port of 127.0.0.1 and speaks to `port` there.

    Args:
        after: bytes that are passed on from the server, all connections together.
    """

    def __init__(self, port: int, after: int) -> None:
        self._port, self._left = port, after
        self._turn, self._over = threading.Lock(), threading.Event()
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.held = threading.Event()
        """So much has been passed on, and nothing more is."""

    def run(self) -> None:
        """Takes connections until `close`."""
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open += [client, server]
                threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def close(self) -> None:
        """Breaks everything."""
        self._over.set()
        for end in (self._listening, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _pass_on(self, source: socket.socket, sink: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if counts and not self._has_room(len(piece)):
                    self._over.wait()
                    return
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)

    def _has_room(self, size: int) -> bool:
        with self._turn:
            if size > self._left:
                self.held.set()
                return False
            self._left -= size
            return True


@contextmanager
def held_relay(port: int, after: int) -> Iterator[HeldRelay]:
    """One that ends with the body."""
    relay = HeldRelay(port, after)
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.close()
        thread.join()
