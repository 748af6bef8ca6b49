"""Room on the disk: what a step needs, what goes to make it, and the sentence when that is not enough."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.shell import NodeError
from node.steps import note

GIGABYTE = 1_000_000_000
SPARE = 2 * GIGABYTE
"""What stays free beside what a step takes, in bytes: for the host, for pods, and above where the kubelet evicts."""


@dataclass(frozen=True)
class Remedy:
    """Something of ours that can go: what it is, in words, and how it goes."""

    what: str
    apply: Callable[[], None]


def ensure(place: Path, needed: int, step: str, remedies: Sequence[Remedy]) -> None:
    """See to it that `needed` bytes are free where `place` is, for `step`: remedies go in order until they are.

    What went is told in a line each. Raises NodeError with what is missing when all of them were not enough.
    """
    applied: list[str] = []
    for remedy in remedies:
        if free_at(place) >= needed:
            return
        apply(place, remedy)
        applied.append(remedy.what)
    free = free_at(place)
    if free < needed:
        raise NodeError(refusal(place, needed, free, step, applied))


def apply(place: Path, remedy: Remedy) -> None:
    """Let something go, and say how much room it made where `place` is; others use the disk meanwhile."""
    before = free_at(place)
    remedy.apply()
    note(f"removed {remedy.what}: {gigabytes(max(free_at(place) - before, 0))}")


def refusal(place: Path, needed: int, free: int, step: str, applied: Sequence[str]) -> str:
    """Why a step does not begin, and what to do."""
    gone = f" (already removed: {', '.join(applied)})" if applied else ""
    return (
        f"{step} needs {gigabytes(needed)} of disk, and {place} has {gigabytes(free)} free{gone}. Make room there, "
        "or run hack/cluster prune --all, which also removes what takes minutes to make again"
    )


def gigabytes(size: int) -> str:
    """A size for people."""
    return f"{size / GIGABYTE:.1f} GB"


def free_at(place: Path) -> int:
    """Bytes that are free on the file system of a folder, or of the nearest one above it that exists."""
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    return shutil.disk_usage(there).free
