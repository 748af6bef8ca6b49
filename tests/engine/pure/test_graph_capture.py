"""Graphs are recorded one at a time, the largest first, at most a twentieth of a busy engine's time; what cannot be
recorded is said once, and the engine goes on."""

from __future__ import annotations

import logging

import pytest

from octavo_engine.errors import EngineDead
from octavo_engine.pulse import Phase, Pulse
from octavo_engine.runtime.graph_capture import PAUSES, GraphCapture


class Recorded:
    """Notes what was recorded, on a clock that each recording moves by two seconds."""

    def __init__(self, broken: int | None = None) -> None:
        self.now, self.broken = 100.0, broken
        self.sizes: list[int] = []
        self.beats: list[Phase] = []
        self.phases: dict[str, float] = {}
        self.pulse = Pulse()
        self.capture = GraphCapture(
            self.record, (1, 2, 4), pulse=self.pulse, on_phase=self.phases.__setitem__, clock=lambda: self.now
        )

    def record(self, size: int) -> None:
        self.beats.append(self.pulse.beat.phase)
        if size == self.broken:
            raise RuntimeError("out of memory\nand much more")
        self.sizes.append(size)
        self.now += 2.0


def test_the_largest_is_first_and_while_nobody_waits_there_is_no_pause() -> None:
    found = Recorded()
    assert [found.capture(True) for _ in range(3)] == [True, True, False]
    assert found.sizes == [4, 2, 1]
    assert found.phases == {"cuda_graphs": 6.0}


def test_while_requests_run_most_of_the_time_is_theirs() -> None:
    found = Recorded()
    assert found.capture(False)
    for _ in range(10):
        assert found.capture(False)
    assert found.sizes == [4]
    found.now += PAUSES * 2.0 - 0.1
    assert found.capture(False)
    assert found.sizes == [4]
    found.now += 0.2
    assert found.capture(False)
    assert found.sizes == [4, 2]
    assert not found.capture(True)  # nobody waits any more


def test_each_may_take_as_long_as_what_compiles_kernels() -> None:
    found = Recorded()
    while found.capture(True):
        pass
    assert found.beats == [Phase.WARM_UP] * 3
    assert found.pulse.beat.phase is Phase.IDLE


def test_what_cannot_be_recorded_is_said_in_one_line_and_ends_the_errand(caplog: pytest.LogCaptureFixture) -> None:
    found = Recorded(broken=2)
    with caplog.at_level(logging.WARNING):
        assert found.capture(True)
        assert not found.capture(True)
    (line,) = caplog.messages
    assert "of 2 sequences cannot be recorded (RuntimeError: out of memory)" in line
    assert "decodes, but those padded to 4, are launched kernel by kernel" in line
    assert "\n" not in line
    assert found.pulse.beat.phase is Phase.IDLE
    assert found.phases == {}


def test_the_loss_of_a_rank_is_no_reason_to_go_on() -> None:
    def lost(_size: int) -> None:
        raise EngineDead("rank 1 of 2 was killed")

    capture = GraphCapture(lost, (1, 2), pulse=Pulse(), on_phase=lambda *_: None)
    with pytest.raises(EngineDead, match="rank 1 of 2"):
        capture(True)
