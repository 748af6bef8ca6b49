"""Messages between rank 0 and one worker, over a pair of sockets that nobody else can reach: JSON, and steps as bytes.

A worker runs no code that comes over the wire: there is no pickle here.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any, NamedTuple

HEADER = struct.Struct("<BI")  # kind, bytes of the body
SHOW_STACKS = signal.SIGUSR1  # to a worker that does not listen: it shows in the log where all its threads are
MAX_BYTES = 1 << 30  # far above any step; a length beyond it is no message of ours


class Kind(IntEnum):
    """What a message's body is."""

    WORDS = 1  # a JSON object
    STEP = 2  # `wire.encode`'s bytes


KINDS = frozenset(Kind)


class Message(NamedTuple):
    """One message."""

    kind: Kind
    body: bytes

    @property
    def words(self) -> dict[str, Any]:
        """The body of WORDS."""
        found: dict[str, Any] = json.loads(self.body)
        return found


class Channel:
    """One end. Sending and receiving may be done by two threads, each by one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self.descriptor = end.fileno()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Our end, and the other one to give away."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def say(self, words: Mapping[str, Any]) -> None:
        """Send a JSON object; raises OSError when nobody is there any more."""
        self.send(Kind.WORDS, json.dumps(words).encode())

    def send(self, kind: Kind, body: bytes) -> None:
        """Send a message; raises OSError when nobody is there any more."""
        self._socket.sendall(HEADER.pack(kind, len(body)) + body)

    def receive(self) -> Message | None:
        """The next message; None when the other end is closed, or what comes is no message of ours."""
        head = self._read(HEADER.size)
        if head is None:
            return None
        kind, length = HEADER.unpack(head)
        if kind not in KINDS or length > MAX_BYTES:
            return None
        body = self._read(length)
        if body is None or (kind == Kind.WORDS and not _is_object(body)):
            return None
        return Message(Kind(kind), body)

    def _read(self, count: int) -> bytes | None:
        read = bytearray(count)
        view, at = memoryview(read), 0
        while at < count:
            try:
                came = self._socket.recv_into(view[at:])
            except ConnectionError:
                return None
            if not came:
                return None
            at += came
        return bytes(read)

    def end(self) -> None:
        """Say that nothing more will come; what the other end still has to say can be received."""
        with suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def _is_object(body: bytes) -> bool:
    """Words are few: reading them a second time costs nothing that counts."""
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False
