"""How a model is split over ranks: every number of every tensor is somebody's, and heads find their keys."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from known_models import LLAMA_3_8B, QWEN25_7B, SMOLLM2_135M, spec
from octavo_engine.config import EngineConfig
from octavo_engine.devices import DEVICES
from octavo_engine.errors import InsufficientMemory, InvalidConfiguration
from octavo_engine.memory import HOST_RUNTIME_BYTES, HostRoom, plan_cache
from octavo_engine.model.tensors.costs import cost_of, needs_of, weight_bytes
from octavo_engine.model.tensors.parameters import parameters_of
from octavo_engine.model.tensors.sharding import (
    ADDED_ONCE,
    even_sizes,
    heaviest,
    shard_of,
    shards_of,
    share,
    unevenness,
)
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.plan.estimate import make_plan
from octavo_engine.plan.settings import PlanConfig
from octavo_engine.plan.target import device_target

ODD = spec(
    layers=2, hidden=48, heads=6, kv_heads=2, head_dim=8, intermediate=80, vocab=199, max_positions=64, qkv_bias=True,
    output_bias=True, mlp_bias=True, qk_norm=True,
)  # fmt: skip
CASES = [
    *product((replace(whole, layers=1, windows=(None,)) for whole in (LLAMA_3_8B, QWEN25_7B)), (2, 4, 7, 8, 16)),
    *product((replace(SMOLLM2_135M, layers=1, windows=(None,)),), (2, 3, 5, 9)),
    *product((ODD, replace(ODD, tied=True, kv_heads=1), replace(ODD, kv_heads=6)), (1, 2, 3, 4, 5, 6)),
]


@pytest.mark.parametrize("total", [1, 2, 3, 64, 80, 199, 14336])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("unit", [1, 2, 64])
def test_shares_follow_each_other_in_whole_units_and_differ_by_one(total: int, size: int, unit: int) -> None:
    shares = [share(total, size, rank, unit) for rank in range(size)]
    assert [number for part in shares for number in part] == list(range(total))
    units = [-(-len(part) // unit) for part in shares]
    assert max(units) - min(units) <= 1
    assert all(part.start % unit == 0 for part in shares if part)


@pytest.mark.parametrize(("whole", "size"), CASES)
def test_each_query_head_is_one_ranks_and_meets_the_key_head_that_it_has_in_the_whole(
    whole: ModelSpec, size: int
) -> None:
    shards = shards_of(whole, size)
    assert [head for shard in shards for head in shard.heads] == list(range(whole.heads))
    for shard in shards:
        group, part = whole.heads // whole.kv_heads, shard.spec
        for own, head in enumerate(shard.heads):
            own_key = own // (part.heads // part.kv_heads)  # as attention finds it
            assert shard.kv_heads[own_key] == head // group
    copies = Counter(head for shard in shards for head in shard.kv_heads)
    assert set(copies) == set(range(whole.kv_heads))
    assert max(copies.values()) == (1 if size <= whole.kv_heads else math.ceil(size / whole.kv_heads))


@pytest.mark.parametrize(("whole", "size"), CASES)
def test_the_pieces_of_a_tensor_are_the_tensor(whole: ModelSpec, size: int) -> None:
    """Each number of a split one is read once, but for key heads that several have; of the others all, by all."""
    shards = shards_of(whole, size)
    pieces = [shard.parameters for shard in shards]
    for name, parts in parameters_of(whole).items():
        added_once = name.endswith(ADDED_ONCE)
        assert [name in found for found in pieces] == [True] + [not added_once] * (size - 1)
        for at, part in enumerate(parts):
            read = [found[name][at] for found in pieces if name in found]
            assert all(piece.shape == part.shape for piece in read), "what is checked against the file"
            numbers = sum(math.prod(piece.wanted) for piece in read)
            if not any(piece.piece for piece in read):
                assert numbers == math.prod(part.shape) * len(read)
            elif ".k_proj" not in part.name and ".v_proj" not in part.name:
                assert numbers == math.prod(part.shape)
            cells = [cell for piece in read for cell in _corners(piece.piece or tuple(map(range, part.shape)))]
            assert set(cells) >= set(_corners(tuple(map(range, part.shape))))


def _corners(piece: tuple[range, ...]) -> list[tuple[int, ...]]:
    return list(product(*((side.start, side.stop - 1) for side in piece)))


@pytest.mark.parametrize(("whole", "size"), CASES)
def test_a_parts_shapes_are_those_of_its_own_spec(whole: ModelSpec, size: int) -> None:
    """What is computed from the spec of a part, its memory above all, holds for what it reads."""
    for shard in shards_of(whole, size):
        own = parameters_of(shard.spec)
        assert {name: [part.wanted for part in parts] for name, parts in shard.parameters.items()} == {
            name: [part.shape for part in own[name]] for name in shard.parameters
        }


def test_pieces_are_aligned_where_that_costs_nothing() -> None:
    for shard in shards_of(LLAMA_3_8B, 8):
        assert shard.intermediate.start % 64 == shard.vocab.start % 32 == 0
        assert len(shard.intermediate) == 14336 // 8
    assert [len(shard.intermediate) for shard in shards_of(ODD, 2)] == [40, 40]
    assert [len(shard.intermediate) for shard in shards_of(ODD, 3)] == [26, 26, 28]


def test_rank_0_which_also_schedules_has_no_more_than_others() -> None:
    assert [len(shard.kv_heads) for shard in shards_of(SMOLLM2_135M, 2)] == [1, 2]
    assert heaviest(SMOLLM2_135M, 2).rank == 1


@pytest.mark.parametrize(
    ("whole", "size", "words"),
    [
        (SMOLLM2_135M, 10, "9 query heads, 3 key heads) is shared by at most 9; its work divides evenly among 1, 3"),
        (LLAMA_3_8B, 64, "shared by at most 32; its work divides evenly among 1, 2, 4, 8, 16, 32"),
        (replace(ODD, intermediate=6), 4, "shared by at most 3"),
        (replace(ODD, vocab=4), 3, "shared by at most 2"),
    ],
)
def test_a_size_that_leaves_somebody_without_work_is_refused_with_those_that_do_not(
    whole: ModelSpec, size: int, words: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=r"^--tensor-parallel-size is ") as refused:
        shard_of(whole, 0, size)
    assert words in str(refused.value)


def test_uneven_work_is_told_with_the_sizes_that_are_even() -> None:
    assert even_sizes(QWEN25_7B) == (1, 2, 4)
    assert unevenness(LLAMA_3_8B, 8) is None
    assert unevenness(SMOLLM2_135M, 2) == (
        "2 ranks do not divide this model evenly (from 3 to 6 of 9 query heads each): 1, 3 would"
    )
    assert "unequal widths of the MLP" in str(unevenness(ODD, 6))


class TestMemory:
    """The one formula, for several ranks."""

    FOUR = EngineConfig(tensor_parallel_size=4)

    def test_each_device_holds_its_part(self) -> None:
        one, four = (needs_of(LLAMA_3_8B, config, width=2) for config in (EngineConfig(), self.FOUR))
        norms = 2 * 65 * 4096
        assert four.weights == (one.weights - norms) // 4 + norms
        assert four.geometry.block_bytes == one.geometry.block_bytes // 4

    def test_fewer_key_heads_than_ranks_are_held_by_several(self) -> None:
        sixteen = needs_of(LLAMA_3_8B, EngineConfig(tensor_parallel_size=16), width=2)
        assert sixteen.geometry.kv_heads == 1

    def test_the_fullest_device_counts(self) -> None:
        config = EngineConfig(tensor_parallel_size=2)
        needs = needs_of(SMOLLM2_135M, config, width=2)
        assert needs.geometry.kv_heads == 2
        assert needs.weights == weight_bytes(shard_of(SMOLLM2_135M, 1, 2).spec, 2)

    def test_on_a_host_all_parts_are_in_one_memory(self) -> None:
        config = EngineConfig(tensor_parallel_size=3)
        together = needs_of(SMOLLM2_135M, config, width=2, on_host=True)
        alone = needs_of(SMOLLM2_135M, EngineConfig(), width=2, on_host=True)
        norms = 2 * 61 * 576
        assert together.weights == alone.weights + 2 * norms
        assert together.geometry == alone.geometry

    def test_each_process_on_a_host_costs_its_own(self) -> None:
        needs = needs_of(SMOLLM2_135M, EngineConfig(max_model_len=256), width=2)
        enough = needs.weights + needs.activations + needs.least_bytes + 3 * HOST_RUNTIME_BYTES
        assert plan_cache(needs, HostRoom(limit=enough, processes=3)).blocks >= needs.least_blocks
        with pytest.raises(InsufficientMemory):
            plan_cache(needs, HostRoom(limit=enough - 1, processes=3))


class TestPlan:
    """`octavo plan --tensor-parallel-size`."""

    def planned(self, ranks: int, device: str = "H100"):
        engine = EngineConfig(tensor_parallel_size=ranks)
        (found,) = (item for item in DEVICES if item.name == device)
        target = device_target(found, PlanConfig(source="hf://o/m"), engine, width=2)
        return make_plan(LLAMA_3_8B, engine, target, context=1024)

    def test_what_one_device_reads_is_its_part(self) -> None:
        one, four = self.planned(1), self.planned(4)
        assert four.cost.token_flops * 4 == one.cost.token_flops
        assert four.cost.layer_kv_bytes * 4 == one.cost.layer_kv_bytes
        assert 3.9 < four.decode(1).tokens_per_second / one.decode(1).tokens_per_second < 4
        assert four.devices == 4

    def test_a_model_too_large_for_one_fits_several(self) -> None:
        large = replace(LLAMA_3_8B, layers=200, windows=(None,) * 200)
        engines = [EngineConfig(tensor_parallel_size=ranks) for ranks in (1, 2)]
        h100 = next(item for item in DEVICES if item.name == "H100")
        plans = [
            make_plan(large, engine, device_target(h100, PlanConfig(source="hf://o/m"), engine, width=2), context=128)
            for engine in engines
        ]
        assert [plan.cache is not None for plan in plans] == [False, True]

    def test_the_cost_of_a_part_is_that_of_its_spec(self) -> None:
        assert self.planned(8).cost == cost_of(shard_of(LLAMA_3_8B, 7, 8).spec, 2)
