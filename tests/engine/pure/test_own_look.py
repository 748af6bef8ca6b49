"""What an engine says of its own limit on `/load`: from two looks at its real metrics, some seconds apart."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from octavo_engine.batch import SchedulerStats
from octavo_engine.metrics import Metrics
from octavo_engine.request import WaitReason
from octavo_engine.server.lifecycle import Lifecycle
from octavo_engine.server.own_look import LEAST_SECONDS, MOST_SECONDS, OwnLook

IDLE = SchedulerStats(free_blocks=4)
FULL = SchedulerStats(running=2, waiting={WaitReason.BATCH_FULL: 5}, used_blocks=1, free_blocks=3)


class Engine:
    """Metrics, a scheduler that is written down, and a clock."""

    def __init__(self) -> None:
        self.now, self.stats = 100.0, FULL
        metrics = Metrics(CollectorRegistry(), model_name="m", stats=lambda: self.stats, clock=lambda: self.now)
        self.look = OwnLook(metrics.series, clock=lambda: self.now)

    def after(self, seconds: float) -> dict[str, str] | None:
        self.now += seconds
        return self.look.limit()


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_second_look_tells_what_happened_since_the_first(engine: Engine) -> None:
    assert engine.after(0) is None
    found = engine.after(LEAST_SECONDS)
    assert found is not None
    assert found["limiter"] == "queue"
    assert found["message"].startswith("5 requests wait for batch_full. Raise --max-num-seqs: ")


def test_who_asks_too_soon_hears_the_same_again(engine: Engine) -> None:
    engine.after(0)
    found = engine.after(LEAST_SECONDS)
    engine.stats = IDLE
    assert engine.after(LEAST_SECONDS / 2) == found
    engine.after(LEAST_SECONDS)
    assert engine.after(LEAST_SECONDS) is None


def test_what_was_long_ago_is_not_now(engine: Engine) -> None:
    engine.after(0)
    assert engine.after(MOST_SECONDS + 1) is None
    assert engine.after(LEAST_SECONDS) is not None


def test_nothing_limits_an_engine_that_waits_for_requests(engine: Engine) -> None:
    engine.stats = IDLE
    engine.after(0)
    assert engine.after(LEAST_SECONDS) is None


def test_it_is_on_the_page_that_scalers_read(engine: Engine) -> None:
    lifecycle = Lifecycle(model_name="m", max_num_seqs=2)
    assert lifecycle.load()["limited_by"] is None
    lifecycle.limit = engine.look.limit
    engine.after(0)
    engine.after(LEAST_SECONDS)
    assert lifecycle.load()["limited_by"] == engine.look.limit()
