"""What tests on the cluster share: kubectl as a callable, creating objects, polling instead of sleeping."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import pytest

from patience import PATIENCE_SECONDS

T = TypeVar("T")
KUBECTL_SECONDS = PATIENCE_SECONDS + 30  # what it waits for itself (`--timeout=240s`) ends before


class Kubectl(Protocol):
    """Runs kubectl and returns its standard output; with `check=False` a failure returns standard error instead."""

    def __call__(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = KUBECTL_SECONDS
    ) -> str: ...


def create(kubectl: Kubectl, manifest: dict[str, Any]) -> None:
    kubectl("create", "-f", "-", stdin=json.dumps(manifest))


def wait_for(
    condition: Callable[[], T | None], what: str, *, within: float = PATIENCE_SECONDS, interval: float = 0.2
) -> T:
    """Poll until `condition` returns something true and return that; fails naming `what` after `within` seconds.

    `within` is for what may take longer than everything else, or must not: see `patience`.
    """
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {within:.0f} s")
        time.sleep(interval)
    return value


def wait_quiet(look: Callable[[], T], seconds: float, what: str) -> T:
    """Poll until `look` has given the same for so long; returns that, and fails where it goes on changing.

    For what must cost no write once it is done: on a busy machine, others do their part late.
    """
    seen, since = look(), time.monotonic()

    def quiet() -> bool:
        nonlocal seen, since
        if (now := look()) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since >= seconds

    wait_for(quiet, what, interval=0.5)
    return seen
