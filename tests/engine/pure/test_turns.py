"""What the step thread waited for, by the kernel's own account of it."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from pathlib import Path

import pytest

from octavo_engine import turns
from octavo_engine.turns import Awaited, Look, Turns
from patience import PATIENCE_SECONDS

QUEUED, HELD = Awaited.PROCESSOR, Awaited.INTERPRETER


class Told(Turns):
    """One that is told what the kernel would say at each look."""

    def __init__(self, *looks: tuple[float, float, float]) -> None:
        super().__init__()
        first, *self._looks = [Look(*look) for look in looks]
        self._mark = first

    def _look(self) -> Look:
        return self._looks.pop(0)


def test_what_is_neither_work_nor_the_queue_is_the_interpreters() -> None:
    told = Told((0.0, 0.0, 0.0), (10.0, 4.0, 1.0), (20.0, 4.0, 1.0), (21.0, 5.0, 1.0), (31.0, 6.0, 4.0))
    with told.away():
        pass
    assert told.waited == {QUEUED: 1.0, HELD: 5.0}
    with told.together():
        pass
    assert told.waited == {QUEUED: 4.0, HELD: 5.0}, "ten seconds of rest are nothing, of common work the queue is"


def test_clocks_that_are_read_one_after_the_other_never_make_less_than_nothing() -> None:
    told = Told((0.0, 0.0, 0.0), (1.0, 1.01, 0.0), (1.0, 1.01, 0.0))
    with told.away():
        pass
    assert told.waited[HELD] == 0.0


def test_nothing_is_told_where_the_kernel_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tmp_path / "schedstat"
    silent.write_text("0 0 0\n", encoding="ascii")
    for place in (silent, tmp_path / "missing"):
        monkeypatch.setattr(turns, "COUNTED", str(place))
        found = Turns()
        with found.of_this_thread(), found.away(), found.together():
            time.sleep(0)
        assert found.waited == {QUEUED: 0.0, HELD: 0.0}


def test_a_thread_that_another_keeps_from_the_interpreter_is_told_so() -> None:
    """Sorting keeps it for all of its time: who has given it up to compute and wants it back is blocked, not queued."""
    found, over = Turns(), threading.Event()
    if not Path(turns.COUNTED).exists():
        pytest.skip("this kernel does not count the turns of a thread")

    def steps() -> None:
        with found.of_this_thread():
            while not over.is_set():
                with found.away():
                    over.wait(0.001)
                hashlib.sha256(block)  # some milliseconds without the interpreter, as a kernel

    block = bytes(1 << 22)
    thread = threading.Thread(target=steps)
    thread.start()
    numbers, deadline = [random.random() for _ in range(200_000)], time.monotonic() + PATIENCE_SECONDS
    while found.waited[HELD] <= 0.05 and time.monotonic() < deadline:
        sorted(numbers)
    over.set()
    thread.join()
    assert found.waited[HELD] > 0.05
