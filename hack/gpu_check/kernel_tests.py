"""Runs tests/gpu in processes of their own, and counts what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from gpu_check.results import Suite

ROOT = Path(__file__).parents[2]
LAST_TEST = 45.0  # seconds for those that run when the time is over; then a test hangs, and what was found is lost


def run(tests: str, workers: int, seconds: float) -> Suite:
    """Those tests, which need a GPU, in so many processes (0: in one without more ado). After so many seconds none is
    begun any more, and those that are not done count as one failure: nobody knows of them."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.xml"
        # What an unknown driver or another version of a library warns of is no fault of a kernel: it is only shown.
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-n", str(workers)]
        command += [f"--session-timeout={seconds:.0f}", f"--junitxml={found}", tests]
        done = finished(command, seconds + LAST_TEST)
        suite = counted(found.read_text("utf-8")) if found.exists() else Suite(0, 0, 0, 0.0)
    if done is None:
        return replace(suite, failed=1, seconds=seconds, failures=(f"{tests} hangs: ended after {seconds:.0f} s",))
    said = done.stdout.splitlines()[-3:] + done.stderr.splitlines()[-3:]
    if any("session-timeout" in line for line in done.stdout.splitlines()):
        names = (*suite.failures, f"{tests}: those above are all that were done in {seconds:.0f} s")
        return replace(suite, failed=suite.failed + 1, failures=names)
    if suite.failed or not done.returncode:
        return suite
    return replace(suite, failed=1, failures=tuple(said))  # nothing was found to run, for one


def finished(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str] | None:
    """What it said; None where it had to be ended, with all that it has started: a worker that waits for a device
    would keep the device's memory, and disturb whatever is measured next."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


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
