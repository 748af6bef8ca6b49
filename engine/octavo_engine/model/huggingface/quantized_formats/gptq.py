"""GPTQ's packing of codes of 2, 3, 4 and 8 bits, as AutoGPTQ and GPTQModel write it.

Format: https://github.com/ModelCloud/GPTQModel. Words run along the inputs. Zero points are stored less one in the
first format, and as they are in the second; some checkpoints that say `gptq` have them as they are nevertheless. Where
all are the middle, as `sym` says, both are known.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from octavo_engine.kernels.quantized import QuantizedMatrix
from octavo_engine.model.huggingface.quantized_formats.codes import (
    Groups,
    from_words,
    matrix_of_words,
    middle,
    order_of,
)
from octavo_engine.model.tensors.packed_tensors import Shape
from octavo_engine.model.values.quantization import Packing, Scheme

# A one in every field of a word. Tools take it from whole words: where a field was zero it borrows from the next, and
# only whole words give that back.
ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}


def read(tensors: Mapping[str, Tensor], shape: Shape, scheme: Scheme) -> QuantizedMatrix:
    """qweight `[in * bits / 32, out]`, qzeros `[groups, out * bits / 32]`, scales `[groups, out]`, g_idx `[in]`."""
    outputs, inputs = shape
    scales = tensors["scales"].t()
    zeros = _zero_points(tensors["qzeros"], outputs, scheme).t()
    if not scheme.zero_points and _known(tensors["qzeros"], outputs, scheme):
        zeros = middle(scales, scheme)
    order = order_of(tensors.get("g_idx"), scheme)
    return matrix_of_words(tensors["qweight"].t(), inputs, Groups(scales, zeros, order), scheme)


def _known(words: Tensor, outputs: int, scheme: Scheme) -> bool:
    """True if the zero points of symmetric codes are the middle, in either format."""
    if scheme.bits == 3 and scheme.packing is Packing.GPTQ:
        return True  # tools do not agree in how they take one from it
    stored, most = from_words(words, scheme.bits, outputs), 1 << (scheme.bits - 1)
    return bool((stored == most).all()) or bool((stored == most - 1).all())


def _zero_points(words: Tensor, outputs: int, scheme: Scheme) -> Tensor:
    """`[groups, out]`."""
    if scheme.packing is Packing.GPTQ_V2:
        return from_words(words, scheme.bits, outputs)
    if scheme.bits == 3:
        return from_words(words, 3, outputs) + 1
    return from_words(words + ONES[scheme.bits], scheme.bits, outputs)
