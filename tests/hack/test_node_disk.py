"""What hack/ decides about the disk: which layers two stores share, what goes, what a step needs, what is said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from image_layers.__main__ import LAYERS
from image_layers.parts import parts
from node import (
    addons,
    binaries,
    builder,
    config,
    images,
    kind,
    layers,
    lifecycle,
    linking,
    pressure,
    programs,
    pruning,
    recipes,
    runtime,
    shell,
    space,
)
from node.config import HACK, Settings
from node.shell import CommandError, NodeError
from node.space import GIGABYTE, Remedy

# Layers of a real image, and the name that containerd gave the two together.
BASE = "sha256:58432621242f88c99a999a3527603c8278539a95bdbe6b3040d939fc00d1c4ac"
SECOND = "sha256:a7ea7583e2c00aa5b6d720dcd18d624d6332451318d86d22b5a309e339444b8e"
BOTH = "sha256:e6b40ba47e868b642509c36c99a9d384f853f0cbbc8928853fbe1d5b519b487b"

IMAGE = {
    "FromImageID": "image",
    "Manifest": '{"layers": []}',
    "Config": json.dumps({"rootfs": {"diff_ids": [BASE, SECOND]}}),
}
IMAGES = [{"id": "older", "layer": "low"}, {"id": "image", "layer": "high"}]
STORED = [
    {"id": "other", "parent": "low", "diff-digest": "sha256:0"},
    {"id": "high", "parent": "low", "diff-digest": SECOND},
    {"id": "low", "diff-digest": BASE},
]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state", cache=tmp_path / "cache", kubeconfig=None)


def test_an_images_layers_are_found_from_the_lowest_and_named_as_the_node_names_them() -> None:
    found = layers.built(Path("/overlay"), IMAGE, IMAGES, STORED)
    assert found.layers == (
        layers.Layer(BASE, "", Path("/overlay/low/diff")),
        layers.Layer(BOTH, BASE, Path("/overlay/high/diff")),
    )
    assert found.manifest == IMAGE["Manifest"].encode()
    assert found.config == IMAGE["Config"].encode()


@pytest.mark.parametrize("stored", [[], STORED[1:2], [*STORED[1:2], {"id": "low", "diff-digest": "sha256:0"}]])
def test_a_store_that_is_not_the_images_is_refused_with_the_remedy(stored: list[dict[str, str]]) -> None:
    with pytest.raises(NodeError, match="not as expected: hack/cluster prune --all"):
        layers.built(Path("/overlay"), IMAGE, IMAGES, stored)


class Node:
    """A node's store of layers, with folders for them below `root`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, there: set[str]) -> None:
        self.root, self.there, self.held, self.images = root, {*there}, set[str](), list[str]()
        monkeypatch.setattr(runtime, "snapshots", lambda _: {*self.there})
        monkeypatch.setattr(runtime, "prepare_snapshot", self.prepare)
        monkeypatch.setattr(runtime, "commit_snapshot", self.commit)
        monkeypatch.setattr(runtime, "remove_snapshot", lambda _, name: self.there.remove(name))
        monkeypatch.setattr(runtime, "release_snapshot", lambda _, chain: self.held.discard(chain))
        monkeypatch.setattr(runtime, "import_documents", self.name)
        monkeypatch.setattr(linking, "_apart", lambda _: [])  # it takes root, as the node does

    def prepare(self, _: Settings, name: str, parent: str) -> Path:
        assert name not in self.there
        assert parent in {"", *self.there}
        self.there.add(name)
        (self.root / name).mkdir(parents=True)
        return self.root / name

    def commit(self, _: Settings, name: str, chain: str) -> None:
        self.there = {*self.there - {name}, chain}
        self.held.add(chain)
        (self.root / name).rename(self.root / chain.replace(":", "-"))

    def name(self, _: Settings, reference: str, manifest: bytes, image: bytes) -> None:
        if manifest == b"refused":
            raise NodeError("refused")
        self.images.append(reference)


