"""Which files of a directory are its safetensors checkpoint. Names and links are checked: it stays at home."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from octavo_engine.errors import CheckpointInvalid, ModelNotFound
from octavo_engine.model.fields import read_json
from octavo_engine.model.file_bytes import FileBytes

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def check_links(directory: Path, files: Iterable[Path]) -> None:
    """Links may lead within the directory, and to the `blobs` beside the snapshots of a Hugging Face cache."""
    home = directory.resolve()
    for path in files:
        target = path.resolve()
        if not (target.is_relative_to(home) or target.is_relative_to(home.parent.parent / "blobs")):
            raise CheckpointInvalid(f"{path.name} is a link that leads out of the checkpoint's directory")


def checkpoint_files(directory: Path) -> tuple[list[Path], dict[str, str]]:
    """The files that hold the weights, and the index's `tensor -> file` (empty without an index).

    An index whose files are gone does not count beside a single file: transformers leaves it behind when it writes one.
    """
    single = (directory / SINGLE).is_file()
    if (directory / INDEX).is_file():
        weight_map = read_json(directory / INDEX).section("weight_map").values
        check_index(weight_map)
        shards = [directory / file for file in sorted(set(weight_map.values()))]
        if not single or all(shard.is_file() for shard in shards):
            return shards, weight_map
    if single:
        return [directory / SINGLE], {}
    files = sorted(directory.glob("*.safetensors"))
    if len(files) != 1:
        raise CheckpointInvalid(f"{len(files)} .safetensors files, but neither {SINGLE} nor {INDEX}")
    return files, {}


def map_file(path: Path) -> FileBytes:
    """The content of a weight file, mapped; raises CheckpointInvalid, or ModelNotFound where we may not read it."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise CheckpointInvalid(f"{path.name} is named by the index, but it is missing") from None
    except OSError as error:
        raise ModelNotFound(f"{path.name} cannot be read: {error.strerror}") from None
    except ValueError:
        raise CheckpointInvalid(f"{path.name} is damaged: the file is empty") from None


def check_index(weight_map: Mapping[str, object]) -> None:
    """Raise CheckpointInvalid unless an index names files, each beside itself.

    Anything else could read what the model's owner may not.
    """
    if not weight_map:
        raise CheckpointInvalid(f"{INDEX} places no tensor in a file")
    for name, file in weight_map.items():
        if not isinstance(file, str) or PurePosixPath(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointInvalid(
                f"{INDEX}: {name} is placed in {str(file)[:80]!r}, which is not a file beside the index"
            )
