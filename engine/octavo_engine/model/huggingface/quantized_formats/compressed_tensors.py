"""The format pack-quantized of compressed-tensors (https://github.com/vllm-project/compressed-tensors).

Codes are signed, and stored with `2 ** (bits - 1)` added to make them positive; so are packed zero points.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from octavo_engine.errors import CheckpointInvalid
from octavo_engine.kernels.quantized import QuantizedMatrix
from octavo_engine.model.huggingface.quantized_formats.codes import (
    Groups,
    from_words,
    matrix_of_words,
    middle,
    order_of,
)
from octavo_engine.model.tensors.packed_tensors import Shape, words_for
from octavo_engine.model.values.quantization import Scheme


def read(tensors: Mapping[str, Tensor], shape: Shape, scheme: Scheme) -> QuantizedMatrix:
    """weight_packed `[out, in * bits / 32]`, weight_scale `[out, groups]`, weight_shape, and what else there is."""
    if tuple(tensors["weight_shape"].tolist()) != shape:
        told = tensors["weight_shape"].tolist()
        raise CheckpointInvalid(f"its weight_shape is {told}; the config says {list(shape)}")
    scales = tensors["weight_scale"]
    zeros = _zero_points(tensors.get("weight_zero_point"), scales, scheme)
    order = order_of(tensors.get("weight_g_idx"), scheme)
    return matrix_of_words(tensors["weight_packed"], shape[1], Groups(scales, zeros, order), scheme)


def _zero_points(stored: Tensor | None, scales: Tensor, scheme: Scheme) -> Tensor:
    """`[out, groups]`, from zero points packed along the outputs, or older ones in a signed byte each."""
    if stored is None:
        return middle(scales, scheme)
    in_bytes = stored.dtype == torch.int8
    wanted = tuple(scales.shape) if in_bytes else (words_for(len(scales), scheme.bits), scales.shape[1])
    if tuple(stored.shape) != wanted:
        raise CheckpointInvalid(
            f"its weight_zero_point has the shape {list(stored.shape)}; as {stored.dtype} it is {list(wanted)}"
        )
    if in_bytes:
        return stored.float() + (1 << (scheme.bits - 1))
    return from_words(stored.t(), scheme.bits, len(scales)).t()