def built(folder: Path, manifest: bytes = b"{}") -> layers.Built:
    """An image of two layers, each with a file, the upper one with a link and a folder of unusual rights, too."""
    for name in ("low", "high"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text(name)
    (folder / "high" / "link").symlink_to("nowhere")
    (folder / "high" / "tmp").mkdir(0o700)
    (folder / "high" / "tmp").chmod(0o1777)
    (folder / "high").chmod(0o711)
    stack = (layers.Layer(BASE, "", folder / "low"), layers.Layer(BOTH, BASE, folder / "high"))
    return layers.Built(manifest, b"{}", stack)


def test_a_layer_comes_into_the_node_as_second_names_of_its_files(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "node", monkeypatch, there={"octavo-linking"})  # which a killed attempt has left
    image = built(tmp_path / "store")
    linking.link(settings, "localhost/octavo-engine:1", image)
    for layer in image.layers:
        linked = node.root / layer.chain.replace(":", "-")
        assert (linked / "file").samefile(layer.folder / "file")
        assert linked.stat().st_mode == layer.folder.stat().st_mode
    assert (linked / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert os.readlink(linked / "link") == "nowhere"
    assert node.images == ["localhost/octavo-engine:1"]
    assert (node.there, node.held) == ({BASE, BOTH}, set())


def test_layers_that_the_node_has_stay_as_they_are(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "node", monkeypatch, there={BASE})
    linking.link(settings, "localhost/octavo-engine:1", built(tmp_path / "store"))
    assert [folder.name for folder in node.root.iterdir()] == [BOTH.replace(":", "-")]


def test_layers_of_an_image_that_is_refused_are_held_by_nothing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path / "node", monkeypatch, there=set())
    with pytest.raises(NodeError, match="refused"):
        linking.link(settings, "localhost/octavo-engine:1", built(tmp_path / "store", manifest=b"refused"))
    assert (node.images, node.held) == ([], set())


@pytest.mark.parametrize(
    ("mount", "folder"),
    [
        ({"Type": "bind", "Source": "/snapshots/1/fs", "Options": ["rw", "rbind"]}, "/snapshots/1/fs"),
        (
            {
                "Type": "overlay",
                "Source": "overlay",
                "Options": ["index=off", "workdir=/snapshots/2/work", "upperdir=/snapshots/2/fs", "lowerdir=/1/fs"],
            },
            "/snapshots/2/fs",
        ),
    ],
)
def test_a_layers_files_go_where_the_node_would_mount_them_from(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, mount: dict[str, object], folder: str
) -> None:
    monkeypatch.setattr(runtime, "ctr", lambda *_, **__: json.dumps([mount]))
    assert runtime.prepare_snapshot(settings, "name", "") == Path(folder)


def test_an_image_goes_with_the_names_that_were_made_for_it_alone() -> None:
    held = {
        "localhost/octavo-engine:1": "sha256:m1",
        "localhost/octavo-engine:2": "sha256:m2",
        "localhost/octavo-engine:2-next": "sha256:m2",
        "sha256:config1": "sha256:m1",
        "sha256:config2": "sha256:m2",
        "sha256:forgotten": "sha256:m0",
    }
    assert runtime.and_aliases(held, {"localhost/octavo-engine:1"}) == [
        "localhost/octavo-engine:1",
        "sha256:config1",
        "sha256:forgotten",
    ]
    assert runtime.and_aliases(held, {"localhost/octavo-engine:2"}) == ["localhost/octavo-engine:2", "sha256:forgotten"]
    assert runtime.and_aliases(held, {"localhost/octavo-engine:9"}) == ["sha256:forgotten"]


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


DOCKERFILE = """\
# A comment.
ARG BASE=debian
FROM ${BASE} AS compiler
RUN install compiler
FROM compiler AS big
ARG CACHE
COPY requirements/big.txt /big.txt
RUN install /big.txt
FROM big
COPY requirements/all.txt /all.txt
RUN install /all.txt
COPY code /code
"""
RECIPE = recipes.parts(DOCKERFILE)


def keys(dockerfile: str = DOCKERFILE, **contents: str) -> list[str]:
    return recipes.keys(recipes.parts(dockerfile), lambda source: contents.get(Path(source).stem, "").encode())


def test_a_recipes_parts_begin_where_files_or_stages_come_in() -> None:
    assert [(part.target, part.source, part.is_empty) for part in RECIPE] == [
        ("compiler", "", False),
        ("big", "", True),
        ("big", "requirements/big.txt", False),
        ("", "", True),
        ("", "requirements/all.txt", False),
        ("", "code", False),
    ]
    assert "".join(part.text for part in RECIPE) == DOCKERFILE.partition("\n")[2]


@pytest.mark.parametrize(
    ("changed", "same", "targets"),
    [
        (keys(), 6, []),
        (keys(code="changed"), 5, []),
        (keys(all="changed"), 4, []),
        (keys(big="changed"), 2, ["big"]),
        (keys(DOCKERFILE.replace("A comment", "Another")), 6, []),
        (keys(DOCKERFILE.replace("install compiler", "install another")), 0, ["compiler", "big"]),
    ],
)
def test_a_part_is_made_anew_from_the_first_that_changed(changed: list[str], same: int, targets: list[str]) -> None:
    assert [key in keys() for key in changed] == [True] * same + [False] * (6 - same)
    assert recipes.targets(RECIPE, changed, keys()) == targets


def test_a_build_needs_its_finished_layers_and_the_one_in_the_making_four_times() -> None:
    sizes = [("a", 1), ("b", 10), ("c", 2)]
    assert recipes.height(sizes, set()) == 1 + 4 * 10
    assert recipes.height(sizes, {"a"}) == 4 * 10
    assert recipes.height(sizes, {"a", "b"}) == 4 * 2
    assert recipes.height(sizes, {"a", "b", "c"}) == 0


def test_a_build_of_the_engine_stays_below_the_room_that_the_documents_name() -> None:
    """Much less from nothing than a single layer of all would need, and a part of that for a small requirement."""
    sizes = images.IMAGES["engine"].sizes
    assert recipes.height(sizes, set()) < 10 * GIGABYTE
    *known, requirements, code = [key for key, _ in sizes]
    assert recipes.height(sizes, known) < 2 * GIGABYTE
    assert recipes.height(sizes, [*known, requirements]) < 0.5 * GIGABYTE
    assert len({requirements, code, *known}) == len(sizes)


def test_a_file_of_other_rights_is_another_layer_but_the_same_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "CHECKOUT", tmp_path)
    (tmp_path / "Dockerfile").write_text("FROM base\nCOPY code /code\n")
    code = tmp_path / "code"
    code.write_text("code")
    image = images.Image("octavo-engine", tmp_path / "Dockerfile", (code,))
    seen = set()
    for mode in (0o644, 0o664, 0o644):
        code.chmod(mode)
        seen.add((image.reference, image.recipe[-1][1]))
    assert len(seen) == 2
    assert len({reference for reference, _ in seen}) == 1


