"""Several ranks give the tokens of one: every way to split heads, biases, norms and vocabularies, however it is
scheduled. Ranks are threads here; `test_tensor_parallel_processes` has them as processes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_harness import GREEDY, Answered, Harness
from local_ranks import load, several_ranks
from octavo_engine.kernels.cpu import library
from octavo_engine.parallel import wire
from octavo_engine.parallel.board import Board, late
from octavo_engine.request import FinishReason, SamplingParams
from octavo_engine.runtime.inputs import StepPlan
from quantized_checkpoints import Recipe, awq_config, awq_gemm, gptq, gptq_config, gptq_v2, save_quantized
from tiny_models import SIZES, make_model, save_model

pytestmark = pytest.mark.engine
LENGTHS = (1, 15, 16, 17, 40, 90)
WORST_LOGIT = 1e-4

# 6 query heads of 2 key heads unless the name says otherwise, 80 wide, 199 tokens: nothing of it is a round number.
CASES = [
    ("llama", 2),
    ("llama", 3),  # the first has 3 query heads, the others share a key head, 1 and 2 queries each
    ("llama", 6),
    ("llama_tied", 2),
    ("llama_ungrouped", 4),  # 1, 2, 1 and 2 heads
    ("llama_one_kv_head", 2),
    ("llama_one_kv_head", 4),
    ("llama_biases", 3),
    ("llama_wide_heads", 2),
    ("mistral_window", 2),
    ("qwen2", 2),
    ("qwen3", 3),
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    names = {name for name, _ in CASES}
    return {name: save_model(make_model(name), tmp_path_factory.mktemp(name)) for name in sorted(names)}


def texts(count: int = len(LENGTHS), seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, SIZES["vocab_size"]) for _ in range(n)] for n in LENGTHS[:count]]


def assert_same(found: list[Answered], wanted: list[Answered]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.tokens == theirs.tokens
        for mine, other in zip(ours.logits, theirs.logits, strict=True):
            assert mine.shape == other.shape == (SIZES["vocab_size"],)
            assert (mine - other).abs().max() < WORST_LOGIT


@pytest.mark.parametrize(("variant", "size"), CASES)
def test_their_tokens_are_those_of_one_rank(variant: str, size: int, checkpoints: dict[str, Path]) -> None:
    """In chunks beside decodes, so that a step has everything in it."""
    prompts, path = texts(), checkpoints[variant]
    wanted = Harness(load(path, torch.float32), caching=False).together(prompts)
    with several_ranks(path, size, budget=37, caching=False) as harness:
        assert_same(harness.together(prompts), wanted)


QUANTIZED = {  # pieces of its products begin within groups
    "awq": ("llama", 2, Recipe(awq_config(), awq_gemm, group=16)),
    "gptq, by activation": (
        "llama_tied",
        3,
        Recipe(gptq_config(desc_act=True, sym=True), gptq, symmetric=True, by_activation=True),
    ),
    "gptq_v2, 8 bits": (
        "llama_biases",
        2,
        Recipe(gptq_config(bits=8, checkpoint_format="gptq_v2"), gptq_v2, bits=8),
    ),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_weights_in_few_bits_are_split_as_well(name: str, tmp_path: Path) -> None:
    variant, size, recipe = QUANTIZED[name]
    path = save_quantized(make_model(variant), tmp_path, recipe)
    wanted = Harness(load(path, torch.float32), caching=False).together(texts(4))
    with several_ranks(path, size, caching=False) as harness:
        assert_same(harness.together(texts(4)), wanted)


@pytest.fixture(scope="module")
def path(checkpoints: dict[str, Path]) -> Path:
    return checkpoints["llama"]


@pytest.fixture(scope="module")
def wanted(path: Path) -> list[Answered]:
    return Harness(load(path, torch.float32), caching=False).together(texts())


class TestHowever:
    """A model whose ranks differ in heads, scheduled in every way."""

    def test_with_prefix_hits(self, path: Path, wanted: list[Answered]) -> None:
        with several_ranks(path, 3) as harness:
            harness.together(texts())
            again = harness.together(texts())
            assert sum(answer.request.num_cached for answer in again) > sum(LENGTHS) // 2
            assert_same(again, wanted)

    def test_after_preemption(self, path: Path, wanted: list[Answered]) -> None:
        with several_ranks(path, 3, blocks=13) as harness:
            answers = harness.together(texts(), replace(GREEDY, max_tokens=64))
            assert sum(answer.request.num_preemptions for answer in answers) >= 2
        assert_same(
            [replace(answer, tokens=answer.tokens[:16], logits=answer.logits[:16]) for answer in answers], wanted
        )

    def test_beside_others_that_are_aborted_or_sample(self, path: Path, wanted: list[Answered]) -> None:
        """What goes leaves nothing behind: its blocks are another's, in every rank."""
        wild = SamplingParams(temperature=1.5, top_p=0.9, max_tokens=30, logprobs=3, ignore_eos=True)
        with several_ranks(path, 3, blocks=60) as harness:
            strangers = [harness.submit(text, wild) for text in texts(seed=1)]
            mine = [harness.submit(text, GREEDY) for text in texts()]
            for _ in range(5):
                harness.engine.step()
            for stranger in strangers[::2]:
                harness.engine.abort(stranger.id)
            assert_same(harness.finish(mine), wanted)
            assert {stranger.finish_reason for stranger in strangers} == {FinishReason.ABORT, FinishReason.LENGTH}
            assert harness.engine.snapshot.used_blocks == 0

    def test_with_steps_that_sample_nothing(self, path: Path, wanted: list[Answered]) -> None:
        with several_ranks(path, 3, budget=16, caching=False) as harness:
            alone = harness.alone(texts()[-1:], replace(GREEDY, max_tokens=4))
        assert alone[0].tokens == wanted[-1].tokens[:4]

    @pytest.mark.skipif(library.load() is None, reason="the CPU kernels do not run here")
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_alone_and_together_give_the_same_bits(self, path: Path, dtype: torch.dtype) -> None:
        with several_ranks(path, 3, dtype, caching=False) as harness:
            together, alone = harness.together(texts(4)), harness.alone(texts(4))
        for ours, theirs in zip(together, alone, strict=True):
            assert torch.equal(torch.stack(ours.logits), torch.stack(theirs.logits))


