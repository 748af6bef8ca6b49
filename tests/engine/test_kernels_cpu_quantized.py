"""The C++ products with weights of few bits equal the plain ones, for any groups and rows; each row as it is alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from octavo_engine.kernels.cpu.quantized import Beside, Shift, beside
from octavo_engine.kernels.linear import PLAIN, LinearKernels
from octavo_engine.kernels.quantized import Bits, QuantizedMatrix, packed

pytestmark = pytest.mark.engine
ROWS = (1, 2, 4, 5, 13, 97)  # in registers; one tile; several; more than one block of them
BF16, F32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Case:
    """A kind of weight. Zero points and offsets: one for each group; `zero`: the same for all."""

    bits: Bits
    group: int
    inputs: int
    shift: Shift
    zero: int = 0
    wide: bool = False  # scales that float16 does not hold
    ordered: bool = False
    outputs: int = 50  # of no whole panel

    def matrix(self, outputs: int, seed: int = 0) -> QuantizedMatrix:
        """A random one, whose weights are around 1 / sqrt(inputs)."""
        source, groups = torch.Generator().manual_seed(seed), -(-self.inputs // self.group)
        least, most = (self.zero - 30, self.zero + 30) if self.zero else (0, 2**self.bits)
        codes = torch.randint(max(0, least), min(2**self.bits, most), (outputs, self.inputs), generator=source)
        scales = (torch.rand(outputs, groups, generator=source) + 0.5) / (2 ** (self.bits - 1) * self.inputs**0.5)
        scales = scales * 1.0001 if self.wide else scales.half().float()
        zeros = torch.full_like(scales, self.zero or 2 ** (self.bits - 1))
        if self.shift is Shift.ZEROS:
            zeros = torch.randint(2**self.bits, zeros.shape, generator=source).float()
        offsets = -scales * zeros
        if self.shift is Shift.OFFSETS:
            offsets = offsets + scales * torch.rand(zeros.shape, generator=source)
            offsets = offsets if self.wide else offsets.half().float()
        order = torch.randperm(self.inputs, generator=source) if self.ordered else None
        bytes_ = codes.to(torch.uint8)
        return QuantizedMatrix(
            self.bits, packed(bytes_) if self.bits == 4 else bytes_, scales, offsets, self.group, order
        )


CASES = {
    "Q4_0": Case(4, 32, 192, Shift.MIDDLES),
    "Q4_1": Case(4, 32, 192, Shift.OFFSETS),
    "Q4_K": Case(4, 32, 256, Shift.OFFSETS, wide=True),
    "Q6_K": Case(8, 16, 256, Shift.MIDDLES, zero=32, wide=True),
    "Q8_0": Case(8, 32, 96, Shift.MIDDLES),
    "AWQ, short last group": Case(4, 128, 320, Shift.ZEROS),
    "a group of all inputs": Case(4, 4096, 200, Shift.ZEROS),
    "GPTQ by activation, 8 bits": Case(8, 64, 160, Shift.ZEROS, ordered=True),
    "GPTQ by activation": Case(4, 64, 160, Shift.MIDDLES, ordered=True),
    "no whole words": Case(4, 20, 50, Shift.OFFSETS, wide=True),
    "no whole words, 8 bits": Case(8, 37, 75, Shift.OFFSETS),
}
ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
TYPES = pytest.mark.parametrize("dtype", [BF16, F32], ids=str)


@pytest.fixture(scope="module")
def kernels(cpu_target: str) -> LinearKernels:
    from octavo_engine.kernels.cpu import linear

    return linear.KERNELS


def numbers(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_equal_but_for_rounding(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """Each rounds once to `dtype`, after sums in float32 or better of numbers around 1."""
    assert found.dtype == dtype
    least = 2**-7 if dtype == BF16 else 3e-6
    torch.testing.assert_close(found, wanted, rtol=least, atol=least)


@ALL
@TYPES
def test_products_equal_plain_ones(case: Case, dtype: torch.dtype, kernels: LinearKernels) -> None:
    matrix, bias = case.matrix(2 * case.outputs), numbers(2 * case.outputs, seed=1, dtype=dtype)
    ours, plain = (set_.quantized(matrix, bias, dtype) for set_ in (kernels, PLAIN))
    our_gate, plain_gate = (set_.quantized_gated(matrix, bias, dtype) for set_ in (kernels, PLAIN))
    for rows in ROWS:
        x = numbers(rows, case.inputs, seed=rows, dtype=dtype)
        residual = numbers(rows, 2 * case.outputs, seed=rows + 1, dtype=dtype)
        assert_equal_but_for_rounding(ours(x), plain(x), dtype)
        assert_equal_but_for_rounding(our_gate(x), plain_gate(x), dtype)
        assert_equal_but_for_rounding(ours.add_to(residual.clone(), x), plain.add_to(residual, x), dtype)


@ALL
def test_wide_products_are_sums_in_float32_of_weights_that_nobody_rounded(case: Case, kernels: LinearKernels) -> None:
    """The error is a few units of float32 of what is added, whatever the weight's own type."""
    matrix, x = case.matrix(case.outputs), numbers(13, case.inputs, seed=2, dtype=BF16)
    exact = matrix.dequantized().double()
    found = kernels.quantized(matrix, None, BF16).wide(x)
    assert found.dtype == F32
    bound = 4e-7 * (x.double().abs() @ exact.abs().t() + 1)
    assert bool(((found - x.double() @ exact.t()).abs() <= bound).all())


