"""The node's image store: what containerd holds, and bringing images into it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from node import archives, binaries, config, prerequisites, programs
from node.config import Settings
from node.shell import piped, run
from node.steps import step

_NOBODY = "65532:65532"
_IMPORT_TIMEOUT = 600.0
# What containerd's client gives a layer that is made by hand, so that it outlives the moment.
_HELD = "containerd.io/gc.root"


def ensure_own_images(settings: Settings) -> None:
    """Make and import the images the node itself runs, where they are missing."""
    images = {
        config.PAUSE_IMAGE: binaries.path(settings, programs.PAUSE),
        config.TOOLBOX_IMAGE: prerequisites.unpacked(settings, "busybox"),
        config.COREDNS_IMAGE: binaries.path(settings, programs.COREDNS),
    }
    for reference, program in images.items():
        ensure_program_image(settings, reference, program)


def ensure_program_image(settings: Settings, reference: str, program: Path, folder: str = "") -> None:
    """An image that holds one static program, made where the node has none of that name."""
    if reference not in references(settings):
        with step(f"import image {reference}"):
            ctr(settings, "images", "import", "-", stdin=archives.program_image(reference, program, _NOBODY, folder))


def references(settings: Settings) -> set[str]:
    """Names of the images the node has."""
    return set(_images(settings))


def in_use(settings: Settings) -> set[str]:
    """Names of the images that containers of the node were made from."""
    lines = ctr(settings, "containers", "list").splitlines()[1:]
    return {line.split()[1] for line in lines}


def remove(settings: Settings, names: Collection[str]) -> None:
    """Remove images, and before it returns what nothing else holds; layers that others share stay."""
    doomed = and_aliases(_images(settings), names)
    if doomed:
        ctr(settings, "images", "remove", "--sync", *doomed)


def and_aliases(images: Mapping[str, str], names: Collection[str]) -> list[str]:
    """Of images by name, each with its manifest's digest: those of `names`, and aliases of which no name would stay.

    For the kubelet containerd gives each image a second name, by its digest, that holds everything as the first does.
    """
    stay = {digest for name, digest in images.items() if not _is_alias(name) and name not in names}
    aliases = [name for name, digest in images.items() if _is_alias(name) and digest not in stay]
    return sorted({name for name in names if name in images}.union(aliases))


def _is_alias(name: str) -> bool:
    return name.startswith("sha256:")


def _images(settings: Settings) -> dict[str, str]:
    """Digests of manifests by the images' names."""
    rows = (line.split() for line in ctr(settings, "images", "list").splitlines()[1:])
    return {row[0]: row[2] for row in rows}


def import_documents(settings: Settings, reference: str, manifest: bytes, image: bytes) -> None:
    """Name an image whose layers are there unpacked: its documents are all that is missing."""
    ctr(settings, "images", "import", "-", stdin=archives.archive(reference, manifest, (image,)))


def import_from(settings: Settings, source: Sequence[str]) -> None:
    """Import the archive that a command writes, as it comes."""
    piped(source, [*_ctr(settings), "images", "import", "-"], _IMPORT_TIMEOUT)


def leases(settings: Settings) -> dict[str, datetime]:
    """When each import that is at work, or was killed, began; for a day it holds what it had stored so far."""
    rows = (line.split() for line in ctr(settings, "leases", "list").splitlines()[1:])
    return {row[0]: datetime.fromisoformat(row[1]) for row in rows}


def collect(settings: Settings, leases: Collection[str]) -> None:
    """Remove, before it returns, all that nothing holds but these leases, such as layers whose last container has gone.

    By itself containerd does so after a hundred changes. The end of a lease, here of one for nothing else, asks for it.
    """
    own = ctr(settings, "leases", "create").strip()
    ctr(settings, "leases", "delete", "--sync", own, *leases)


def snapshots(settings: Settings) -> set[str]:
    """Unpacked layers by name, and the root folders of containers."""
    return {line.split()[0] for line in ctr(settings, "snapshots", "list").splitlines()[1:]}


def prepare_snapshot(settings: Settings, name: str, parent: str) -> Path:
    """Begin a layer upon `parent`, none with ""; returns the folder where its files go."""
    (mount,) = json.loads(ctr(settings, "snapshots", "prepare", "--mounts", name, *filter(None, (parent,))))
    upper = [option.removeprefix("upperdir=") for option in mount["Options"] if option.startswith("upperdir=")]
    return Path(*upper) if upper else Path(mount["Source"])


def commit_snapshot(settings: Settings, name: str, chain: str) -> None:
    """End a layer: from now on it only is read. It stays until it is released."""
    ctr(settings, "snapshots", "commit", chain, name)


def release_snapshot(settings: Settings, chain: str) -> None:
    """Leave a layer to the images that have it."""
    ctr(settings, "snapshots", "label", chain, f"{_HELD}=")


def remove_snapshot(settings: Settings, name: str) -> None:
    """Remove one that nothing stands upon."""
    ctr(settings, "snapshots", "remove", name)


def ctr(settings: Settings, *arguments: str, stdin: bytes | None = None) -> str:
    """Run containerd's own client in the namespace where the kubelet looks."""
    return run([*_ctr(settings), *arguments], stdin=stdin, timeout=_IMPORT_TIMEOUT)


def _ctr(settings: Settings) -> list[str]:
    program = prerequisites.unpacked(settings, "containerd").with_name("ctr")
    return [str(program), "--address", str(settings.containerd_socket), "--namespace", "k8s.io"]
