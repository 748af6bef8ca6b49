"""Tensors of a GGUF file under Hugging Face's names: expanded as they are read, or kept in few bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize as library_dequantize
from torch import Tensor

from octavo_engine.kernels import dequant
from octavo_engine.kernels.quantized import QuantizedMatrix
from octavo_engine.model.gguf.file import GgufFile
from octavo_engine.model.gguf.tensors import KINDS, block_size, stored_bytes, tensors_of
from octavo_engine.model.tensors.parameters import Part
from octavo_engine.model.values.architecture import ModelSpec, family_of

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SLICE_WEIGHTS = 1 << 17


class GgufSource:
    """A TensorSource over one GGUF file."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        self._file, self._spec = file, spec
        self._tensors = tensors_of(file)
        self._sizes = {name: stored_bytes(file, info) for name, info in self._tensors.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: info.shape for name, info in self._tensors.items()}

    @property
    def sizes(self) -> Mapping[str, int]:
        """The stored bytes of every tensor."""
        return self._sizes

    def quantized(self, part: Part) -> QuantizedMatrix | None:
        """The weight as its blocks say, in Hugging Face's row order; None where the spec wants it expanded."""
        if part.scheme is None:
            return None
        kind = KINDS[self._tensors[part.name].kind]
        blocks = self._raw(part.name).view(-1, block_size(kind)[1])
        matrix = dequant.BY_NAME[kind.name].matrix(blocks, part.shape[0])
        heads = self._permuted_heads(part.name)
        return matrix if heads is None else matrix.rows(unpermute(torch.arange(part.shape[0]), heads))

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor in `dtype`, dequantized in float32, in Hugging Face's row order."""
        info, heads = self._tensors[name], self._permuted_heads(name)
        tensor = decode(self._raw(name), KINDS[info.kind], dtype).view(info.shape)
        return tensor if heads is None else unpermute(tensor, heads)

    def _raw(self, name: str) -> Tensor:
        """The stored bytes, uint8 `[bytes]`."""
        offset = self._tensors[name].offset
        return torch.frombuffer(self._file.data, dtype=torch.uint8, count=self._sizes[name], offset=offset)

    def _permuted_heads(self, name: str) -> int | None:
        """The heads whose rows llama.cpp has in another order; None where it leaves them."""
        if not family_of(self._spec.architecture).gguf_permuted:
            return None
        heads = {".q_proj.": self._spec.heads, ".k_proj.": self._spec.kv_heads}
        return next((count for part, count in heads.items() if part in name), None)


def decode(raw: Tensor, kind: GGMLQuantizationType, dtype: torch.dtype) -> Tensor:
    """Stored bytes, uint8 `[bytes]`, as `dtype` `[weights]`; in slices whose float32 values stay in cache."""
    if kind.name in PLAIN:
        return raw.view(PLAIN[kind.name]).to(dtype)
    elements, size = block_size(kind)
    blocks = raw.view(-1, size)
    weights = torch.empty(len(blocks), elements, dtype=dtype)
    step = SLICE_WEIGHTS // elements
    for start in range(0, len(blocks), step):
        weights[start : start + step] = _dequantize(blocks[start : start + step], kind)
    return weights.flatten()


def _dequantize(blocks: Tensor, kind: GGMLQuantizationType) -> Tensor:
    fast = dequant.BY_NAME.get(kind.name)
    return fast.expanded(blocks) if fast else torch.from_numpy(library_dequantize(blocks.numpy(), kind))


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's row order in each head: it pairs neighbours (2i, 2i+1), we pair halves (i, i + dim/2)."""
    return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).flatten(0, 2)
