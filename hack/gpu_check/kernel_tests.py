"""Runs tests/gpu in a process of its own, and counts what they say."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from gpu_check.results import Suite

ROOT = Path(__file__).parents[2]


def run(tests: str, workers: int, seconds: float) -> Suite:
    """Those tests, which need a GPU, in so many processes (0: in one without more ado), within so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)]
        command += [f"--junitxml={found}", tests]
        try:
            done = subprocess.run(command, cwd=ROOT, timeout=seconds, check=False, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return Suite(0, 1, 0, seconds, (f"{tests} took longer than {seconds:.0f} s",))
        suite = counted(found.read_text("utf-8")) if found.exists() else Suite(0, 0, 0, 0.0)
        if suite.failed or not done.returncode:
            return suite
        said = done.stdout.splitlines()[-3:] + done.stderr.splitlines()[-3:]  # nothing was found to run, for one
        return replace(suite, failed=1, failures=tuple(said))


def counted(junit: str) -> Suite:
    """What a report in JUnit's form says."""
    cases = ElementTree.fromstring(junit).findall(".//testcase")  # noqa: S314 (pytest wrote it)
    failures = [_name(case) for case in cases if _has(case, ("failure", "error"))]
    skipped = sum(_has(case, ("skipped",)) for case in cases)
    seconds = sum(float(case.get("time", "0")) for case in cases)
    return Suite(len(cases) - len(failures) - skipped, len(failures), skipped, seconds, tuple(failures))


def _has(case: ElementTree.Element, kinds: Sequence[str]) -> bool:
    return any(case.find(kind) is not None for kind in kinds)


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '')}::{case.get('name', '')}"
