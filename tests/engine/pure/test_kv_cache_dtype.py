"""`--kv-cache-dtype fp8` in numbers: half the room and half of what a decode reads; and no processor takes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from known_models import LLAMA_3_8B
from octavo_engine.config import EngineConfig
from octavo_engine.devices import DEVICES
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.memory import HostRoom
from octavo_engine.model.tensors.costs import cost_of, needs_of
from octavo_engine.model.tensors.parameters import parameters_of
from octavo_engine.plan import text
from octavo_engine.plan.estimate import Plan, Target, make_plan, with_four_bits
from octavo_engine.plan.settings import PlanConfig
from octavo_engine.plan.target import device_target
from octavo_engine.preflight.checkpoint import Checkpoint
from octavo_engine.preflight.command import check
from octavo_engine.roofline import Machine

AUTO, FP8 = EngineConfig(), EngineConfig(kv_cache_dtype="fp8")
(H100,) = (device for device in DEVICES if device.name == "H100")


def planned(config: EngineConfig) -> Plan:
    target = device_target(H100, PlanConfig(source="hf://o/m"), config, width=2)
    return make_plan(LLAMA_3_8B, config, target, context=1024)


def on_host(config: EngineConfig) -> Plan:
    machine, room = Machine(name="m", bandwidth=48e9, flops=600e9), HostRoom(limit=64 * 1024**3)
    return make_plan(
        LLAMA_3_8B, config, Target(machine=machine, memory_bytes=room.limit, room=room, on_host=True), context=1024
    )


def test_a_block_takes_half_and_nothing_else_changes() -> None:
    plain, small = (needs_of(LLAMA_3_8B, config, width=2) for config in (AUTO, FP8))
    assert 2 * small.geometry.block_bytes == plain.geometry.block_bytes
    assert plain.graphs - small.graphs == small.geometry.block_bytes  # of the block that is their padding
    assert replace(small, geometry=plain.geometry, graphs=plain.graphs) == plain


def test_a_decode_reads_half_of_the_keys_and_values() -> None:
    plain, small = cost_of(LLAMA_3_8B, 2), cost_of(LLAMA_3_8B, 2, cached=1)
    assert 2 * small.layer_kv_bytes == plain.layer_kv_bytes
    assert replace(small, layer_kv_bytes=plain.layer_kv_bytes) == plain


def test_a_plan_holds_twice_the_tokens_and_is_faster_at_large_batches() -> None:
    plain, small = planned(AUTO), planned(FP8)
    assert plain.cache is not None
    assert small.cache is not None
    assert 0 <= small.cache.blocks - 2 * plain.cache.blocks <= 2  # half a block, and the half of the padding's
    assert small.decode(64).tokens_per_second > plain.decode(64).tokens_per_second
    assert with_four_bits(small).spared_bytes == with_four_bits(plain).spared_bytes


def test_a_processor_is_planned_for_with_the_reason_why_not() -> None:
    plan = on_host(FP8)
    assert plan.cache is None
    assert "--kv-cache-dtype is fp8, which needs a CUDA device" in str(plan.refusal)
    assert "does not fit: --kv-cache-dtype" in text.report(plan)
    assert on_host(AUTO).cache is not None


def test_preflight_refuses_it_where_a_container_has_no_device() -> None:
    shapes = {part.name: part.shape for parts in parameters_of(LLAMA_3_8B).values() for part in parts}
    found = Checkpoint(LLAMA_3_8B, shapes, "revision", files=1, total_bytes=1)
    check(found, FP8, memory_bytes=None)
    check(found, AUTO, memory_bytes=64 * 1024**3)
    with pytest.raises(InvalidConfiguration, match="--kv-cache-dtype is fp8, which needs a CUDA device"):
        check(found, FP8, memory_bytes=64 * 1024**3)
