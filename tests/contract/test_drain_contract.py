"""The time that a pod has to end, against the time that the engine takes; what docs/AVAILABILITY.md says of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_engine.config import ServerConfig, flag
from octavo_engine.server import listeners, shutdown
from octavo_operator import engine_args
from operator_samples import spec_of

pytestmark = pytest.mark.contract

DOCUMENT = (Path(__file__).parents[2] / "docs" / "AVAILABILITY.md").read_text("utf-8")
UVICORN_SECONDS = 0.5  # its own pauses around a stop


def test_the_engine_ends_before_it_is_killed() -> None:
    takes = listeners.FLUSH_SECONDS + shutdown.STOP_SECONDS + UVICORN_SECONDS
    assert takes < engine_args.EXIT_MARGIN_SECONDS
    assert f"up to {takes + UVICORN_SECONDS:.0f} s" in DOCUMENT


def test_the_document_has_the_pods_times() -> None:
    pre_stop, margin = engine_args.PRE_STOP_SECONDS, engine_args.EXIT_MARGIN_SECONDS
    assert f"preStop {pre_stop} s" in DOCUMENT
    assert f"terminationGracePeriodSeconds = {pre_stop} + drainSeconds + {margin}" in DOCUMENT
    assert engine_args.grace_seconds(spec_of(drainSeconds=45)) == pre_stop + 45 + margin
    assert f"{listeners.IDLE_SECONDS} s" in DOCUMENT


@pytest.mark.parametrize("name", ["stuck_decode_seconds", "stuck_prefill_seconds", "stuck_warm_up_seconds"])
def test_the_document_has_the_limits_of_liveness(name: str) -> None:
    row = next(line for line in DOCUMENT.splitlines() if f"`{flag(name)}`" in line)
    assert f"| {getattr(ServerConfig(), name):g} s |" in row
