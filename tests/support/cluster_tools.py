"""What tests on the cluster share: kubectl as a callable, creating objects, polling instead of sleeping."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import pytest

T = TypeVar("T")


class Kubectl(Protocol):
    """Runs kubectl and returns its standard output; with `check=False` a failure returns standard error instead."""

    def __call__(self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 60) -> str: ...


def create(kubectl: Kubectl, manifest: dict[str, Any]) -> None:
    kubectl("create", "-f", "-", stdin=json.dumps(manifest))


def wait_for(condition: Callable[[], T | None], timeout: float, what: str, interval: float = 0.2) -> T:
    """Poll until `condition` returns something true and return that; fails naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {timeout:.0f} s")
        time.sleep(interval)
    return value
