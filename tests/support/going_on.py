"""Clients that do the same again and again, each in a thread, until the body ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from patience import PATIENCE_SECONDS


@contextmanager
def going_on(number: int, turn: Callable[[int, int], object], pause: float = 0.0) -> Iterator[None]:
    """`turn(client, count)` is what one of them does, `pause` seconds apart. An HTTP error in any fails the test."""
    over, failures = threading.Event(), list[httpx.HTTPError]()

    def go_on(client: int) -> None:
        count = 0
        try:
            while not over.is_set():
                turn(client, count)
                count += 1
                over.wait(pause)
        except httpx.HTTPError as error:
            failures.append(error)

    threads = [threading.Thread(target=go_on, args=(client,)) for client in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert not failures
