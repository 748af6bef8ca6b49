"""Up, down and status of the embedded node.

Every step of `up` first looks whether it is needed, so any half-built or half-dead node recovers.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node import (
    addons,
    binaries,
    certificates,
    components,
    config,
    extras,
    images,
    mounts,
    network,
    prerequisites,
    pressure,
    processes,
    programs,
    pruning,
    runtime,
    space,
    turns,
)
from node.component import Component
from node.config import Settings
from node.health import healthy
from node.programs import Program
from node.shell import CommandError, NodeError, TimeoutReached, run, tail, wait_for
from node.steps import step

_HEALTHY_SECONDS = 60.0
_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class ComponentStatus:
    """One line of `status`: `state` is "running", "unhealthy" or "stopped"."""

    name: str
    state: str
    pid: int | None
    health: str


def up(settings: Settings, optional: Collection[str] = (), extra_programs: Iterable[Program] = ()) -> None:
    """Bring the node up or repair it; returns when pods can run and names resolve.

    `optional` add-ons are enabled from then on; `extra_programs` are built along with the node's.
    """
    prerequisites.require_root()
    with _locked(settings):
        prerequisites.ensure_tools(prerequisites.NODE_TOOLS)
        needed = [program for name in {*optional, *addons.enabled(settings)} for program in extras.PROGRAMS[name]]
        wanted = [*programs.NODE, *dict.fromkeys([*needed, *extra_programs])]
        _ensure_room(settings, wanted)
        binaries.ensure(settings, wanted)
        binaries.monitoring_crds(settings)
        settings.state.mkdir(parents=True, exist_ok=True)
        addons.enable(settings, *optional)
        if network.ensure():
            # Whatever still runs belongs to a namespace that is gone.
            _end_everything(settings)
        certificates.ensure(settings)
        _make_cgroups()
        *necessary, optional_wave = components.waves(settings)
        for wave in necessary:
            _start_wave(settings, wave)
        # Roles come before those who need them.
        addons.ensure(settings)
        _start_wave(settings, optional_wave)
        with step(f"wait for node {config.NODE_NAME} to be Ready and DNS to answer"):
            _wait_ready(settings)


def _ensure_room(settings: Settings, wanted: Iterable[Program]) -> None:
    """What etcd, logs and volumes take is little; builds of images look for themselves."""
    remedies = pruning.remedies(settings, images.wanted_now())
    building = binaries.room(settings, wanted)
    if building:
        space.ensure(settings.cache, space.SPARE + building, "building programs", remedies)
    space.ensure(settings.state, space.SPARE, "the node", remedies)


def _wait_ready(settings: Settings) -> None:
    """Where a full disk keeps pods from the node, what kubectl waited for in vain says nothing of it."""
    try:
        addons.wait_ready(settings)
    except CommandError as error:
        said = pressure.sentence(settings)
        raise NodeError(f"{said}\n{error}" if said else str(error)) from error


def down(settings: Settings) -> None:
    """Remove the node's processes, mounts, namespace and state; the cache stays."""
    prerequisites.require_root()
    with _locked(settings):
        with step("stop the node's processes and pods"):
            # Its image store outlives the node, so it is asked to close it.
            stop(settings, "containerd")
            _end_everything(settings)
        with step(f"remove network namespace {config.NAMESPACE} and {settings.state}"):
            network.remove()
            _remove_cgroups()
            shutil.rmtree(settings.state, ignore_errors=True)


def status(settings: Settings) -> list[ComponentStatus]:
    """Look at every component once; empty when there is no node."""
    if not settings.state.exists():
        return []
    return [_look(settings, component) for wave in components.waves(settings) for component in wave]


def stop(settings: Settings, name: str) -> None:
    """End one component, if it runs; `up` starts it again."""
    record = processes.load(_record(settings, name))
    if record is not None:
        processes.stop(record)
        _record(settings, name).unlink(missing_ok=True)


