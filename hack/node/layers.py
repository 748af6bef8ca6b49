"""One image in two stores: the builder's folders of its layers, and the names under which the node keeps its own.

Knows documents, neither programs nor files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.shell import NodeError

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Layer:
    """A layer upon those below it: `chain` names them all together, `parent` those below, "" for none.

    `folder` holds its files as an overlay's lower directory has them.
    """

    chain: str
    parent: str
    folder: Path


@dataclass(frozen=True)
class Built:
    """An image of the builder's: its documents to the byte, and its layers, the lowest first."""

    manifest: bytes
    config: bytes
    layers: tuple[Layer, ...]


def built(overlay: Path, image: Document, images: Iterable[Document], layers: Iterable[Document]) -> Built:
    """Find an image's layers in the builder's store.

    `image` is what `buildah inspect` says of it, `images` and `layers` are the store's own lists; each layer has a
    folder in `overlay`. Raises NodeError when the store's layers are not those of the image.
    """
    digests: list[str] = json.loads(image["Config"])["rootfs"]["diff_ids"]
    top = next((item["layer"] for item in images if item["id"] == image["FromImageID"]), "")
    stacked = _stack(top, {item["id"]: item for item in layers})
    if [item.get("diff-digest") for item in stacked] != digests:
        raise NodeError(f"the builder's store in {overlay} is not as expected: hack/cluster prune --all empties it")
    names = chains(digests)
    folders = [overlay / item["id"] / "diff" for item in stacked]
    found = tuple(map(Layer, names, ["", *names], folders))
    return Built(image["Manifest"].encode(), image["Config"].encode(), found)


def chains(digests: Sequence[str]) -> list[str]:
    """The name of each layer with all below it, as the OCI image specification defines it (ChainID)."""
    names: list[str] = []
    for digest in digests:
        named = f"sha256:{hashlib.sha256(f'{names[-1]} {digest}'.encode()).hexdigest()}" if names else digest
        names.append(named)
    return names


def _stack(top: str, known: Mapping[str, Document]) -> list[Document]:
    """A layer and those below it, the lowest first."""
    found: list[Document] = []
    while top in known:
        found.append(known[top])
        top = known[top].get("parent", "")
    return found[::-1]
