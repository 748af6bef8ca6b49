"""What a stage's tests have reported, in JUnit's form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree


@dataclass
class Tests:
    """What reports of tests say. `seconds` are by file, each test's own; `unsteady` are those that failed and then, run
    again by themselves, passed."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)


def read(report: Path) -> Tests:
    """One report; nothing where a stage has left none."""
    found = Tests()
    if not report.exists():
        return found
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 (our own pytest has just written it)
        where, name = case.get("classname", ""), case.get("name", "")
        if (reason := case.find("skipped")) is not None:
            found.skipped[reason.get("message", "")] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            found.failed.append(f"{where}.{name}")
        else:
            found.passed.append(f"{where}.{name}")
        found.seconds[where] = found.seconds.get(where, 0.0) + float(case.get("time", 0))
    return found


def read_all(reports: Iterable[Path]) -> Tests:
    """A stage's report, and where it was run again, what became of those that had failed."""
    first, *later = [read(report) for report in reports] or [Tests()]
    for told in later:
        first.unsteady += [test for test in first.failed if test in told.passed]
        first.failed = [test for test in first.failed if test not in told.passed]
    first.passed += first.unsteady
    return first
