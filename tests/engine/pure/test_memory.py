"""The one memory formula: on a processor, on a device of one's own, on a shared one; and at admission."""

from __future__ import annotations

from dataclasses import replace

import pytest

from known_models import LLAMA_3_8B, QWEN25_7B, SMOLLM2_135M
from octavo_engine.batch import SCORED_ROWS
from octavo_engine.config import EngineConfig
from octavo_engine.errors import InsufficientMemory, InvalidConfiguration, PromptTooLong
from octavo_engine.memory import (
    HOST_RUNTIME_BYTES,
    CacheGeometry,
    DeviceRoom,
    HostRoom,
    Needs,
    plan_cache,
)
from octavo_engine.model.tensors.costs import activation_bytes, bytes_spared_by_four_bits, needs_of, weight_bytes
from octavo_engine.request import Request, SamplingParams
from scripted_engine import Scripted

MIB, GIB = 1024**2, 1024**3
SMOL = CacheGeometry(layers=30, kv_heads=3, head_dim=64, bytes_per_value=2, block_size=16)
# A block of 1 MiB, so that every figure below can be followed by eye.
BLOCK = CacheGeometry(layers=2, kv_heads=64, head_dim=128, bytes_per_value=2, block_size=16)
NEEDS = Needs(geometry=BLOCK, weights=10 * GIB, activations=2 * GIB, max_model_len=8192, max_num_seqs=1024)
SMALL = replace(NEEDS, weights=GIB, activations=0, max_num_seqs=64)


def refusal(needs: Needs, room: HostRoom | DeviceRoom) -> str:
    with pytest.raises(InsufficientMemory) as refused:
        plan_cache(needs, room)
    assert refused.value.reason == "InsufficientMemory"
    return str(refused.value)


def test_a_block_holds_keys_and_values_of_all_layers():
    assert SMOL.token_bytes == 2 * 30 * 3 * 64 * 2 == 23_040
    assert SMOL.block_bytes == 16 * 23_040
    assert [SMOL.blocks_for(tokens) for tokens in (1, 16, 17, 8192)] == [1, 1, 2, 512]
    assert BLOCK.block_bytes == MIB


@pytest.mark.parametrize(
    ("spec", "weights", "token"),
    [
        (SMOLLM2_135M, 134_515_008, 23_040),
        (LLAMA_3_8B, 8_030_261_248, 131_072),
        (QWEN25_7B, 7_615_616_512, 57_344),
    ],
    ids=["SmolLM2-135M", "Llama-3-8B", "Qwen2.5-7B"],
)
def test_known_models_have_their_published_sizes(spec, weights, token):
    config = EngineConfig()
    on_device = needs_of(spec, config, width=2)
    assert on_device.weights == 2 * weights
    assert on_device.geometry.token_bytes == token
    assert needs_of(spec, config, width=4).weights == 4 * weights


def test_a_tied_embedding_counts_twice_only_where_it_is_held_twice():
    assert weight_bytes(SMOLLM2_135M, 2) == 2 * 134_515_008
    assert weight_bytes(SMOLLM2_135M, 2, tied_twice=True) == 2 * (134_515_008 + 49_152 * 576)
    assert weight_bytes(LLAMA_3_8B, 2, tied_twice=True) == weight_bytes(LLAMA_3_8B, 2)


def test_four_bits_spare_three_quarters_of_the_products():
    products = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    assert products == 6_979_321_856
    assert bytes_spared_by_four_bits(LLAMA_3_8B, 2) == int(products * (2 - 4.15625 / 8))


def test_a_step_needs_its_widest_rows_and_its_logits():
    config = EngineConfig(max_num_batched_tokens=100, max_num_seqs=100)
    assert activation_bytes(SMOLLM2_135M, config, 2) == 100 * 8832 * 2 + 3 * 100 * 49_152 * 4
    few = replace(config, max_num_seqs=10)
    assert activation_bytes(SMOLLM2_135M, few, 2) == 100 * 8832 * 2 + 3 * SCORED_ROWS * 49_152 * 4


def test_lengths_that_do_not_agree_are_refused_before_any_memory_is_asked_for():
    with pytest.raises(InvalidConfiguration, match="made for 8192 positions"):
        needs_of(LLAMA_3_8B, EngineConfig(max_model_len=8193), width=2)