def test_every_size_is_of_a_part_that_there_is() -> None:
    sources = {part.source for image in images.IMAGES.values() for part, _ in image.recipe}
    assert images._GIGABYTES.keys() <= sources


def test_large_stages_are_built_one_by_one_before_the_image(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(builder, "buildah", lambda _, *arguments, **__: called.append(arguments) or "")
    image = images.IMAGES["engine"]
    builder.build(
        settings, image.dockerfile, image.reference, settings.cache / "log", options=["--label=a=b"], targets=["x", "y"]
    )
    builds = [{*call} for call in called if call[0] == "build"]
    assert [sorted(part for part in call if part.startswith(("--target", "--label"))) for call in builds] == [
        ["--target=x"],
        ["--target=y"],
        ["--label=a=b"],
    ]
    assert [image.reference in call for call in builds] == [False, False, True]
    assert called[-1] == ("rmi", "--prune")


def test_what_the_builder_made_is_known_until_its_image_goes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.store(settings).mkdir(parents=True)
    there = {"localhost/octavo-engine:1", "localhost/octavo-engine:2"}
    monkeypatch.setattr(builder, "references", lambda _: there)
    assert builder.parts(settings) == set()
    builder.note_parts(settings, "localhost/octavo-engine:1", ["a", "b"])
    builder.note_parts(settings, "localhost/octavo-engine:2", ["a", "c"])
    assert builder.parts(settings) == {"a", "b", "c"}
    there.remove("localhost/octavo-engine:1")
    assert builder.parts(settings) == {"a", "c"}


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


REQUIREMENTS = """\
# Written by a tool.
nvidia-cublas==1 \\
    --hash=sha256:1
    # via torch
torch==2 ; python_version >= "3.11" \\
    --hash=sha256:2 \\
    --hash=sha256:3
torch-extra==4 \\
    --hash=sha256:4
"""


def test_requirements_are_parted_by_name_with_their_hashes() -> None:
    found = parts("all.txt", REQUIREMENTS, {"cuda.txt": "nvidia-.*", "torch.txt": "torch"})
    head = "# Part of all.txt, a layer of the image by itself: written by `make generate`.\n"
    assert found == {
        "cuda.txt": f"{head}nvidia-cublas==1 \\\n    --hash=sha256:1\n",
        "torch.txt": f'{head}torch==2 ; python_version >= "3.11" \\\n    --hash=sha256:2 \\\n    --hash=sha256:3\n',
    }


def test_a_requirement_goes_to_the_first_part_and_an_empty_part_is_refused() -> None:
    assert "torch==2" not in parts("all.txt", REQUIREMENTS, {"a": "torch.*", "b": "nvidia-.*"})["b"]
    with pytest.raises(ValueError, match="no requirement like triton"):
        parts("all.txt", REQUIREMENTS, {"a": "triton"})


def test_the_engines_recipe_installs_each_part_and_all_of_it_in_the_end() -> None:
    sources = [part.source for part, _ in images.IMAGES["engine"].recipe]
    assert {*LAYERS} == {source for source in sources if source.startswith("requirements/engine-")}
    assert sources[-2:] == ["requirements/engine.txt", "engine/octavo_engine"]


def test_an_archive_goes_from_one_program_to_the_next_and_each_may_fail() -> None:
    shell.piped(["printf", "archive"], ["grep", "-q", "^archive$"], 30)
    # More than a pipe holds, to one that does not read it.
    with pytest.raises(CommandError, match="false failed"):
        shell.piped(["head", "-c", "9000000", "/dev/zero"], ["false"], 30)
    with pytest.raises(CommandError, match=r"sh -c .* ended with 3"):
        shell.piped(["sh", "-c", "exit 3"], ["cat"], 30)
    for missing in (["absent-program"], ["cat"]), (["echo"], ["absent-program"]):
        with pytest.raises(CommandError, match="absent-program is not installed"):
            shell.piped(*missing, 30)
