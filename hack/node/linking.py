"""From the builder's store into the node's without a copy: both keep a layer as a folder, which only ever is read.

An import would pack a layer, store it packed, and unpack it again: gigabytes three times over. The folder's files get a
second name instead, so that a layer takes its room once, until neither store has it.
"""

from __future__ import annotations

from pathlib import Path

from node import runtime
from node.config import Settings
from node.layers import Built, Layer
from node.shell import run

_UNFINISHED = "octavo-linking"
_LINK_TIMEOUT = 600.0


def link(settings: Settings, reference: str, image: Built) -> None:
    """Give the node an image that the builder has. One at a time, as long as the builder's store stays as it is."""
    there = runtime.snapshots(settings)
    if _UNFINISHED in there:
        runtime.remove_snapshot(settings, _UNFINISHED)
    try:
        for layer in image.layers:
            if layer.chain not in there:
                _link(settings, layer)
        runtime.import_documents(settings, reference, image.manifest, image.config)
    finally:
        # From now on the image alone holds them. Also those that an earlier attempt has held and not let go.
        there = runtime.snapshots(settings)
        for layer in image.layers:
            if layer.chain in there:
                runtime.release_snapshot(settings, layer.chain)


def _link(settings: Settings, layer: Layer) -> None:
    target = runtime.prepare_snapshot(settings, _UNFINISHED, layer.parent)
    # With owners, times and attributes, an overlay's own among them; the folder's own, too, hence the dot.
    copy = ("cp", "--archive", _way(layer.folder, target), f"{layer.folder}/.", target)
    run([*_apart(layer.folder.parents[1]), *copy], timeout=_LINK_TIMEOUT)
    runtime.commit_snapshot(settings, _UNFINISHED, layer.chain)


def _apart(overlay: Path) -> list[str]:
    """What a command is begun with that shall not meet a mount on the builder's folder of layers.

    Buildah mounts that folder on itself whenever it is asked something, and no file has names on both sides of a mount.
    """
    unmount = 'while umount --lazy "$0" 2>/dev/null; do :; done; exec "$@"'
    return ["unshare", "--mount", "sh", "-c", unmount, str(overlay)]


def _way(source: Path, target: Path) -> str:
    """A file has all its names on one file system; elsewhere it is copied."""
    return "--link" if source.stat().st_dev == target.stat().st_dev else "--reflink=auto"
