"""What hack/ decides about the disk: what goes, what a step needs, what is said when it is full."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from node import (
    addons,
    binaries,
    builder,
    config,
    kind,
    lifecycle,
    pressure,
    programs,
    pruning,
    runtime,
    space,
)
from node.config import HACK, Settings
from node.shell import CommandError, NodeError
from node.space import GIGABYTE, Remedy


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state", cache=tmp_path / "cache", kubeconfig=None)


def test_only_what_is_ours_and_not_wanted_goes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "localhost/octavo-engine:old",
        "localhost/octavo-engine:now",
        "localhost/octavo-engine:running",
        "localhost/octavo-operator:old",
        "localhost/octavo-base:bookworm",
        "localhost/pause:1",
        "registry.example/octavo-engine:old",
    ]
    gone: list[str] = []
    monkeypatch.setattr(kind, "docker_runs", lambda: False)
    monkeypatch.setattr(pruning, "_node_is_up", lambda _: True)
    monkeypatch.setattr(runtime, "in_use", lambda _: {"localhost/octavo-engine:running"})
    for module in (builder, runtime):
        monkeypatch.setattr(module, "references", lambda _: {*names})
        monkeypatch.setattr(module, "remove", lambda _, some: gone.extend(some))
    (_, old, _) = pruning.remedies(settings, {"localhost/octavo-engine:now"})
    old.apply()
    assert {*gone} == {"localhost/octavo-engine:old", "localhost/octavo-operator:old"}


def test_unfinished_folders_go_when_nobody_can_be_at_work_on_them() -> None:
    ages = {Path("fresh"): 10.0, Path("slow"): 1800.0, Path("left"): 3601.0}
    assert pruning.left_over(ages) == [Path("left")]


LEASES = """\
ID             CREATED AT           LABELS
339341119-Mg1D 2026-11-30T07:52:06Z containerd.io/gc.expire=2026-12-01T07:52:06Z
17-fresh       NOW                  -
"""


def test_what_a_killed_import_had_stored_goes_and_that_of_one_at_work_stays(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, ...]] = []

    def ctr(_: Settings, *arguments: str) -> str:
        called.append(arguments)
        return "own\n" if "create" in arguments else LEASES.replace("NOW", datetime.now(UTC).isoformat())

    monkeypatch.setattr(runtime, "ctr", ctr)
    monkeypatch.setattr(pruning, "_node_is_up", lambda _: True)
    pruning.remedies(settings, set())[0].apply()
    assert called == [
        ("leases", "list"),
        ("leases", "create"),
        ("leases", "delete", "--sync", "own", "339341119-Mg1D"),
    ]


class Disk:
    """A disk of which remedies give back a gigabyte each, or nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: float) -> None:
        self.free = free
        self.applied: list[str] = []
        monkeypatch.setattr(space, "free_at", lambda _: int(self.free * GIGABYTE))

    def remedy(self, what: str, gain: float = 1.0) -> Remedy:
        def apply() -> None:
            self.applied.append(what)
            self.free += gain

        return Remedy(what, apply)


def test_as_little_goes_as_makes_room_and_each_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Disk(monkeypatch, free=1.0)
    remedies = [disk.remedy("leftovers", 0.0), disk.remedy("old images"), disk.remedy("layers")]
    space.ensure(Path("/cache"), GIGABYTE, "a build", remedies)
    assert disk.applied == []
    space.ensure(Path("/cache"), 2 * GIGABYTE, "a build", remedies)
    assert disk.applied == ["leftovers", "old images"]
    assert capsys.readouterr().err == "removed leftovers: 0.0 GB\nremoved old images: 1.0 GB\n"


def test_a_step_that_would_fill_the_disk_does_not_begin_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, free=1.0)
    with pytest.raises(NodeError) as refused:
        space.ensure(Path("/cache"), 9 * GIGABYTE, "building octavo-engine", [disk.remedy("old images")])
    assert str(refused.value) == (
        "building octavo-engine needs 9.0 GB of disk, and /cache has 2.0 GB free (already removed: old images). "
        "Make room there, or run hack/cluster prune --all, which also removes what takes minutes to make again"
    )


def test_room_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert space.free_at(tmp_path / "not" / "yet") == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)


