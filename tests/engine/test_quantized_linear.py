"""The plain products with quantized weights, and several side by side, against float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels import quantized
from octavo_engine.kernels.linear import PLAIN, Linear
from octavo_engine.kernels.quantized import QuantizedLinear, QuantizedMatrix, QuantizedRows, packed
from octavo_engine.kernels.side_by_side import GatedPair, SideBySide, gated, products_in, projection

pytestmark = pytest.mark.engine
BF16, F32 = torch.bfloat16, torch.float32


def chance(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(
    outputs: int, inputs: int, *, bits: int = 4, group: int = 16, ordered: bool = False, seed: int = 0
) -> QuantizedMatrix:
    """Random codes; weights are around 1, whatever the bits."""
    source, groups = chance(seed), -(-inputs // group)
    codes = torch.randint(1 << bits, (outputs, inputs), generator=source, dtype=torch.uint8)
    scales = (torch.rand(outputs, groups, generator=source) + 0.5) / (1 << (bits - 1))
    offsets = -scales * (1 << (bits - 1)) + 0.1
    order = torch.randperm(inputs, generator=source) if ordered else None
    return QuantizedMatrix(4 if bits == 4 else 8, packed(codes) if bits == 4 else codes, scales, offsets, group, order)


def exact(matrix: QuantizedMatrix) -> Tensor:
    """float64 `[out, in]`, column by column."""
    columns = matrix.unpacked().double()
    weight = torch.empty_like(columns)
    for column in range(matrix.shape[1]):
        place = column if matrix.order is None else int(matrix.order[column])
        run = column // matrix.group
        weight[:, place] = columns[:, column] * matrix.scales[:, run].double() + matrix.offsets[:, run].double()
    return weight


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    bound = 2**-8 if dtype == BF16 else 1e-5
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=bound, atol=bound)


KINDS = [{}, {"bits": 8}, {"ordered": True}, {"group": 24}, {"group": 64, "bits": 8, "ordered": True}]


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_a_product_is_that_of_the_dequantized_weight(fields: dict[str, int], dtype: torch.dtype) -> None:
    matrix = made(37, 64, **fields)
    x, bias, residual = (torch.randn(shape, generator=chance(1)).to(dtype) for shape in ((5, 64), (37,), (5, 37)))
    linear = QuantizedLinear(matrix, bias)
    product = x.double() @ exact(matrix).t() + bias.double()
    close(linear(x), product, dtype)
    close(linear.wide(x), product, F32)
    before = residual.double()
    into = linear.add_to(residual, x)
    assert into.data_ptr() == residual.data_ptr()
    close(into, before + product, dtype)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_gated_product(dtype: torch.dtype) -> None:
    matrix = made(48, 32)
    x, bias = torch.randn(3, 32, generator=chance(2)).to(dtype), torch.randn(48, generator=chance(3)).to(dtype)
    gate, up = (x.double() @ exact(matrix).t() + bias.double()).chunk(2, dim=1)
    close(gated(PLAIN, [matrix], bias, dtype)(x), F.silu(gate) * up, dtype)


def test_rows_are_looked_up() -> None:
    matrix = made(20, 32, ordered=True)
    tokens = torch.tensor([3, 19, 0, 3])
    close(QuantizedRows(matrix, BF16)(tokens), exact(matrix)[tokens], BF16)
    tied = PLAIN.quantized_tied(matrix, F32)
    close(tied.look_up(tokens), exact(matrix)[tokens], F32)
    x = torch.randn(2, 32, generator=chance(4))
    close(tied.head.wide(x), x.double() @ exact(matrix).t(), F32)


def test_a_large_weight_is_dequantized_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, x = made(50, 32), torch.randn(2, 32, generator=chance(5))
    whole = QuantizedLinear(matrix)(x)
    monkeypatch.setattr(quantized, "SLICE_WEIGHTS", 7 * 32)
    torch.testing.assert_close(QuantizedLinear(matrix)(x), whole, rtol=1e-6, atol=1e-6)


MIXED: list[Sequence[QuantizedMatrix | Tensor]] = [
    [made(16, 32), made(24, 32, bits=8, seed=1)],
    [made(16, 32), torch.randn(8, 32, generator=chance(6)), made(8, 32, ordered=True, seed=2)],
]


@pytest.mark.parametrize("weights", MIXED, ids=["bits", "plain beside quantized"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_weights_that_cannot_be_one_stand_side_by_side(
    weights: Sequence[QuantizedMatrix | Tensor], dtype: torch.dtype
) -> None:
    cast = [weight if isinstance(weight, QuantizedMatrix) else weight.to(dtype) for weight in weights]
    rows = [exact(weight) if isinstance(weight, QuantizedMatrix) else weight.double() for weight in cast]
    outputs = sum(map(len, rows))
    x, bias, residual = (
        torch.randn(shape, generator=chance(7)).to(dtype) for shape in ((3, 32), (outputs,), (3, outputs))
    )
    product = x.double() @ torch.cat(rows).t() + bias.double()
    joined = projection(PLAIN, cast, bias, dtype)
    assert isinstance(joined, SideBySide)
    assert len(products_in(joined)) == len(weights)
    close(joined(x), product, dtype)
    torch.testing.assert_close(joined.wide(x).double(), product, rtol=2**-8, atol=2**-7)
    before = residual.double()
    torch.testing.assert_close(joined.add_to(residual, x).double(), before + product, rtol=2**-7, atol=2**-6)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_gate_and_up_that_cannot_be_one(dtype: torch.dtype) -> None:
    gate, up = made(24, 32), torch.randn(24, 32, generator=chance(8)).to(dtype)
    x, bias = torch.randn(3, 32, generator=chance(9)).to(dtype), torch.randn(48, generator=chance(10)).to(dtype)
    pair = gated(PLAIN, [gate, up], bias, dtype)
    assert isinstance(pair, GatedPair)
    assert {type(product) for product in products_in(pair)} == {QuantizedLinear, Linear}
    first = x.double() @ exact(gate).t() + bias[:24].double()
    second = x.double() @ up.double().t() + bias[24:].double()
    torch.testing.assert_close(pair(x).double(), F.silu(first) * second, rtol=2**-7, atol=2**-6)


def test_one_weight_needs_nothing_beside_it() -> None:
    assert isinstance(projection(PLAIN, [made(8, 16)], None, F32), QuantizedLinear)
    assert isinstance(projection(PLAIN, [torch.randn(8, 16)], None, F32), Linear)
