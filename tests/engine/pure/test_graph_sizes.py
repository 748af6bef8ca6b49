"""For how many sequences decodes are recorded, which recorded size serves a batch, and what graphs need of a memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from known_models import LLAMA_3_8B, SMOLLM2_135M
from octavo_engine.config import EngineConfig
from octavo_engine.errors import InsufficientMemory, InvalidConfiguration
from octavo_engine.graph_sizes import LARGEST_BY_RULE, POWERS_ALONE_UP_TO, by_rule, fitting, named
from octavo_engine.memory import GIB, DeviceRoom, plan_cache
from octavo_engine.model.tensors.costs import needs_of


def test_sizes_by_rule() -> None:
    assert by_rule(256) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    assert by_rule(100) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100)
    assert by_rule(1) == (1,)
    assert by_rule(4096)[-2:] == (384, LARGEST_BY_RULE)


@given(st.integers(1, 5000), st.data())
def test_little_is_padding(most: int, data: st.DataObject) -> None:
    sizes = by_rule(most)
    assert list(sizes) == sorted(set(sizes))
    sequences = data.draw(st.integers(1, sizes[-1]))
    size = fitting(sizes, sequences)
    assert size is not None
    assert sequences <= size < 2 * sequences
    if sequences > POWERS_ALONE_UP_TO:
        assert size - sequences <= size / 3


@given(st.lists(st.integers(1, 100), min_size=1, unique=True).map(sorted), st.integers(1, 120))
def test_the_smallest_that_holds_a_batch_serves_it(sizes: list[int], sequences: int) -> None:
    assert fitting(sizes, sequences) == next((size for size in sizes if size >= sequences), None)


def test_named_sizes_are_put_in_order() -> None:
    assert named("8, 1,64,8", 64) == (1, 8, 64)


@pytest.mark.parametrize("text", ["", "1,,2", "1 2", "-1", "0", "1.5", "all", "٣"])
def test_what_is_no_list_of_sizes_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"--cuda-graph-sizes is .* whole numbers from 1 on"):
        named(text, 64)


def test_a_size_that_no_step_has_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidConfiguration, match="names 65, but no step decodes more than 64 sequences"):
        EngineConfig(cuda_graph_sizes="1,65", max_num_seqs=64)
    with pytest.raises(InvalidConfiguration, match="no step decodes more than 32"):
        EngineConfig(cuda_graph_sizes="1,64", max_num_seqs=64, max_num_batched_tokens=32)


def test_sizes_are_those_that_are_named_else_those_of_the_rule() -> None:
    assert EngineConfig(max_num_seqs=10).graph_sizes == (1, 2, 4, 8, 10)
    assert EngineConfig(max_num_seqs=10, cuda_graph_sizes="4,2").graph_sizes == (2, 4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"enforce_eager": True}, "--enforce-eager"),
        ({"attention_backend": "torch"}, "--attention-backend is torch"),
    ],
)
def test_where_nothing_is_recorded_it_is_known_why(changes: dict[str, object], reason: str) -> None:
    config = replace(EngineConfig(), **changes)  # type: ignore[arg-type]
    assert (config.graph_sizes, config.why_eager) == ((), reason)
    assert EngineConfig().why_eager is EngineConfig(tensor_parallel_size=2).why_eager is None


def test_memory_for_graphs_is_set_aside_on_a_device_alone() -> None:
    plain = needs_of(LLAMA_3_8B, EngineConfig(enforce_eager=True), width=2)
    graphed = needs_of(LLAMA_3_8B, EngineConfig(), width=2)
    assert (plain.graphs, needs_of(LLAMA_3_8B, EngineConfig(), width=2, on_host=True).graphs) == (0, 0)
    room = DeviceRoom(total=80 * GIB, utilization=0.9)
    spared = plan_cache(plain, room).cache_bytes - plan_cache(graphed, room).cache_bytes
    assert abs(spared - graphed.graphs) <= graphed.geometry.block_bytes


def test_memory_for_graphs_in_figures() -> None:
    """A model of 32 layers, worked out by hand: 13 sizes, the largest of 256 and all together of 871 sequences."""
    step = 256 * (4 * 4096 + 3 * 14_336 + 2 * (4096 + 2 * 1024)) * 2
    left_behind = 16 * 1024 * 4 * 129 * 4
    outcomes = 871 * 4096 * 2
    inputs = 256 * (28 + 512 * 4) + 2_097_152
    kept = 13 * 32 * 16 * 32 * 1024 + 64 * 1024**2
    assert needs_of(LLAMA_3_8B, EngineConfig(), width=2).graphs == step + left_behind + outcomes + inputs + kept


def test_memory_for_graphs_grows_with_what_is_recorded() -> None:
    few, many = (
        needs_of(SMOLLM2_135M, EngineConfig(cuda_graph_sizes=sizes), width=2).graphs for sizes in ("1,8", "1,8,256")
    )
    assert 0 < few < many


def test_a_device_too_small_for_graphs_says_what_does_without() -> None:
    needs = needs_of(LLAMA_3_8B, EngineConfig(max_model_len=64), width=2)
    total = needs.weights + needs.activations + needs.graphs // 2
    with pytest.raises(InsufficientMemory, match="CUDA graphs \\(--enforce-eager does without\\) need"):
        plan_cache(needs, DeviceRoom(total=total, utilization=1.0))
