"""Images in two stores that have their layers' files once: which layers there are, and how the node gets them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from node import (
    layers,
    linking,
    runtime,
    shell,
)
from node.config import Settings
from node.shell import CommandError, NodeError

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
