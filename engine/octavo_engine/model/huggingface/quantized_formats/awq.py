"""AWQ's two packings of 4-bit codes, as AutoAWQ (https://github.com/casper-hansen/AutoAWQ) writes them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from octavo_engine.kernels.quantized import QuantizedMatrix
from octavo_engine.model.huggingface.quantized_formats.codes import Groups, from_words, matrix, matrix_of_words, middle
from octavo_engine.model.tensors.packed_tensors import Shape
from octavo_engine.model.values.quantization import Scheme

# A word of gemm has eight outputs of one input, the even ones first: this is where each of them is.
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def read_gemm(tensors: Mapping[str, Tensor], shape: Shape, scheme: Scheme) -> QuantizedMatrix:
    """qweight `[in, out / 8]`, qzeros `[groups, out / 8]`, scales `[groups, out]`."""
    scales = tensors["scales"].t()
    zeros = _interleaved(tensors["qzeros"], shape[0]) if "qzeros" in tensors else middle(scales, scheme)
    return matrix(_interleaved(tensors["qweight"], shape[0]), Groups(scales, zeros), scheme)


def read_gemv(tensors: Mapping[str, Tensor], shape: Shape, scheme: Scheme) -> QuantizedMatrix:
    """qweight `[out, in / 8]`; qzeros and scales by output, with more columns than there are groups."""
    groups = scheme.groups_of(shape[1])
    scales = tensors["scales"][:, :groups]
    zeros = from_words(tensors["qzeros"], scheme.bits, groups) if "qzeros" in tensors else middle(scales, scheme)
    return matrix_of_words(tensors["qweight"], shape[1], Groups(scales, zeros), scheme)


def _interleaved(words: Tensor, outputs: int) -> Tensor:
    """int32 `[rows, out / 8]` -> uint8 `[out, rows]`."""
    codes = from_words(words, 4, 8 * words.shape[1]).view(len(words), -1, 8)
    return codes[:, :, list(PLACES)].flatten(1)[:, :outputs].t()
