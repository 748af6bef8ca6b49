"""Which files of a directory are its safetensors checkpoint. Names and links are checked: it stays at home."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from octavo_engine.errors import CheckpointInvalid
from octavo_engine.model.fields import read_json
from octavo_engine.model.gguf_file import FileBytes

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def check_links(directory: Path, files: Iterable[Path]) -> None:
    """Links may lead within the directory, and to the `blobs` beside the snapshots of a Hugging Face cache."""
    home = directory.resolve()
    for path in files:
        target = path.resolve()
        if not (target.is_relative_to(home) or target.is_relative_to(home.parent.parent / "blobs")):
            raise CheckpointInvalid(f"{path.name} is a link that leads out of the checkpoint's directory")


def checkpoint_files(directory: Path) -> tuple[list[Path], dict[str, str]]:
    """The files that hold the weights, and the index's `tensor -> file` (empty without an index)."""
    if (directory / INDEX).is_file():
        weight_map = read_json(directory / INDEX).section("weight_map").values
        for name, file in weight_map.items():
            check_entry(name, file)
        return [directory / file for file in sorted(set(weight_map.values()))], weight_map
    if (directory / SINGLE).is_file():
        return [directory / SINGLE], {}
    files = sorted(directory.glob("*.safetensors"))
    if len(files) != 1:
        raise CheckpointInvalid(f"{len(files)} .safetensors files, but neither {SINGLE} nor {INDEX}")
    return files, {}


def map_file(path: Path) -> FileBytes:
    """The content of a weight file, mapped; raises CheckpointInvalid where there is none."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise CheckpointInvalid(f"{path.name} is named by the index, but it is missing") from None
    except ValueError:
        raise CheckpointInvalid(f"{path.name} is damaged: the file is empty") from None


def check_entry(name: str, file: object) -> None:
    """Raise CheckpointInvalid unless an index's entry is sound.

    An index names files beside itself; anything else could read what the model's owner may not.
    """
    if not isinstance(file, str) or PurePosixPath(file).name != file or not file.endswith(".safetensors"):
        raise CheckpointInvalid(
            f"{INDEX}: {name} is placed in {str(file)[:80]!r}, which is not a file beside the index"
        )
