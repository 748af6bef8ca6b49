"""Which tensors hold a quantized weight, under which names and in which shapes, and what it takes in memory. No torch.

Where several shapes are known for one tensor, versions of the tools that write it differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from octavo_engine.model.values.quantization import Packing, Scheme

Shape = tuple[int, ...]
WORD = 32  # bits of what codes are packed into
GEMV_MULTIPLES = MappingProxyType({64: 2, 32: 4})  # inputs of a group -> words of zero points come in so many


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the checkpoint."""

    shapes: tuple[Shape, ...]  # any of these
    needed: bool = True


Tensors = dict[str, Stored]


def tensors_of(module: str, shape: tuple[int, int], scheme: Scheme) -> Tensors:
    """The tensors of a module's weight `[out, in]`, by name."""
    layout = LAYOUTS[scheme.packing]
    return {f"{module}.{name}": stored for name, stored in layout(*shape, scheme).items()}


def words_for(codes: int, bits: int) -> int:
    """Words that so many codes fill, side by side without gaps."""
    return -(-codes * bits // WORD)


def gemv_words(inputs: int, scheme: Scheme) -> int:
    """Words of zero points of one output, which AWQ's gemv kernels want in certain multiples."""
    multiple = GEMV_MULTIPLES.get(scheme.group_of(inputs), 1)
    words = words_for(scheme.groups_of(inputs), scheme.bits)
    return -(-words // multiple) * multiple


def resident_bytes(shape: tuple[int, int], scheme: Scheme) -> int:
    """Bytes in memory as a QuantizedMatrix: codes, a float32 scale and offset for each group, the order of inputs.

    GGUF's types are packed narrower.
    """
    outputs, inputs = shape
    order = 8 * inputs if scheme.by_activation else 0
    beside = BESIDE_CODES.get(scheme.packing, 8)
    return outputs * (inputs * scheme.code_bits(inputs) // 8 + beside * scheme.groups_of(inputs)) + order


def least_bytes(shape: tuple[int, int], scheme: Scheme) -> int:
    """Bytes that a product reads at least: codes as they are stored, 16 bits of scale and a code for each group."""
    outputs, inputs = shape
    zero = scheme.bits if scheme.zero_points else 0
    return outputs * (inputs * scheme.bits + scheme.groups_of(inputs) * (16 + zero)) // 8


def _gptq(outputs: int, inputs: int, scheme: Scheme) -> Tensors:
    groups = scheme.groups_of(inputs)
    return {
        "qweight": Stored(((words_for(inputs, scheme.bits), outputs),)),
        "qzeros": Stored(((groups, words_for(outputs, scheme.bits)),)),
        "scales": Stored(((groups, outputs),)),
        "g_idx": Stored(((inputs,),), needed=scheme.by_activation),
    }


def _awq_gemm(outputs: int, inputs: int, scheme: Scheme) -> Tensors:
    groups, words = scheme.groups_of(inputs), words_for(outputs, scheme.bits)
    return {
        "qweight": Stored(((inputs, words),)),
        "qzeros": Stored(((groups, words),), needed=scheme.zero_points),
        "scales": Stored(((groups, outputs),)),
    }


def _awq_gemv(outputs: int, inputs: int, scheme: Scheme) -> Tensors:
    words = gemv_words(inputs, scheme)
    return {
        "qweight": Stored(((outputs, words_for(inputs, scheme.bits)),)),
        "qzeros": Stored(((outputs, words),), needed=scheme.zero_points),
        "scales": Stored(((outputs, words * WORD // scheme.bits),)),
    }


def _compressed_tensors(outputs: int, inputs: int, scheme: Scheme) -> Tensors:
    groups = scheme.groups_of(inputs)
    zero_points = ((words_for(outputs, scheme.bits), groups), (outputs, groups))  # packed, or older: one a byte
    return {
        "weight_packed": Stored(((outputs, words_for(inputs, scheme.bits)),)),
        "weight_scale": Stored(((outputs, groups),)),
        "weight_zero_point": Stored(zero_points, needed=scheme.zero_points),
        "weight_g_idx": Stored(((inputs,),), needed=scheme.by_activation),
        "weight_shape": Stored(((2,),)),
    }


def _gguf(outputs: int, inputs: int, _scheme: Scheme) -> Tensors:
    return {"weight": Stored(((outputs, inputs),))}


# Bytes of a group of a GGUF type in memory: scales are float16, or products of one that take float32.
BESIDE_CODES: Mapping[Packing, int] = MappingProxyType(
    {Packing.Q4_0: 2, Packing.Q4_1: 4, Packing.Q4_K: 8, Packing.Q6_K: 4, Packing.Q8_0: 2}
)

LAYOUTS: Mapping[Packing, Callable[[int, int, Scheme], Tensors]] = MappingProxyType(
    {
        Packing.GPTQ: _gptq,
        Packing.GPTQ_V2: _gptq,
        Packing.AWQ_GEMM: _awq_gemm,
        Packing.AWQ_GEMV: _awq_gemv,
        Packing.COMPRESSED_TENSORS: _compressed_tensors,
        **dict.fromkeys(BESIDE_CODES, _gguf),
    }
)