def test_programs_need_room_while_they_are_missing(settings: Settings) -> None:
    assert binaries.room(settings, programs.NODE) == 5 * GIGABYTE
    (settings.binaries / programs.KUBERNETES.key).mkdir(parents=True)
    assert binaries.room(settings, programs.NODE) == GIGABYTE
    assert binaries.room(settings, [programs.KUBERNETES]) == 0


def node_document(pressed: bool) -> dict[str, object]:
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "MemoryPressure", "status": "True"},
        {"type": "DiskPressure", "status": str(pressed)},
    ]
    return {"status": {"conditions": conditions}}


def event(reason: str, message: str, what: str = "Node") -> dict[str, object]:
    return {"involvedObject": {"kind": what}, "reason": reason, "message": message}


FULL = event("EvictionThresholdMet", "Attempting to reclaim ephemeral-storage")


@pytest.mark.parametrize(
    ("pressed", "events", "said"),
    [
        (False, [], ""),
        (False, [event("EvictionThresholdMet", "Attempting to reclaim memory")], ""),
        (False, [event("NodeHasDiskPressure", "of a pod's own", what="Pod")], ""),
        (False, [FULL], "had DiskPressure (Attempting to reclaim ephemeral-storage)"),
        (True, [], "has DiskPressure"),
        (True, [event("NodeHasDiskPressure", "status is now"), FULL], f"has DiskPressure ({FULL['message']})"),
    ],
)
def test_a_full_disk_is_told_while_it_lasts_and_afterwards(
    pressed: bool, events: list[dict[str, object]], said: str
) -> None:
    assert pressure.told(node_document(pressed), events) == said


@pytest.mark.parametrize("said", ["the node has DiskPressure", ""])
def test_a_node_that_does_not_become_ready_says_whether_its_disk_is_full(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    def wait(_: Settings) -> None:
        raise CommandError("timed out")

    monkeypatch.setattr(addons, "wait_ready", wait)
    monkeypatch.setattr(pressure, "sentence", lambda _: said)
    with pytest.raises(NodeError) as failed:
        lifecycle._wait_ready(settings)
    assert str(failed.value).splitlines() == [*filter(None, [said]), "timed out"]


def test_the_kubelet_evicts_below_what_stays_free() -> None:
    assert config.EVICTED_BELOW == "1Gi"
    assert space.SPARE > 1.5 * 2**30


CLUSTER = """\
#!/bin/sh
echo "$@" >> "$(dirname "$0")/called"
[ "$1" = up ] || echo "the node had DiskPressure"
"""


@pytest.mark.parametrize(
    ("command", "code", "there", "called"),
    [
        ("true", 0, False, ["up --tests", "down"]),
        ("false", 1, False, ["up --tests", "down"]),
        ("false", 1, True, ["up --tests", "pressure"]),
        ("true", 0, True, ["up --tests"]),
    ],
)
def test_a_command_that_fails_with_the_cluster_is_told_whether_the_disk_was_full(
    tmp_path: Path, command: str, code: int, there: bool, called: list[str]
) -> None:
    shutil.copy(HACK / "with-cluster", tmp_path)
    (tmp_path / "cluster").write_text(CLUSTER)
    (tmp_path / "cluster").chmod(0o755)
    state = tmp_path / "state"
    if there:
        state.mkdir()
    environment = {**os.environ, "OCTAVO_STATE": str(state), "OCTAVO_KUBECONFIG": ""}
    command_line = [tmp_path / "with-cluster", command]
    ended = subprocess.run(command_line, check=False, env=environment, capture_output=True, text=True)
    assert ended.returncode == code
    assert (tmp_path / "called").read_text().splitlines() == called
    assert ("DiskPressure" in ended.stderr) == ("pressure" in called)


@pytest.mark.parametrize("command", ["true", "false"])
def test_another_cluster_is_not_taken_down(tmp_path: Path, command: str) -> None:
    shutil.copy(HACK / "with-cluster", tmp_path)
    (tmp_path / "cluster").write_text(CLUSTER)
    (tmp_path / "cluster").chmod(0o755)
    environment = {**os.environ, "OCTAVO_STATE": str(tmp_path / "state"), "OCTAVO_KUBECONFIG": "another"}
    subprocess.run([tmp_path / "with-cluster", command], check=False, env=environment)
    assert (tmp_path / "called").read_text() == "up --tests\n"
