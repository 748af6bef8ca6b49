"""Answers as the kernel saw them: every packet of one port on loopback, with the time at which it arrived.

A third clock beside two clients': it neither waits for an event loop nor parses anything. Linux only, and it needs the
right to open packet sockets (root, or CAP_NET_RAW).
"""

from __future__ import annotations

import ctypes
import re
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Self

ETH_P_IP = 0x0800  # what is received: each packet once, though loopback both sends and receives it
SO_TIMESTAMPNS, SO_RCVBUFFORCE, SO_ATTACH_FILTER = 35, 33, 26  # asm-generic/socket.h; Python names none of them
KEPT_BYTES = 4_096  # of a packet: the heads, and the first event
BUFFER_BYTES = 64 << 20
PATIENCE_SECONDS = 0.2
ASKED, TOLD = b"POST /v1/completions ", b"data:"
AGENT = re.compile(rb"\r\nuser-agent: ([^\r]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Packet:
    """One TCP segment with data."""

    at: float  # Unix seconds
    source: int  # ports
    target: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request for a completion and its stream, by the kernel's clock: Unix seconds."""

    asked: float  # the request's first packet
    first: float  # the first packet with an event
    last: float  # the last one
    gaps: tuple[float, ...] = ()  # seconds between two such packets
    connected: bool = False  # it is the first one that its connection was asked
    agent: bytes = b""  # as whom the client asked


def exchanges(packets: Iterable[Packet], port: int) -> list[Exchange]:
    """All of them, in the order in which they were asked.

    A connection has one under way at a time. A request may come in several packets: the first one counts. On loopback
    nothing is lost, so nothing is sent twice. A port that is used again is taken for the same connection.
    """
    by_port: dict[int, list[_Asked]] = {}  # of the client
    for packet in packets:
        if packet.target == port and packet.data.startswith(ASKED):
            by_port.setdefault(packet.source, []).append(_Asked(packet))
        elif packet.source == port and packet.target in by_port and TOLD in packet.data:
            by_port[packet.target][-1].events.append(packet.at)
    found = [
        each.exchange(connected=number == 0)
        for asked in by_port.values()
        for number, each in enumerate(asked)
        if each.events
    ]
    return sorted(found, key=lambda it: it.asked)


class _Asked:
    """A request's first packet, and when events came."""

    def __init__(self, request: Packet) -> None:
        self._request = request
        self.events: list[float] = []

    def exchange(self, *, connected: bool) -> Exchange:
        events, agent = self.events, AGENT.search(self._request.data)
        gaps = tuple(after - before for before, after in pairwise(events))
        return Exchange(
            self._request.at, events[0], events[-1], gaps, connected, agent.group(1) if agent is not None else b""
        )


def parsed(packet: bytes, at: float) -> Packet | None:
    """An IPv4 packet; None where it is no TCP, or has no data."""
    head = (packet[0] & 0x0F) * 4
    if packet[9] != socket.IPPROTO_TCP:
        return None
    (length,) = struct.unpack_from("!H", packet, 2)
    source, target = struct.unpack_from("!HH", packet, head)
    data = packet[head + (packet[head + 12] >> 4) * 4 : length]
    return Packet(at, source, target, data) if data else None


def port_filter(port: int) -> bytes:
    """A classic BPF program: IPv4, TCP, and the port at either end. As `struct sock_filter`s."""
    load_byte, load_half, head_length = 0x30, 0x48, 0xB1  # A = byte; A = half word at X +; X = 4 * (byte & 15)
    jump_equal, give = 0x15, 0x06
    program = (
        (load_byte, 0, 0, 9),
        (jump_equal, 0, 6, socket.IPPROTO_TCP),
        (head_length, 0, 0, 0),
        (load_half, 0, 0, 0),
        (jump_equal, 2, 0, port),
        (load_half, 0, 0, 2),
        (jump_equal, 0, 1, port),
        (give, 0, 0, KEPT_BYTES),
        (give, 0, 0, 0),
    )
    return b"".join(struct.pack("=HBBI", *step) for step in program)


class Watcher:
    """Keeps what goes over the wire while the block lasts. Raises PermissionError where that is not allowed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._packets: list[Packet] = []
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        try:
            self._prepare()
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def exchanges(self) -> list[Exchange]:
        """All so far; to be called after the block."""
        return exchanges(self._packets, self._port)

    def _prepare(self) -> None:
        code = ctypes.create_string_buffer(port_filter(self._port))
        program = struct.pack("HP", len(code) // 8, ctypes.addressof(code))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._socket.bind(("lo", ETH_P_IP))
        self._socket.settimeout(PATIENCE_SECONDS)

    def _listen(self) -> None:
        """Until nothing comes any more after the end."""
        while True:
            try:
                packet, told, _, _ = self._socket.recvmsg(KEPT_BYTES, 64)
            except TimeoutError:
                if self._ended.is_set():
                    return
                continue
            if (found := parsed(packet, _seconds(told))) is not None:
                self._packets.append(found)


def _seconds(told: Iterable[tuple[int, int, bytes]]) -> float:
    """The kernel's time stamp."""
    for level, kind, data in told:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            whole, nanoseconds = struct.unpack("ll", data[:16])
            stamp: float = whole + nanoseconds * 1e-9
            return stamp
    raise OSError("the kernel gave a packet no time")
