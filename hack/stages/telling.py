"""Where the time went: a row for each stage, why tests were skipped, which files took longest, and what failed."""

from __future__ import annotations

from collections.abc import Sequence

from stages.order import State
from stages.reading import Tests, read_all
from stages.running import Outcome

_LONGEST = 3  # files of a stage that are named
_UNSTEADY = "failed beside others and passed by itself: mend it"
_COLUMNS = "{:<9} {:<10} {:>8} {:>10} {:>7} {:>8} {:>7}"


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The lines for the end of a run that took so many seconds."""
    told = {outcome.stage.name: read_all(outcome.reports) for outcome in outcomes}
    lines = [_COLUMNS.format("stage", "", "seconds", "processor", "passed", "skipped", "failed")]
    lines += [_row(outcome, told[outcome.stage.name]) for outcome in outcomes]
    worst = State.PASSED if all(outcome.state is State.PASSED for outcome in outcomes) else State.FAILED
    used = sum(outcome.processor_seconds for outcome in outcomes)
    tests = list(told.values())
    counts = [sum(found) for found in zip(*(_counts(item) for item in tests), strict=True)]
    lines.append(_COLUMNS.format("all", worst.value, f"{seconds:.0f}", f"{used:.0f}", *counts))
    for name, item in told.items():
        lines += [f"skipped in {name}: {count} x {reason}" for reason, count in sorted(item.skipped.items())]
    for name, item in told.items():
        longest = sorted(item.seconds.items(), key=lambda file: -file[1])[:_LONGEST]
        if longest:
            lines.append(f"longest in {name}: " + ", ".join(f"{where} {took:.0f} s" for where, took in longest))
    lines += [f"unsteady in {name}: {test} {_UNSTEADY}" for name, item in told.items() for test in item.unsteady]
    lines += [f"failed in {name}: {test}" for name, item in told.items() for test in item.failed]
    return "\n".join(lines)


def _row(outcome: Outcome, tests: Tests) -> str:
    times = (f"{outcome.seconds:.0f}", f"{outcome.processor_seconds:.0f}")
    return _COLUMNS.format(outcome.stage.name, outcome.state.value, *times, *_counts(tests))


def _counts(tests: Tests) -> tuple[int, int, int]:
    return len(tests.passed), tests.skipped.total(), len(tests.failed)
