"""Tensors of a safetensors checkpoint: one file, or several named by an index. Files are mapped, never unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from octavo_engine.errors import CheckpointInvalid
from octavo_engine.kernels.quantized import QuantizedMatrix
from octavo_engine.model.huggingface.checkpoint_files import check_links, checkpoint_files, map_file
from octavo_engine.model.huggingface.quantized_formats import read_matrix
from octavo_engine.model.huggingface.safetensors_header import join_headers, read_header
from octavo_engine.model.tensors.parameters import EMBEDDING, HEAD, Part


class SafetensorsSource:
    """A TensorSource over a directory."""

    def __init__(self, directory: Path) -> None:
        files, index = checkpoint_files(directory)
        check_links(directory, files)
        headers = {path.name: read_header(path.name, map_file(path)) for path in files}
        opened = {path.name: open_safetensors(path) for path in files}
        self._tensors = join_headers(headers, index)
        self._files = {name: opened[file] for file, header in headers.items() for name in header}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bytes of every tensor."""
        return {name: tensor.size for name, tensor in self._tensors.items()}

    def read(self, name: str, dtype: torch.dtype) -> Tensor:  # noqa: ARG002 - copying it converts it
        """The tensor as it is stored, backed by the file."""
        try:
            tensor: Tensor = self._files[name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointInvalid(f"tensor {name} cannot be read: {error}") from None
        return tensor

    def quantized(self, part: Part) -> QuantizedMatrix | None:
        """The weight in few bits, where its config says that it is stored so."""
        if part.scheme is None:
            return None
        stored = [name for name in part.tensors if name in self._tensors]
        tensors = {name.rpartition(".")[2]: self.read(name, torch.float32) for name in stored}
        try:
            return read_matrix(tensors, part.shape, part.scheme)
        except CheckpointInvalid as error:
            raise CheckpointInvalid(f"the quantized weight of {part.module} cannot be read: {error}") from None


def check_tied_head(source: SafetensorsSource) -> None:
    """Raise CheckpointInvalid where a head is stored beside the embedding that it is said to be, and is another."""
    if HEAD not in source.shapes or EMBEDDING not in source.shapes:
        return
    head, embedding = (source.read(name, torch.float32) for name in (HEAD, EMBEDDING))
    if head.dtype != embedding.dtype or not torch.equal(head, embedding):
        raise CheckpointInvalid(
            f"tensor {HEAD} is not {EMBEDDING}, though the config says that they are one (tie_word_embeddings)"
        )


def open_safetensors(path: Path) -> Any:
    """Open a file for reading tensors; raises CheckpointInvalid naming it."""
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointInvalid(f"{path.name} is damaged: {error}") from None
