"""Tensors of a safetensors checkpoint: one file, or several named by an index. Files are mapped, never unpickled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from octavo_engine.errors import CheckpointInvalid, ModelUnsupported
from octavo_engine.model.config_json import read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
BYTES_PER_ELEMENT = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}


class SafetensorsSource:
    """A TensorSource over a directory."""

    def __init__(self, directory: Path) -> None:
        self._files: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._sizes: dict[str, int] = {}
        files, index = checkpoint_files(directory)
        check_links(directory, files)
        for path in files:
            self._add(path, index)
        for name, file in index.items():
            if name not in self._shapes:
                raise CheckpointInvalid(f"tensor {name} is missing from {file}, where the index places it")

    def _add(self, path: Path, index: Mapping[str, str]) -> None:
        opened = open_safetensors(path)
        for name in opened.keys():  # noqa: SIM118 - not a dict
            if index and index.get(name) != path.name:
                raise CheckpointInvalid(f"tensor {name} is in {path.name}, but the index places it elsewhere")
            entry = opened.get_slice(name)
            kind = entry.get_dtype()
            if kind not in BYTES_PER_ELEMENT:
                supported = ", ".join(BYTES_PER_ELEMENT)
                raise ModelUnsupported(f"tensor {name} is stored as {kind}; supported are {supported}")
            self._files[name] = opened
            self._shapes[name] = tuple(entry.get_shape())
            self._sizes[name] = math.prod(self._shapes[name]) * BYTES_PER_ELEMENT[kind]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return self._shapes

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bytes of every tensor."""
        return self._sizes

    def read(self, name: str, dtype: torch.dtype) -> Tensor:  # noqa: ARG002 - copying it converts it
        """The tensor as it is stored, backed by the file."""
        try:
            tensor: Tensor = self._files[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointInvalid(f"tensor {name} cannot be read: {error}") from None
        return tensor


def open_safetensors(path: Path) -> Any:
    """Map a file and check its header; raises CheckpointInvalid naming it."""
    try:
        return safe_open(str(path), framework="pt")
    except FileNotFoundError:
        raise CheckpointInvalid(f"{path.name} is named by the index, but it is missing") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointInvalid(f"{path.name} is damaged: {error}") from None


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
            _check_entry(name, file)
        return [directory / file for file in sorted(set(weight_map.values()))], weight_map
    if (directory / SINGLE).is_file():
        return [directory / SINGLE], {}
    files = sorted(directory.glob("*.safetensors"))
    if len(files) != 1:
        raise CheckpointInvalid(f"{len(files)} .safetensors files, but neither {SINGLE} nor {INDEX}")
    return files, {}


def _check_entry(name: str, file: object) -> None:
    """An index names files beside itself; anything else could read what the model's owner may not."""
    if not isinstance(file, str) or PurePosixPath(file).name != file or not file.endswith(".safetensors"):
        raise CheckpointInvalid(
            f"{INDEX}: {name} is placed in {str(file)[:80]!r}, which is not a file beside the index"
        )
