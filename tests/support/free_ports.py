"""Ports for servers that must be told theirs before they start, and that nobody else takes meanwhile.

A port that the kernel gives is free at that moment; until a slow start is over, any connection of anybody may have been
given it. So these lie below the range that connections are given theirs from, and each process has some of its own.
"""

from __future__ import annotations

import itertools
import os
import socket

_FIRST, _EACH, _SHARES = 12_000, 100, 150
"""Up to 27,000: Kubernetes' own ports begin at 10,000 and 30,000, and connections' at 32,768."""

_taken = itertools.count()


def free_port(host: str = "127.0.0.1") -> int:
    """One that nobody listens on, and that this process has not given before, until it has given a hundred."""
    first = _FIRST + os.getpid() % _SHARES * _EACH
    for number in itertools.islice(_taken, _EACH):
        port = first + number % _EACH
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is over does not count
            try:
                probe.bind((host, port))
            except OSError:
                continue
        return port
    raise AssertionError(f"none of the ports from {first} on is free")