@ALL
@TYPES
def test_each_row_is_what_it_is_alone(case: Case, dtype: torch.dtype, kernels: LinearKernels) -> None:
    product = kernels.quantized(case.matrix(case.outputs), None, dtype)
    x = numbers(97, case.inputs, seed=3, dtype=dtype)
    together, alone = product(x), torch.cat([product(row[None]) for row in x])
    assert torch.equal(together, alone)
    for rows in (2, 4, 5, 12, 13):
        assert torch.equal(product(x[:rows]), alone[:rows])


@TYPES
def test_rows_may_lie_apart_and_there_may_be_none(dtype: torch.dtype, kernels: LinearKernels) -> None:
    product, x = kernels.quantized(CASES["Q4_1"].matrix(48), None, dtype), numbers(7, 400, seed=2, dtype=dtype)
    assert torch.equal(product(x[:, 100:292]), product(x[:, 100:292].contiguous()))
    assert product(x[:0, :192]).shape == (0, 48)


@TYPES
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0", "AWQ, short last group", "no whole words"])
def test_rows_of_an_embedding_are_looked_up_bit_for_bit(name: str, dtype: torch.dtype, kernels: LinearKernels) -> None:
    embedding = CASES[name].matrix(300)
    tied, plain = kernels.quantized_tied(embedding, dtype), PLAIN.quantized_tied(embedding, dtype)
    for count in (0, 1, 200):  # the last one is worth several threads
        tokens = torch.randint(300, (count,), generator=torch.Generator().manual_seed(count))
        found, wanted = tied.look_up(tokens), plain.look_up(tokens)
        if CASES[name].wide:  # then a weight is a sum of two terms that are themselves rounded, here at once
            torch.testing.assert_close(found, wanted, rtol=2**-7 if dtype == BF16 else 2**-22, atol=1e-7)
        else:
            assert torch.equal(found, wanted)
    x = numbers(3, CASES[name].inputs, seed=1, dtype=dtype)
    assert_equal_but_for_rounding(tied.head.wide(x), plain.head.wide(x), F32)


# ---- what stands beside the codes ------------------------------------------------------------------------------------

SIZES = {  # bytes beside the codes of each group
    "Q4_0": 2,
    "Q4_1": 4,
    "Q4_K": 8,
    "Q6_K": 4,
    "Q8_0": 2,
    "AWQ, short last group": 4,
    "GPTQ by activation": 2,
}


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_numbers_are_kept_in_the_narrowest_form_that_is_exact(name: str, size: int) -> None:
    case = CASES[name]
    found = beside(case.matrix(8))
    assert (found.shift, found.wide) == (case.shift, case.wide)
    assert sum(part.element_size() for part in found.numbers) == size
    assert found.moved == (2 ** (case.bits - 1) - case.zero if case.zero else 0)


def form(scales: list[float], offsets: list[float], codes: list[int], bits: Bits = 4) -> Beside:
    """Of one output with a group of two inputs for each scale."""
    row = torch.tensor([codes], dtype=torch.uint8)
    return beside(
        QuantizedMatrix(bits, packed(row) if bits == 4 else row, torch.tensor([scales]), torch.tensor([offsets]), 2)
    )


def test_codes_of_fewer_bits_move_to_the_middle() -> None:
    found = form([0.5, 0.25], [-2.0, -1.0], [0, 7, 3, 4])  # 3 bits, around 4
    assert (found.shift, found.moved) == (Shift.MIDDLES, 4)


def test_codes_that_have_no_room_to_move_stay() -> None:
    found = form([0.5, 0.25], [-3.5, -1.75], [0, 15, 3, 4])  # around 7: the largest would be 16
    assert (found.shift, found.moved) == (Shift.ZEROS, 0)
    assert found.numbers[1].tolist() == [[7.0, 7.0]]


def test_a_group_of_zeros_is_in_nobodys_way() -> None:
    assert form([0.5, 0.0], [-4.0, -0.0], [0, 15, 3, 4]).shift is Shift.MIDDLES
    assert form([0.0, 0.0], [0.0, 0.0], [0, 15, 3, 4]).shift is Shift.MIDDLES
    assert form([0.5, 0.0], [-4.0, 1.0], [0, 15, 3, 4]).shift is Shift.OFFSETS


@pytest.mark.parametrize("offset", [-4.1, 0.5, -200.0])
def test_what_is_no_zero_point_is_an_offset(offset: float) -> None:
    assert form([0.5], [offset], [0, 15]).shift is Shift.OFFSETS


@pytest.mark.parametrize("scale", [1e-9, 1e6, 1 / 3])
def test_numbers_that_float16_would_change_stay_float32(scale: float) -> None:
    assert form([scale], [-8 * scale], [0, 15]).wide
