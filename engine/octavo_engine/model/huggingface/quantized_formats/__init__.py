"""Quantized weights as checkpoints store them, read into the one form that kernels take. Tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

from octavo_engine.kernels.quantized import QuantizedMatrix
from octavo_engine.model.huggingface.quantized_formats import awq, compressed_tensors, gptq
from octavo_engine.model.tensors.packed_tensors import Shape
from octavo_engine.model.values.quantization import Packing, Scheme

Reader = Callable[[Mapping[str, Tensor], Shape, Scheme], QuantizedMatrix]

READERS: Mapping[Packing, Reader] = MappingProxyType(
    {
        Packing.AWQ_GEMM: awq.read_gemm,
        Packing.AWQ_GEMV: awq.read_gemv,
        Packing.GPTQ: gptq.read,
        Packing.GPTQ_V2: gptq.read,
        Packing.COMPRESSED_TENSORS: compressed_tensors.read,
    }
)


def read_matrix(tensors: Mapping[str, Tensor], shape: Shape, scheme: Scheme) -> QuantizedMatrix:
    """The weight `[out, in]` of one module.

    Args:
        tensors: by the last word of their names, in the shapes and types that `packed_tensors` lists.

    Raises CheckpointInvalid, without the module's name, where values contradict each other.
    """
    return READERS[scheme.packing](tensors, shape, scheme)