def _start_wave(settings: Settings, wave: list[Component]) -> None:
    """Start what does not run as it should and wait until all are well."""
    changed = [component for component in wave if _needs_start(settings, component)]
    if changed:
        with step(f"start {', '.join(component.name for component in changed)}") as progress:
            for component in changed:
                _start(settings, component)
            for component in changed:
                progress.follow(f"waiting for {component.name}".format)
                _await_health(settings, component)
    if any(component.name == "containerd" for component in wave):
        runtime.ensure_own_images(settings)


def _needs_start(settings: Settings, component: Component) -> bool:
    record = processes.load(_record(settings, component.name))
    if record is None or not record.alive or record.fingerprint != component.fingerprint(_surroundings(settings)):
        return True
    # A daemon that another `up` has only just started, or that is busy, gets a moment.
    try:
        wait_for(lambda: healthy(component.health), _GRACE_SECONDS, component.name)
    except TimeoutReached:
        return True
    return False


def _start(settings: Settings, component: Component) -> None:
    stop(settings, component.name)
    for folder in (*component.folders, *(path.parent for path in component.files)):
        folder.mkdir(parents=True, exist_ok=True)
    for path, text in component.files.items():
        path.write_text(text)
    if component.prepare:
        run([*network.enter(), *component.prepare], timeout=60)
    processes.start(
        [*network.enter(), *component.argv],
        record=_record(settings, component.name),
        log=_log(settings, component.name),
        fingerprint=component.fingerprint(_surroundings(settings)),
        state=settings.state,
        path=processes.environment_path(prerequisites.unpacked(settings, "containerd").parent),
    )


def _await_health(settings: Settings, component: Component) -> None:
    """Wait until a component answers; raises NodeError with the end of its log when it exits or never does."""
    deadline = time.monotonic() + _HEALTHY_SECONDS
    while not healthy(component.health):
        record = processes.load(_record(settings, component.name))
        exited = record is None or not record.alive
        if exited or time.monotonic() > deadline:
            log = _log(settings, component.name)
            what = "exited" if exited else f"is not healthy after {_HEALTHY_SECONDS:.0f} s"
            raise NodeError(f"{component.name} {what}; the end of {log}:\n{tail(log)}")
        time.sleep(0.1)


def _look(settings: Settings, component: Component) -> ComponentStatus:
    record = processes.load(_record(settings, component.name))
    if record is None or not record.alive:
        return ComponentStatus(component.name, "stopped", None, component.health)
    state = "running" if healthy(component.health) else "unhealthy"
    return ComponentStatus(component.name, state, record.pid, component.health)


def _end_everything(settings: Settings) -> None:
    processes.sweep(settings.state)
    mounts.release(settings.state)


def _cgroup_roots() -> Iterator[Path]:
    """The top of each cgroup hierarchy: one with cgroup v2, one for each controller with v1."""
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        yield top
    else:
        yield from (
            folder for folder in top.iterdir() if (folder / "cgroup.procs").exists() and not folder.is_symlink()
        )


def _make_cgroups() -> None:
    for root in _cgroup_roots():
        (root / config.NAMESPACE).mkdir(exist_ok=True)


def _remove_cgroups() -> None:
    for root in _cgroup_roots():
        own = root / config.NAMESPACE
        folders = [*own.rglob("*"), own] if own.exists() else []
        for folder in sorted((path for path in folders if path.is_dir()), reverse=True):
            folder.rmdir()


def _surroundings(settings: Settings) -> str:
    """What a daemon cannot change while it runs: its network namespace and the authority it trusts."""
    return f"{network.identity()} {certificates.authority(settings)}"


def _record(settings: Settings, name: str) -> Path:
    return settings.state / "run" / f"{name}.json"


def _log(settings: Settings, name: str) -> Path:
    return settings.logs / f"{name}.log"


@contextmanager
def _locked(settings: Settings) -> Iterator[None]:
    """One `up` or `down` at a time; a second one says that it waits."""
    with turns.taken(settings.cache / "node.lock", "another hack/cluster is at work; waiting for it"):
        yield
