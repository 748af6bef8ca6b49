"""Every layout is read as exactly the numbers that it means, and what contradicts itself is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo_engine.errors import CheckpointInvalid
from octavo_engine.kernels.quantized import QuantizedMatrix, stackable, stacked
from octavo_engine.model.huggingface.quantized_formats import read_matrix
from octavo_engine.model.tensors import packed_tensors
from octavo_engine.model.values.quantization import Packing, Scheme
from quantized_checkpoints import (
    Codes,
    Recipe,
    awq_gemm,
    awq_gemm_without_zeros,
    awq_gemv,
    gptq,
    gptq_v2,
    gptq_without_index,
    pack_quantized,
    pack_quantized_by_activation,
    pack_quantized_bytes,
    pack_quantized_symmetric,
    random_codes,
)

pytestmark = pytest.mark.engine
GPTQ, GPTQ_V2, GEMM, GEMV, PACKED = (
    Packing.GPTQ,
    Packing.GPTQ_V2,
    Packing.AWQ_GEMM,
    Packing.AWQ_GEMV,
    Packing.COMPRESSED_TENSORS,
)
SYMMETRIC, ORDERED = {"symmetric": True}, {"by_activation": True}
BF16, F32 = {"scale_type": torch.bfloat16}, {"scale_type": torch.float32}
# name -> (packing, layout, what the recipe has, inputs)
CASES = {
    "gptq, 2 bits": (GPTQ, gptq, {"bits": 2}, 64),
    "gptq, 3 bits, symmetric": (GPTQ, gptq, {"bits": 3, **SYMMETRIC}, 96),
    "gptq, 4 bits": (GPTQ, gptq, {}, 96),
    "gptq, 4 bits, short last group": (GPTQ, gptq, {"group": 64}, 160),
    "gptq, 4 bits, one group": (GPTQ, gptq, {"group": -1}, 96),
    "gptq, 4 bits, groups of 128": (GPTQ, gptq, {"group": 128, **SYMMETRIC}, 256),
    "gptq, 4 bits, without index": (GPTQ, gptq_without_index, {}, 64),
    "gptq, 4 bits, by activation": (GPTQ, gptq, {**ORDERED}, 128),
    "gptq, 4 bits, by activation, short last group": (GPTQ, gptq, {"group": 64, **ORDERED}, 160),
    "gptq, 8 bits": (GPTQ, gptq, {"bits": 8}, 64),
    "gptq, 8 bits, by activation": (GPTQ, gptq, {"bits": 8, **ORDERED}, 96),
    "gptq_v2, 2 bits, by activation": (GPTQ_V2, gptq_v2, {"bits": 2, **ORDERED}, 96),
    "gptq_v2, 3 bits": (GPTQ_V2, gptq_v2, {"bits": 3}, 96),
    "gptq_v2, 4 bits": (GPTQ_V2, gptq_v2, {**BF16}, 64),
    "gptq_v2, 8 bits": (GPTQ_V2, gptq_v2, {"bits": 8, **SYMMETRIC}, 64),
    "awq gemm": (GEMM, awq_gemm, {}, 96),
    "awq gemm, groups of 128": (GEMM, awq_gemm, {"group": 128}, 256),
    "awq gemm, one group": (GEMM, awq_gemm, {"group": -1}, 48),
    "awq gemm, symmetric without zero points": (GEMM, awq_gemm_without_zeros, {**SYMMETRIC}, 64),
    "awq gemv, groups of 32": (GEMV, awq_gemv, {}, 160),
    "awq gemv, groups of 64": (GEMV, awq_gemv, {"group": 64}, 192),
    "awq gemv, groups of 128": (GEMV, awq_gemv, {"group": 128}, 256),
    "compressed-tensors, 4 bits": (PACKED, pack_quantized, {"group": 16, **BF16}, 80),
    "compressed-tensors, 4 bits, symmetric": (PACKED, pack_quantized_symmetric, {**SYMMETRIC, **F32}, 64),
    "compressed-tensors, 4 bits, by activation": (PACKED, pack_quantized_by_activation, {**SYMMETRIC, **ORDERED}, 96),
    "compressed-tensors, 4 bits, zero points in bytes": (PACKED, pack_quantized_bytes, {}, 64),
    "compressed-tensors, 4 bits, an odd number of inputs": (PACKED, pack_quantized, {"group": -1}, 39),
    "compressed-tensors, 8 bits": (PACKED, pack_quantized, {"bits": 8}, 64),
    "compressed-tensors, 8 bits, by channel": (
        PACKED, pack_quantized_symmetric, {"bits": 8, "group": -1, **SYMMETRIC}, 36
    ),
    "compressed-tensors, 8 bits, zero points in bytes": (PACKED, pack_quantized_bytes, {"bits": 8}, 64),
}  # fmt: skip
OUTPUTS = 40


def scheme_of(packing: Packing, recipe: Recipe) -> Scheme:
    group = None if recipe.group == -1 else recipe.group
    return Scheme(packing, recipe.bits, group, zero_points=not recipe.symmetric, by_activation=recipe.by_activation)


def written(name: str) -> tuple[Codes, dict[str, torch.Tensor], Scheme]:
    packing, layout, fields, inputs = CASES[name]
    recipe = Recipe({}, layout, **fields)
    codes = random_codes(OUTPUTS, inputs, recipe)
    return codes, layout(codes), scheme_of(packing, recipe)


def read(codes: Codes, tensors: dict[str, torch.Tensor], scheme: Scheme) -> QuantizedMatrix:
    return read_matrix(tensors, tuple(codes.codes.shape), scheme)


@pytest.mark.parametrize("name", CASES)
def test_a_layout_is_read_as_the_numbers_that_it_means(name: str) -> None:
    codes, tensors, scheme = written(name)
    matrix = read(codes, tensors, scheme)
    exact = codes.exact()
    if codes.scales.dtype == torch.float32:
        torch.testing.assert_close(matrix.dequantized(), exact, atol=2**-23, rtol=0)
    else:
        assert torch.equal(matrix.dequantized(), exact)  # products of 16-bit scales and codes fit into float32
    assert matrix.shape == exact.shape
    assert matrix.bits == (4 if codes.bits <= 4 and exact.shape[1] % 2 == 0 else 8)
    assert (matrix.order is not None) == scheme.by_activation


@pytest.mark.parametrize("name", CASES)
def test_the_tensors_of_a_layout_are_those_that_are_asked_for(name: str) -> None:
    codes, tensors, scheme = written(name)
    asked = packed_tensors.tensors_of("up", tuple(codes.codes.shape), scheme)
    assert {f"up.{part}" for part in tensors} <= set(asked)
    assert {part for part, stored in asked.items() if stored.needed} <= {f"up.{part}" for part in tensors}
    for part, tensor in tensors.items():
        assert tuple(tensor.shape) in asked[f"up.{part}"].shapes, part


@pytest.mark.parametrize(
    "name", ["compressed-tensors, 4 bits, symmetric", "compressed-tensors, 8 bits", "awq gemv, groups of 32"]
)
def test_a_matrix_is_no_view_of_what_it_was_read_from(name: str) -> None:
    codes, tensors, scheme = written(name)
    matrix, exact = read(codes, tensors, scheme), codes.exact()
    for tensor in tensors.values():
        tensor.zero_()
    torch.testing.assert_close(matrix.dequantized(), exact, atol=2**-23, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_memory_is_as_it_is_counted_before(name: str) -> None:
    codes, tensors, scheme = written(name)
    shape = tuple(codes.codes.shape)
    assert read(codes, tensors, scheme).nbytes == packed_tensors.resident_bytes(shape, scheme)
    assert packed_tensors.least_bytes(shape, scheme) <= sum(tensor.nbytes for tensor in tensors.values())


def test_three_bits_of_the_first_format_have_each_zero_point_less_one() -> None:
    recipe = Recipe({}, gptq, bits=3)
    codes = random_codes(OUTPUTS, 64, recipe)
    codes = replace(codes, zeros=codes.zeros.clamp(min=1))
    assert torch.equal(read(codes, gptq(codes), scheme_of(GPTQ, recipe)).dequantized(), codes.exact())


def test_symmetric_three_bits_are_read_whatever_was_taken_from_their_zero_points() -> None:
    codes, tensors, scheme = written("gptq, 3 bits, symmetric")
    tensors["qzeros"] = torch.randint_like(tensors["qzeros"], 1 << 30)
    assert torch.equal(read(codes, tensors, scheme).dequantized(), codes.exact())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_symmetric_zero_points_in_the_form_of_the_other_format_are_the_middle(bits: int) -> None:
    """Published checkpoints say `gptq`, and have zero points as the second format stores them."""
    recipe = Recipe({}, gptq, bits=bits, symmetric=True)
    codes = random_codes(OUTPUTS, 64, recipe)
    for packing, tensors in ((GPTQ, gptq_v2(codes)), (GPTQ_V2, gptq(codes))):
        assert torch.equal(read(codes, tensors, scheme_of(packing, recipe)).dequantized(), codes.exact())


def test_zero_points_beside_the_middle_are_read_even_if_they_are_said_to_be_symmetric() -> None:
    codes, tensors, scheme = written("gptq, 4 bits")
    assert torch.equal(read(codes, tensors, replace(scheme, zero_points=False)).dequantized(), codes.exact())


def test_an_index_in_order_is_none() -> None:
    codes, tensors, scheme = written("gptq, 4 bits")
    assert read(codes, tensors, scheme).order is None
    assert read(codes, tensors, replace(scheme, by_activation=True)).order is None
    nowhere = tensors | {"g_idx": torch.full_like(tensors["g_idx"], -1)}
    assert read(codes, nowhere, scheme).order is None


@pytest.mark.parametrize("index", [[0] * 96, [0] * 31 + [1] * 33 + [2] * 32, [0] * 32 + [1] * 32 + [3] * 32])
def test_groups_of_other_sizes_are_refused(index: list[int]) -> None:
    codes, tensors, scheme = written("gptq, 4 bits")
    with pytest.raises(CheckpointInvalid, match="not in groups of 32"):
        read(codes, tensors | {"g_idx": torch.tensor(index)}, scheme)


def test_another_shape_than_the_config_says_is_refused() -> None:
    codes, tensors, scheme = written("compressed-tensors, 4 bits")
    with pytest.raises(CheckpointInvalid, match=r"weight_shape is \[40, 72\]"):
        read(codes, tensors | {"weight_shape": torch.tensor([40, 72])}, scheme)


def test_zero_points_of_one_type_in_the_shape_of_another_are_refused() -> None:
    codes, tensors, scheme = written("compressed-tensors, 8 bits")
    swapped = pack_quantized_bytes(codes)["weight_zero_point"].to(torch.int32)
    with pytest.raises(CheckpointInvalid, match="weight_zero_point"):
        read(codes, tensors | {"weight_zero_point": swapped}, scheme)


def matrices(*names: str) -> list[QuantizedMatrix]:
    return [read(*written(name)) for name in names]


def test_matrices_of_the_same_groups_are_stacked() -> None:
    first, second = matrices("gptq, 4 bits", "awq gemm")
    assert stackable(first, second)
    together = stacked([first, second])
    assert torch.equal(together.dequantized(), torch.cat([first.dequantized(), second.dequantized()]))
    assert torch.equal(together.rows(slice(30, 50)).dequantized(), together.dequantized()[30:50])


@pytest.mark.parametrize(
    "other",
    ["gptq, 8 bits, by activation", "gptq, 4 bits, one group", "gptq, 4 bits, by activation", "gptq_v2, 4 bits"],
)
def test_others_are_not(other: str) -> None:
    first, second = matrices("gptq, 4 bits", other)
    assert not stackable(first, second)
    assert not stackable(second, first)


def test_matrices_in_one_order_are_stacked_those_in_two_are_not() -> None:
    codes, tensors, scheme = written("gptq, 4 bits, by activation")
    first = read(codes, tensors, scheme)
    assert stackable(first, read(codes, tensors, scheme))
    other = Recipe({}, gptq, by_activation=True)
    shuffled = random_codes(OUTPUTS, 128, other, seed=1)
    assert not stackable(first, read(shuffled, gptq(shuffled), scheme))


@pytest.mark.parametrize("chosen", [range(64), range(64, 160), range(16, 48), range(24, 160), range(2, 158)], ids=str)
@pytest.mark.parametrize("name", ["gptq, 4 bits, short last group", "compressed-tensors, 8 bits"])
def test_some_inputs_are_the_same_numbers(name: str, chosen: range) -> None:
    (matrix,) = matrices(name)
    inside = range(chosen.start, min(chosen.stop, matrix.shape[1]))
    if inside:
        assert torch.equal(matrix.columns(inside).dequantized(), matrix.dequantized()[:, inside.start : inside.stop])
