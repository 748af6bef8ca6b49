"""The C++ products equal the plain ones up to rounding, for any number of rows and outputs; float32 is better."""

from __future__ import annotations

import pytest
import torch

from octavo_engine.kernels.linear import PLAIN, LinearKernels

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("cpu_target")]
ROWS = [*range(1, 27), 36, 37, 70, 96, 97, 200]
SHAPES = [(576, 960), (1536, 576), (64, 32), (2, 1), (34, 50)]  # inputs, outputs
# The plain path rounds every product, and again after it has added or multiplied; ours once, after.
CLOSE = {torch.bfloat16: {"atol": 2e-2, "rtol": 2e-2}, torch.float32: {"atol": 1e-5, "rtol": 1e-5}}
TYPES = pytest.mark.parametrize("dtype", CLOSE, ids=str)


@pytest.fixture(scope="module")
def packed(cpu_target: str) -> LinearKernels:
    from octavo_engine.kernels.cpu import linear

    return linear.KERNELS


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@TYPES
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_products_equal_plain_ones(
    inputs: int, outputs: int, bias: bool, dtype: torch.dtype, packed: LinearKernels
) -> None:
    weight = numbers(2 * outputs, inputs, seed=1, dtype=dtype) / inputs**0.5
    offset = numbers(2 * outputs, seed=2, dtype=dtype) if bias else None
    ours, plain = (kernels.projection(weight, offset) for kernels in (packed, PLAIN))
    our_gate, plain_gate = (kernels.gated(weight, offset) for kernels in (packed, PLAIN))
    for rows in ROWS:
        x = numbers(rows, inputs, seed=rows, dtype=dtype)
        residual = numbers(rows, 2 * outputs, seed=rows + 1, dtype=dtype)
        torch.testing.assert_close(ours(x), plain(x), **CLOSE[dtype])
        torch.testing.assert_close(ours.add_to(residual.clone(), x), plain.add_to(residual.clone(), x), **CLOSE[dtype])
        torch.testing.assert_close(our_gate(x), plain_gate(x), **CLOSE[dtype])


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_wide_products_are_sums_in_float32(inputs: int, outputs: int, packed: LinearKernels) -> None:
    weight, x = numbers(outputs, inputs, seed=1) / inputs**0.5, numbers(13, inputs, seed=2)
    found = packed.projection(weight, None).wide(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, (x.double() @ weight.double().T).float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 13, 97])
def test_products_of_float32_are_summed_in_float64(rows: int, packed: LinearKernels) -> None:
    """Each is nearer to the true product than one float32 rounding of every 64 inputs explains; torch's are not."""
    weight, x = (numbers(count, 1536, seed=rows + count, dtype=torch.float32) for count in (576, rows))
    true, scale = x.double() @ weight.double().T, x.double().norm(dim=1)[:, None] * weight.double().norm(dim=1)
    ours, plain = (
        ((kernels.projection(weight, None)(x).double() - true).abs() / scale).pow(2).mean().sqrt().item()
        for kernels in (packed, PLAIN)
    )
    assert ours < 0.7 * plain


def test_rows_may_lie_apart(packed: LinearKernels) -> None:
    projection, x = packed.projection(numbers(48, 64, seed=1), None), numbers(7, 200, seed=2)
    assert torch.equal(projection(x[:, 100:164]), projection(x[:, 100:164].contiguous()))


@TYPES
def test_each_row_is_what_it_is_alone(dtype: torch.dtype, packed: LinearKernels) -> None:
    projection = packed.projection(numbers(48, 64, seed=1, dtype=dtype), None)
    x = numbers(70, 64, seed=2, dtype=dtype)
    assert torch.equal(projection(x), torch.cat([projection(row[None]) for row in x]))


def test_an_odd_number_of_inputs_in_bfloat16_stays_plain(packed: LinearKernels) -> None:
    weight, x = numbers(32, 33, seed=1), numbers(3, 33, seed=2)
    assert torch.equal(packed.projection(weight, None)(x), PLAIN.projection(weight, None)(x))
    assert torch.equal(packed.gated(weight, None)(x), PLAIN.gated(weight, None)(x))


@TYPES
@pytest.mark.parametrize(("vocab", "width"), [(1000, 64), (33, 6), (7, 2), (40, 33)])
def test_rows_of_a_tied_embedding_are_looked_up_bit_for_bit(
    vocab: int, width: int, dtype: torch.dtype, packed: LinearKernels
) -> None:
    embedding = numbers(vocab, width, seed=1, dtype=dtype)
    ours, plain = packed.tied(embedding), PLAIN.tied(embedding)
    for count in (0, 1, 5, 700):  # the last one is worth several threads
        tokens = torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(count))
        assert torch.equal(ours.look_up(tokens), plain.look_up(tokens))
    everything = torch.arange(vocab)
    assert torch.equal(ours.look_up(everything), embedding)
    torch.testing.assert_close(ours.head.wide(embedding[:3]), plain.head.wide(embedding[:3]), **CLOSE[dtype])


@pytest.mark.parametrize("extreme", [0.0, -200.0, 200.0, -3e38, 3e38])
def test_a_gate_far_from_zero_is_open_or_shut(extreme: float, packed: LinearKernels) -> None:
    weight = torch.zeros(64, 2).bfloat16()
    weight[:32, 0], weight[32:, 1] = 1, 1  # gate is the first input, up the second
    x = torch.tensor([[extreme, 1.0]]).bfloat16()
    wanted = max(x[0, 0].item(), 0.0)
    assert packed.gated(weight, None)(x).tolist() == [[pytest.approx(wanted)] * 32]