def plan(sequences: int, tokens: int, width: int) -> StepPlan:
    draw = np.random.default_rng(sequences)
    counts = np.ones(sequences, np.int64)
    counts[-1] += tokens - sequences
    return StepPlan(
        starts=draw.integers(0, 1000, sequences),
        counts=counts,
        samples=draw.integers(0, 2, sequences).astype(np.bool_),
        tokens=draw.integers(0, 150_000, tokens),
        tables=draw.integers(0, 2**31 - 1, (sequences, 2 * width)).astype(np.int32)[:, :width],
    )


@pytest.mark.parametrize(("sequences", "tokens", "width"), [(1, 1, 1), (1, 2048, 40), (3, 3, 2), (256, 2048, 512)])
def test_a_step_arrives_as_it_was_sent(sequences: int, tokens: int, width: int) -> None:
    sent = plan(sequences, tokens, width)
    came = wire.decode(wire.encode(sent))
    for name in StepPlan.__dataclass_fields__:
        ours, theirs = getattr(sent, name), getattr(came, name)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
        assert (ours == theirs).all(), name
    assert torch.from_numpy(came.tables).is_contiguous()


@pytest.mark.parametrize("cut", [0, 5, 12, 30, -1])
def test_bytes_that_do_not_add_up_are_no_step(cut: int) -> None:
    whole = wire.encode(plan(3, 9, 2))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(wire.NotAStep):
            wire.decode(wrong)


def test_a_step_whose_tokens_are_not_those_of_its_sequences_is_none() -> None:
    for counts in ([1, 1, 1], [0, 1, 2], [-1, 1, 3]):
        wrong = replace(plan(3, 3, 2), counts=np.array(counts), tokens=np.arange(3 + (counts == [1, 1, 1])))
        with pytest.raises(wire.NotAStep):
            wire.decode(wire.encode(wrong))


def test_who_has_come_to_fewer_meetings_is_late() -> None:
    board = Board.create(3)
    try:
        other = Board(board.descriptor, 3)  # as another process maps it
        for rank in (0, 2, 1, 0, 2):
            other.come(rank)
        assert board.counts == [2, 1, 2]
        assert late(board.counts) == [1]
        board.come(1)
        assert late(other.counts) == []
    finally:
        board.close()
