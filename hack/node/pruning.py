"""What of ours goes from the disk: images that nothing needs, what interrupted work left, and, asked for, caches."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from node import builder, kind, mounts, retention, runtime
from node.config import Settings
from node.health import healthy
from node.shell import CommandError, run
from node.space import Remedy

# Nothing here is at work on one thing for so long: builds have a limit of half of it.
_LEFT_SECONDS = 3600.0
_OWN = "localhost/octavo-"
_Name = TypeVar("_Name", str, Path)


def built(settings: Settings) -> set[str]:
    """What the builder's own store holds of ours."""
    if kind.docker_runs():
        return set(run(["docker", "images", "--format={{.Repository}}:{{.Tag}}", f"{_OWN}*"]).split())
    return builder.references(settings)


def drop_old(settings: Settings, name: str, kept: Collection[str]) -> None:
    """Remove images of a name from the node and from the builder's store, but those that are kept or in use."""
    if _node_is_up(settings):
        kept = {*kept, *runtime.in_use(settings)}
        with suppress(CommandError):  # one that a container has taken meanwhile goes another time
            runtime.remove(settings, others(runtime.references(settings), name, kept))
    if not kind.docker_runs():
        builder.remove(settings, others(built(settings), name, kept))


def others(references: Collection[str], name: str, kept: Collection[str]) -> list[str]:
    """Of images by reference, those of a name that do not stay."""
    return sorted(item for item in references if item.rpartition(":")[0] == name and item not in kept)


def remedies(settings: Settings, current: Collection[str]) -> list[Remedy]:
    """What goes when room is short, the cheapest to have again first; `current` are the images that are wanted now."""
    return [
        Remedy("what interrupted work left", lambda: _drop_leftovers(settings)),
        Remedy("images of former code", lambda: _drop_all_old(settings, current)),
        Remedy("layers of failed builds", lambda: _drop_unnamed(settings)),
    ]


def costly(settings: Settings) -> list[Remedy]:
    """What goes only when a person says so, without a node: it takes minutes to have again, and may be at work."""
    return [
        Remedy("the builder's layers", lambda: _drop_store(settings)),
        Remedy("the node's images", lambda: _drop_node_images(settings)),
        Remedy("the engines that benchmarks compare with", lambda: _delete(settings.cache / "benchmarks" / "peers")),
    ]


def left_over(ages: Mapping[_Name, float]) -> list[_Name]:
    """Of unfinished things by the seconds since each was begun or touched, those that nobody can be at work on."""
    return sorted(name for name, age in ages.items() if age > _LEFT_SECONDS)


def _drop_leftovers(settings: Settings) -> None:
    places = (settings.cache, settings.binaries, settings.cache / "models", settings.cache / "debian")
    ages: dict[Path, float] = {}
    for folder in (folder for place in places for folder in place.glob(".partial-*")):
        with suppress(FileNotFoundError):  # whose work has just ended
            ages[folder] = time.time() - folder.stat().st_mtime
    for folder in left_over(ages):
        shutil.rmtree(folder, ignore_errors=True)
    if _node_is_up(settings):
        now = datetime.now(UTC)
        began = runtime.leases(settings)
        runtime.collect(settings, left_over({name: (now - start).total_seconds() for name, start in began.items()}))


def _drop_all_old(settings: Settings, current: Collection[str]) -> None:
    there = built(settings) | (runtime.references(settings) if _node_is_up(settings) else set())
    for name in sorted({item.rpartition(":")[0] for item in there if item.startswith(_OWN)} - {builder.BASE_NAME}):
        drop_old(settings, name, {*current, *retention.recent(settings, name)})


def _drop_unnamed(settings: Settings) -> None:
    if builder.store(settings).exists() and not kind.docker_runs():
        builder.remove_unnamed(settings)


def _drop_store(settings: Settings) -> None:
    if builder.store(settings).exists():
        with builder.clean_store(settings):
            _delete(builder.store(settings))


def _drop_node_images(settings: Settings) -> None:
    _delete(settings.cache / "containerd")


def _delete(folder: Path) -> None:
    if folder.exists():
        mounts.release(folder)
        shutil.rmtree(folder)


def _node_is_up(settings: Settings) -> bool:
    return healthy(f"unix:{settings.containerd_socket}")
