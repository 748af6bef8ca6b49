"""A checkpoint's tensors as the parameters of a decoder, read when asked for: stacked, or merged if quantized."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from octavo_engine.errors import CheckpointInvalid
from octavo_engine.kernels.quantized import QuantizedMatrix, stackable, stacked
from octavo_engine.kernels.side_by_side import Weight
from octavo_engine.model.tensors.parameters import Parameters, Part, spare_biases
from octavo_engine.model.weights.build import TensorSource


class LazyWeights(Mapping[str, Tensor]):
    """The parameters of a checkpoint. Each look-up reads one anew, and keeps nothing of it; from any thread."""

    def __init__(self, parameters: Parameters, source: TensorSource, dtype: torch.dtype, device: torch.device) -> None:
        self._parameters, self._source, self._dtype, self._device = parameters, source, dtype, device
        self._read: list[int] = []  # bytes of each tensor that was read; appending is atomic

    def __getitem__(self, name: str) -> Tensor:
        """Every part in its rows; raises KeyError, or CheckpointInvalid for a tensor that cannot be read."""
        return self._plain(self._parameters[name])

    def matrix(self, name: str) -> list[Weight]:
        """A product's weight: all parts in one, or as few as can be where some are quantized, or differently so."""
        parts = self._parameters[name]
        found = [self._few_bits(part) for part in parts]
        if all(few is None for few in found):
            return [self._plain(parts)]
        return merged([self._plain((part,)) if few is None else few for part, few in zip(parts, found, strict=True)])

    def _few_bits(self, part: Part) -> Weight | None:
        """What is wanted of a weight that the source keeps quantized."""
        found = self._source.quantized(part)
        if found is None:
            return None
        self._read.append(self.stored_bytes(part))
        return piece_of(found, part, self._dtype).to(self._device)

    def _plain(self, parts: Sequence[Part]) -> Tensor:
        rows = [part.wanted[0] for part in parts]
        weight = torch.empty((sum(rows), *parts[0].wanted[1:]), dtype=self._dtype, device=self._device)
        for part, place in zip(parts, torch.split(weight, rows), strict=True):
            place.copy_(self._source.read(part.name, self._dtype)[part.index])
            self._read.append(self.stored_bytes(part))
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    @property
    def dtype(self) -> torch.dtype:
        """Of all that is plain."""
        return self._dtype

    def stored_bytes(self, part: Part) -> int:
        """Bytes in the checkpoint of what is wanted."""
        whole = sum(self._source.sizes.get(name, 0) for name in part.tensors)
        return whole * math.prod(part.wanted) // math.prod(part.shape)

    @property
    def read_bytes(self) -> int:
        """Bytes of the checkpoint that were read so far."""
        return sum(self._read)


def piece_of(matrix: QuantizedMatrix, part: Part, dtype: torch.dtype) -> Weight:
    """What is wanted of the part. Some inputs of groups that are in no order of theirs are no such matrix: expanded."""
    if not part.piece:
        return matrix
    rows, columns = part.piece
    matrix = matrix.rows(slice(rows.start, rows.stop))
    if len(columns) == matrix.shape[1]:
        return matrix
    if matrix.order is None and (matrix.bits == 8 or (columns.start | len(columns)) % 2 == 0):
        return matrix.columns(columns)
    return matrix.dequantized(dtype)[:, columns.start : columns.stop].contiguous()


def merged(parts: Sequence[Weight]) -> list[Weight]:
    """Weights in the same order of outputs, neighbours in one where they are stored alike."""
    runs: list[list[Weight]] = []
    for part in parts:
        if runs and _alike(runs[-1][0], part):
            runs[-1].append(part)
        else:
            runs.append([part])
    return [_one(run) for run in runs]


def _alike(first: Weight, second: Weight) -> bool:
    if isinstance(first, QuantizedMatrix) and isinstance(second, QuantizedMatrix):
        return stackable(first, second)
    return isinstance(first, Tensor) and isinstance(second, Tensor)


def _one(run: Sequence[Weight]) -> Weight:
    quantized = [part for part in run if isinstance(part, QuantizedMatrix)]
    return stacked(quantized) if quantized else torch.cat([part for part in run if isinstance(part, Tensor)])


def check_spare_biases(parameters: Parameters, source: TensorSource) -> None:
    """Raise CheckpointInvalid for a bias that the model has no place for, unless it is zero."""
    for name in sorted(spare_biases(parameters, source.shapes)):
        if bool(source.read(name, torch.float32).any()):
            raise CheckpointInvalid(f"tensor {name} is in the checkpoint, but its config has no place for it")
