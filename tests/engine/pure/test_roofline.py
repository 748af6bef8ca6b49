"""Bytes and operations of a step, computed by hand for known models; bounds and the batch where they change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from known_models import LLAMA_3_8B, QWEN25_7B, SMOLLM2_135M
from octavo_engine.model.tensors.costs import cost_of
from octavo_engine.roofline import Bound, Machine, ModelCost, Work, best_decode, best_prefill, turning_batch

H100 = Machine(name="H100", bandwidth=3.35e12, flops=989.4e12)
TWO_CORES = Machine(name="two cores", bandwidth=48e9, flops=600e9)
SMOL, LLAMA, QWEN = (cost_of(spec, 2) for spec in (SMOLLM2_135M, LLAMA_3_8B, QWEN25_7B))


def test_a_token_of_smollm2():
    attention, mlp = 576 * (576 + 2 * 192) + 576 * 576, 3 * 576 * 1536
    layers = 30 * (attention + mlp)
    assert layers == 106_168_320
    assert SMOL.token_flops == 2 * layers
    assert SMOL.end_flops == 2 * (576 * 576 + mlp)
    assert SMOL.step_bytes == 2 * (layers + 61 * 576)  # and the norms
    assert SMOL.head_bytes == SMOL.head_flops == 2 * 49_152 * 576
    assert SMOL.step_bytes + SMOL.head_bytes == 2 * 134_515_008  # tied: the embedding is the head
    assert SMOL.row_bytes == 2 * 576
    assert 30 * SMOL.layer_kv_bytes == 23_040
    assert SMOL.windows == ((None, 30),)


def test_a_decode_of_smollm2_reads_weights_and_its_context():
    work = SMOL.decode([1024])
    assert work == Work(269_030_016 + 1_152 + 1024 * 23_040, 268_959_744 + 4 * 576 * 30 * 1024)
    assert SMOL.decode([1024] * 32) == Work(
        269_030_016 + 32 * (1_152 + 1024 * 23_040), 32 * (268_959_744 + 4 * 576 * 30 * 1024)
    )


@pytest.mark.parametrize(
    ("cost", "weights", "products", "token"),
    [
        (LLAMA, 8_030_261_248 - 128_256 * 4096, 6_979_321_856, 131_072),
        (QWEN, 7_615_616_512 - 152_064 * 3584, 28 * (3584 * (3584 + 1024) + 3584 * 3584 + 3 * 3584 * 18_944), 57_344),
    ],
    ids=["Llama-3-8B", "Qwen2.5-7B"],
)
def test_an_untied_embedding_is_looked_up_not_read(cost, weights, products, token):
    assert cost.step_bytes + cost.head_bytes == 2 * weights
    assert cost.token_flops == 2 * products
    assert sum(layers for _, layers in cost.windows) * cost.layer_kv_bytes == token


def test_four_bit_weights_are_read_in_a_quarter_of_the_bytes_and_multiplied_as_before():
    quantized = cost_of(LLAMA_3_8B, 2, four_bits=True)
    assert quantized.token_flops == LLAMA.token_flops
    norms = 2 * 65 * 4096
    assert quantized.step_bytes == pytest.approx(norms + 6_979_321_856 * 4.15625 / 8, abs=1)
    assert quantized.head_bytes == LLAMA.head_bytes


def test_a_prompt_in_chunks_looks_at_as_much_as_in_one():
    whole, halves = SMOL.step([(0, 1000)], 1), [SMOL.step([(0, 500)], 0), SMOL.step([(500, 1000)], 1)]
    products = 1000 * SMOL.token_flops - 999 * SMOL.end_flops + SMOL.head_flops
    assert whole.flops == products + 30 * 1000 * 1001 // 2 * 4 * 576
    assert sum(halves, Work()).flops == whole.flops
    again = SMOL.step_bytes + 500 * 23_040  # the second reads the weights, and what the first has written
    assert sum(halves, Work()).bytes == whole.bytes + again


@given(st.integers(0, 60), st.integers(1, 60), st.integers(1, 40))
def test_a_window_is_counted_as_if_query_by_query(start, count, window):
    cost = replace(SMOL, windows=((window, 1), (None, 2)))
    stop = start + count
    seen = [range(max(0, at + 1 - window), at + 1) for at in range(start, stop)]
    pairs = sum(len(keys) for keys in seen) + 2 * sum(at + 1 for at in range(start, stop))
    moved = len({key for keys in seen for key in keys}) + 2 * stop
    assert cost.step([(start, stop)], 0) == Work(
        cost.step_bytes + count * cost.row_bytes + moved * cost.layer_kv_bytes,
        count * (cost.token_flops - cost.end_flops) + pairs * cost.pair_flops,
    )


@given(st.lists(st.integers(1, 5000)), st.sampled_from([((None, 30),), ((64, 30),), ((64, 7), (None, 23))]))
def test_a_decode_is_a_step_of_one_token_each(contexts, windows):
    cost = replace(SMOL, windows=windows)
    assert cost.decode(contexts) == cost.step([(length - 1, length) for length in contexts], len(contexts))


def test_one_stream_on_two_cores_is_bound_by_memory():
    rate = best_decode(SMOL, TWO_CORES, batch=1, context=1)
    assert rate.bound is Bound.MEMORY
    assert rate.tokens_per_second == pytest.approx(48e9 / (269_030_016 + 1_152 + 23_040))
    assert round(rate.tokens_per_second) == 178


def test_a_prompt_is_bound_by_computing():
    rate = best_prefill(SMOL, TWO_CORES, prompt=128, budget=2048)
    assert rate.bound is Bound.COMPUTE
    products = 128 * 212_336_640 - 127 * 5_971_968 + 56_623_104
    assert rate.seconds == pytest.approx((products + 30 * 128 * 129 / 2 * 4 * 576) / 600e9)
    assert rate.seconds == pytest.approx(0.0451, rel=0.01)


def test_small_chunks_make_a_prompt_bound_by_memory():
    rate = best_prefill(LLAMA, H100, prompt=2048, budget=64)
    assert rate.bound is Bound.MEMORY
    assert rate.tokens == 2048
    assert rate.seconds > best_prefill(LLAMA, H100, prompt=2048, budget=2048).seconds
    assert rate.work.bytes > 32 * LLAMA.step_bytes


def test_llama_on_an_h100_turns_where_the_arithmetic_says():
    fixed = 2 * (8_030_261_248 - 128_256 * 4096)
    flops = 2 * 6_979_321_856 + 2 * 128_256 * 4096 + 4 * 4096 * 32 * 128
    read = 128 * 131_072 + 8192
    batch = turning_batch(LLAMA, H100, context=128)
    assert batch == pytest.approx((fixed / 3.35e12) / (flops / 989.4e12 - read / 3.35e12))
    assert round(batch) == 438
    assert best_decode(LLAMA, H100, batch=437, context=128).bound is Bound.MEMORY
    assert best_decode(LLAMA, H100, batch=439, context=128).bound is Bound.COMPUTE


def test_a_long_context_is_bound_by_memory_at_any_batch():
    assert turning_batch(LLAMA, H100, context=1024) is None
    assert best_decode(LLAMA, H100, batch=100_000, context=1024).bound is Bound.MEMORY


@given(st.integers(1, 512), st.integers(1, 4096), st.floats(1e9, 1e13), st.floats(1e9, 1e16))
def test_the_turning_batch_divides_memory_from_computing(batch, context, bandwidth, flops):
    machine = Machine(name="any", bandwidth=bandwidth, flops=flops)
    turn = turning_batch(QWEN, machine, context)
    bound = best_decode(QWEN, machine, batch=batch, context=context).bound
    if turn is None or batch < turn * (1 - 1e-9):
        assert bound is Bound.MEMORY
    elif batch > turn * (1 + 1e-9):
        assert bound is Bound.COMPUTE


def test_a_step_takes_the_longer_of_its_two_reasons():
    machine = Machine(name="round", bandwidth=10.0, flops=100.0)
    assert machine.ridge == 10
    work = Work(bytes=20.0, flops=100.0)
    assert work.intensity == 5
    assert work.seconds(machine) == {Bound.MEMORY: 2.0, Bound.COMPUTE: 1.0}
    assert (work.least_seconds(machine), work.bound(machine)) == (2.0, Bound.MEMORY)
    assert (work + Work(flops=200.0)).bound(machine) is Bound.COMPUTE


def test_a_step_that_samples_nothing_reads_no_head():
    tiny = ModelCost(
        step_bytes=100, head_bytes=50, row_bytes=1, token_flops=10, end_flops=4, head_flops=7, layer_kv_bytes=2,
        pair_flops=3, windows=((None, 1),),
    )  # fmt: skip
    assert tiny.step([(0, 2)], 0) == Work(100 + 2 + 2 * 2, 2 * 6 + 3 * 3)
    assert tiny.step([(0, 2), (4, 5)], 2) == Work(150 + 3 + (2 + 5) * 2, 3 * 10 - 4 + (3 + 5) * 3 + 14)