class TestHost:
    """A processor: the container's limit counts."""

    ROOM = HostRoom(limit=64 * GIB)

    def test_the_cache_gets_a_quarter_unless_told_otherwise(self):
        assert plan_cache(NEEDS, self.ROOM).blocks == 16 * 1024
        assert plan_cache(NEEDS, replace(self.ROOM, wanted=GIB)).blocks == 1024

    def test_by_default_less_than_a_quarter_where_weights_leave_less(self):
        limit = 14 * GIB + HOST_RUNTIME_BYTES
        assert plan_cache(NEEDS, HostRoom(limit=limit)).cache_bytes == 2 * GIB

    def test_by_default_more_than_a_quarter_where_one_sequence_needs_it(self):
        long = replace(SMALL, max_model_len=64 * 1024)  # 4 GiB
        assert plan_cache(long, HostRoom(limit=8 * GIB)).cache_bytes == 4 * GIB

    def test_no_more_than_all_sequences_could_use(self):
        few = replace(NEEDS, max_num_seqs=3)
        assert plan_cache(few, self.ROOM).blocks == 3 * 512

    def test_what_the_limit_cannot_hold_is_refused_with_the_limit_that_could(self):
        limit = 12 * GIB + HOST_RUNTIME_BYTES + 256 * MIB
        message = refusal(NEEDS, HostRoom(limit=limit))
        assert (
            "13.00 GiB are needed (10.00 for weights, 0.50 for the KV cache, 2.00 for a step, 0.50 for the" in message
        )
        assert message.endswith("raise it to 13.00 GiB, or lower --max-model-len to 4096 or less")
        assert plan_cache(replace(NEEDS, max_model_len=4096), HostRoom(limit=limit)).blocks == 256
        assert plan_cache(NEEDS, HostRoom(limit=13 * GIB)).blocks == 512

    def test_a_limit_below_the_weights_names_no_length(self):
        message = refusal(NEEDS, HostRoom(limit=8 * GIB))
        assert message.endswith("but the memory limit is 8.00 GiB: raise it to 13.00 GiB, or choose a smaller model")

    def test_a_wanted_cache_that_is_too_large_is_refused_with_the_bytes_that_fit(self):
        room = HostRoom(limit=13 * GIB, wanted=2 * GIB)
        message = refusal(NEEDS, room)
        assert message.endswith(f"lower --kv-cache-memory-bytes to {512 * MIB} or less, or raise the limit")
        assert plan_cache(NEEDS, replace(room, wanted=512 * MIB)).blocks == 512

    def test_a_wanted_cache_that_is_too_small_is_refused_with_both_ways_out(self):
        message = refusal(NEEDS, replace(self.ROOM, wanted=100 * MIB))
        assert f"raise --kv-cache-memory-bytes to {512 * MIB}, or lower --max-model-len to 1600 or less" in message
        assert "--max-model-len" not in refusal(NEEDS, replace(self.ROOM, wanted=1))

    def test_what_others_on_the_machine_hold_cannot_be_had(self):
        shared = replace(self.ROOM, left_by_others=20 * GIB)
        assert plan_cache(NEEDS, shared).cache_bytes == 20 * GIB - 12 * GIB - HOST_RUNTIME_BYTES
        message = refusal(NEEDS, replace(shared, wanted=16 * GIB))
        assert "but others on this machine leave 20.00 GiB: lower --kv-cache-memory-bytes to" in message
        assert message.endswith("or less, or stop others")
        message = refusal(NEEDS, replace(shared, left_by_others=4 * GIB))
        assert message.endswith("leave 4.00 GiB: stop others until they leave 13.00 GiB, or choose a smaller model")


class TestDevice:
    """An accelerator, alone or shared."""

    ROOM = DeviceRoom(total=80 * GIB, utilization=0.9)

    def test_a_share_of_the_device_is_ours_less_what_we_took(self):
        assert plan_cache(NEEDS, replace(self.ROOM, utilization=0.5)).cache_bytes == 28 * GIB

    def test_others_may_hold_what_we_could_not_use(self):
        few = replace(NEEDS, max_num_seqs=8)  # 12 + 4 GiB, whatever the share
        assert plan_cache(few, replace(self.ROOM, others=64 * GIB)).blocks == 8 * 512
        assert "others hold 65.00: lower it to 0.18" in refusal(few, replace(self.ROOM, others=65 * GIB))

    def test_others_that_hold_what_we_do_not_want_are_no_reason(self):
        shared = replace(self.ROOM, utilization=0.6, others=32 * GIB)
        assert plan_cache(NEEDS, shared).cache_bytes == 36 * GIB

    def test_a_share_that_others_hold_is_refused_with_the_one_that_fits(self):
        shared = replace(self.ROOM, others=30 * GIB)
        message = refusal(NEEDS, shared)
        assert message == (
            "--gpu-memory-utilization 0.9 is 72.00 of 80.00 GiB, but others hold 30.00: lower it to 0.62 or less"
        )
        assert plan_cache(NEEDS, replace(shared, utilization=0.62)).blocks == int((0.62 * 80 - 12) * 1024)
        assert "lower it to 0.62" in refusal(NEEDS, replace(shared, utilization=0.63))

    def test_where_the_fitting_share_is_too_small_for_one_sequence_its_length_is_named(self):
        shared = replace(self.ROOM, others=int(67.7 * GIB))
        assert refusal(NEEDS, shared).endswith("what is left does not hold the weights; use another device")
        shared = replace(self.ROOM, others=int(66.9 * GIB))  # 0.16 of 80 is 12.8 GiB; one sequence is 1 GiB
        long = replace(NEEDS, max_model_len=16 * 1024)
        assert refusal(long, shared).endswith("lower it to 0.16, and --max-model-len to 13104 or less")
        fits = plan_cache(replace(long, max_model_len=13104), replace(shared, utilization=0.16))
        assert fits.blocks >= 819

    def test_a_free_share_that_is_too_small_is_refused_with_the_larger_one(self):
        room = replace(self.ROOM, utilization=0.15)  # 12 GiB
        message = refusal(NEEDS, room)
        assert "one sequence of 8192 tokens needs 0.50 GiB of KV cache, but 0.00 GiB are left" in message
        assert message.endswith("raise --gpu-memory-utilization to 0.16, or use more memory")
        assert plan_cache(NEEDS, replace(room, utilization=0.16)).blocks >= 512
        assert "raise --gpu-memory-utilization to 0.16" in refusal(NEEDS, replace(room, utilization=0.1))

    def test_a_device_that_is_too_small_offers_no_share(self):
        message = refusal(NEEDS, DeviceRoom(total=12 * GIB, utilization=0.9))
        assert message.endswith("use a device with more memory")
        message = refusal(NEEDS, DeviceRoom(total=int(12.3 * GIB), utilization=1.0))
        assert message.endswith("GiB are left: lower --max-model-len to 4912 or less")

    def test_a_wanted_cache_must_fit_beside_the_weights_and_others(self):
        room = replace(self.ROOM, others=60 * GIB, wanted=8 * GIB)
        assert plan_cache(NEEDS, room).cache_bytes == 8 * GIB
        assert refusal(NEEDS, replace(room, wanted=9 * GIB)).endswith(f"lower it to {8 * GIB} or less")
        assert f"raise --kv-cache-memory-bytes to {512 * MIB}" in refusal(NEEDS, replace(room, wanted=GIB // 4))


def test_a_plan_says_how_many_sequences_run_at_once():
    plan = plan_cache(SMALL, HostRoom(limit=64 * GIB, wanted=GIB))
    assert (plan.blocks, plan.tokens, plan.longest) == (1024, 16_384, 8192)
    assert [plan.sequences_of(tokens) for tokens in (8192, 8193, 17, 1)] == [2, 1, 64, 64]


def test_admission_follows_the_plan():
    needs = replace(SMALL, geometry=replace(BLOCK, block_size=4), max_model_len=20, max_num_seqs=1)
    plan = plan_cache(needs, HostRoom(limit=8 * GIB))
    engine = Scripted(blocks=plan.blocks).engine

    def request(prompt: int, answer: int) -> Request:
        return Request(id="r", tokens=[1] * prompt, params=SamplingParams(max_tokens=answer), arrival=0.0)

    engine.check(request(plan.longest - 5, 5))
    with pytest.raises(PromptTooLong, match="may hold; lower max_tokens to 5 or less"):
        engine.check(request(plan.longest - 5, 6))
