"""Several ranks give the tokens of one: every way to split heads, biases, norms and vocabularies, however it is
scheduled. Ranks are threads here; `test_tensor_parallel_processes` has them as processes."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_harness import GREEDY, Answered, Harness
from local_ranks import Company, company, load, several_ranks
from octavo_engine.errors import EngineDead
from octavo_engine.kernels.cpu import library
from octavo_engine.parallel import wire
from octavo_engine.parallel.board import Board, Meeting, late
from octavo_engine.parallel.channel import Channel, Kind
from octavo_engine.parallel.following import Follower, recorded_word
from octavo_engine.parallel.leading import LeadingRunner
from octavo_engine.parallel.ranks import leave_within
from octavo_engine.parallel.worker import follow
from octavo_engine.pulse import Pulse
from octavo_engine.request import PROMISED, FinishReason, SamplingParams
from octavo_engine.runtime.graph_capture import GraphCapture
from octavo_engine.runtime.inputs import StepPlan
from patience import PATIENCE_SECONDS
from quantized_checkpoints import Recipe, awq_config, awq_gemm, gptq, gptq_config, gptq_v2, save_quantized
from replaying import Replaying, Unwilling
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


class TestWhileDevicesCompute:
    """Steps that are told and launched before the tokens of the last are known: the others get these from rank 0's
    device, and answers are those of one rank, step by step."""

    @pytest.mark.parametrize("variant", ["llama", "llama_one_kv_head", "qwen3"])
    def test_their_tokens_are_those_of_one_rank(self, variant: str, checkpoints: dict[str, Path]) -> None:
        path = checkpoints[variant]
        wanted = Harness(load(path, torch.float32), caching=False).together(texts())
        with company(path, 2, budget=37, caching=False, overlap=True) as made:
            assert_same(made.harness.together(texts()), wanted)
            assert made.peers[0].spreads == made.peers[1].spreads > 10

    def test_after_preemption_with_prefix_hits(self, path: Path, wanted: list[Answered]) -> None:
        with company(path, 3, blocks=13, overlap=True) as made:
            answers = made.harness.together(texts(), replace(GREEDY, max_tokens=64))
            assert sum(answer.request.num_preemptions for answer in answers) >= 2
            again = made.harness.together(texts(2))
            assert made.peers[2].spreads > 10
        for answer in (*answers, *again):
            assert PROMISED not in answer.tokens
        assert [answer.tokens[:16] for answer in answers] == [answer.tokens for answer in wanted]
        assert [answer.tokens for answer in again] == [answer.tokens for answer in wanted[:2]]

    def test_beside_others_that_are_aborted_sample_or_need_their_own_tokens(
        self, path: Path, wanted: list[Answered]
    ) -> None:
        """While one has a penalty steps come one by one, and nothing is spread; both before it and after it is."""
        wild = SamplingParams(temperature=1.5, top_p=0.9, max_tokens=30, logprobs=3, ignore_eos=True)
        careful = SamplingParams(temperature=0.0, max_tokens=5, presence_penalty=0.5, ignore_eos=True)
        with company(path, 3, blocks=60, overlap=True) as made:
            engine = made.harness.engine
            strangers = [made.harness.submit(text, wild) for text in texts(seed=1)]
            mine = [made.harness.submit(text, GREEDY) for text in texts()]
            for _ in range(5):
                engine.step()
            for stranger in strangers[::2]:
                engine.abort(stranger.id)
            before = made.peers[1].spreads
            other = made.harness.submit([5, 6, 7], careful)
            while other.finish_reason is None:
                engine.step()
            assert made.peers[1].spreads <= before + 1, "that of the step that was in flight"
            answers = made.harness.finish(mine)
            assert made.peers[1].spreads > before + 1
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in wanted]
        assert engine.snapshot.used_blocks == 0

    def test_a_fault_in_a_launched_step_is_told_with_the_rank_that_was_lost(self) -> None:
        class Lost:
            def broken(self, otherwise: str) -> EngineDead:
                assert "RuntimeError" in otherwise
                return EngineDead("rank 1 of 2 was killed")

        class Broken:
            def launch(self, batch: object) -> Broken:
                return self

            def wait(self) -> list[object]:
                raise RuntimeError("connection closed by peer")

        pending = LeadingRunner(Broken(), Lost()).launch(None)  # type: ignore[arg-type]
        with pytest.raises(EngineDead, match="rank 1 of 2 was killed"):
            pending.wait()


GRAPHS = (1, 2, 4, 6)  # sequences


def recorded_meanwhile(made: Company) -> list[list[int]]:
    """Greedy answers of which each is longer than the one before, so that batches of all sizes come, while sizes are
    recorded between steps."""
    capture: GraphCapture | None = GraphCapture(
        made.record, GRAPHS, pulse=Pulse(), on_phase=lambda *_: None, clock=lambda: 1.0
    )
    requests = [
        made.harness.submit(text, replace(GREEDY, max_tokens=8 + 3 * number)) for number, text in enumerate(texts())
    ]
    while made.harness.engine.has_work:
        made.harness.engine.step()
        if capture is not None and not capture(idle=False):
            capture = None
    return [request.output_ids for request in requests]


@pytest.fixture(scope="module")
def plain(path: Path) -> list[list[int]]:
    """The same answers by one rank without graphs."""
    harness = Harness(load(path, torch.float32))
    requests = [harness.submit(text, replace(GREEDY, max_tokens=8 + 3 * number)) for number, text in enumerate(texts())]
    return [answer.tokens for answer in harness.finish(requests)]


class TestGraphs:
    """Decodes that all ranks record at the same place among their steps, and replay in the same steps.

    A replay computes again here, so that a rank which replays alone would come to other meetings, or to none.
    """

    @pytest.mark.parametrize("overlap", [False, True])
    def test_they_answer_the_same_while_graphs_are_recorded(
        self, path: Path, plain: list[list[int]], overlap: bool
    ) -> None:
        recorders = [Replaying() for _ in range(3)]
        with company(path, 3, recorders=recorders, sizes=GRAPHS, overlap=overlap) as made:
            assert recorded_meanwhile(made) == plain
            assert [graphs.recorded for graphs in made.graphs] == [list(GRAPHS)] * 3
        first, *others = (recorder.replays for recorder in recorders)
        assert others == [first, first]
        assert set(first) == set(GRAPHS)
        assert (made.peers[0].spreads > 0) == overlap

    @pytest.mark.parametrize("unwilling", [0, 2])
    def test_what_one_rank_cannot_record_none_replays(
        self, path: Path, plain: list[list[int]], unwilling: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Of 6, 4 and 2 the last fails in one of them: so do its others' recordings, and smaller ones are not tried."""
        recorders = [Unwilling(2) if rank == unwilling else Replaying() for rank in range(3)]
        with company(path, 3, recorders=recorders, sizes=GRAPHS) as made:
            assert recorded_meanwhile(made) == plain
            assert [graphs.recorded for graphs in made.graphs] == [[4, 6]] * 3
        first, *others = (recorder.replays for recorder in recorders)
        assert others == [first, first]
        assert set(first) == {4, 6}
        (line,) = [message for message in caplog.messages if "CUDA graph" in message]
        who = "" if unwilling == 0 else "rank 2: "
        assert f"the CUDA graph of 2 sequences cannot be recorded ({who}OutOfMemoryError: no memory is left)" in line

    def test_a_rank_whose_step_fails_before_the_recording_is_lost(self, path: Path) -> None:
        """Others wait for it in that step's meetings: it cannot answer as if nothing had been."""

        class Failing(Replaying):
            def record(self, compute: object, /) -> object:  # type: ignore[override]
                raise torch.OutOfMemoryError("no memory is left")

        with company(path, 2, recorders=[Replaying(), Failing()], sizes=GRAPHS) as made:
            with pytest.raises(EngineDead, match="a step of several ranks failed in rank 0: BrokenBarrierError"):
                made.record(6)
            (fault,) = made.faults
            assert isinstance(fault, torch.OutOfMemoryError)
            made.faults.clear()

    def test_graphs_are_forgotten_before_ranks_part(self, path: Path) -> None:
        with company(path, 2, recorders=[Replaying(), Replaying()], sizes=GRAPHS) as made:
            made.record(6)
            follower = Follower(made.graphs[1], made.peers[1], block_size=16, device=torch.device("cpu"))
            follower.close()
            assert [graphs.recorded for graphs in made.graphs] == [[6], []]


def test_a_worker_answers_what_it_is_told_to_record() -> None:
    """The talk between rank 0's Team and a worker, with steps before and after."""

    class Noting:
        def __init__(self) -> None:
            self.done: list[object] = []

        def step(self, data: bytes) -> None:
            self.done.append(data)

        def obey(self, words: dict[str, int]) -> dict[str, str]:
            self.done.append(words)
            return {recorded_word(size): "no" for word, size in words.items() if word == "record"}

    (ours, end), noting = Channel.pair(), Noting()
    theirs = Channel(end)
    worker = threading.Thread(target=follow, args=(theirs, noting))
    worker.start()
    ours.send(Kind.STEP, b"first")
    ours.say({"record": 8})
    ours.send(Kind.STEP, b"second")
    ours.say({"forget": 8})
    answer = ours.receive()
    ours.end()
    worker.join(PATIENCE_SECONDS)
    ours.close()
    theirs.close()
    assert answer is not None
    assert answer.words == {recorded_word(8): "no"}
    assert noting.done == [b"first", {"record": 8}, b"second", {"forget": 8}]


def test_a_rank_without_graphs_is_not_told_of_them() -> None:
    follower = Follower(lambda inputs, reader=None: None, RoomOfOne(), block_size=16, device=torch.device("cpu"))
    for words in ({"record": 8}, {"this": "is no step"}):
        with pytest.raises(AssertionError):
            follower.obey(words)
    follower.close()


class RoomOfOne:
    """Nobody to meet."""

    def spread(self, numbers: torch.Tensor) -> None:
        raise AssertionError("nobody has promised anything")


def test_who_does_not_part_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()

    def leave() -> None:
        over.wait(PATIENCE_SECONDS)

    leave_within(lambda: None, 30)
    assert caplog.messages == []
    leave_within(leave, 0.01)
    over.set()
    assert "the other ranks do not part within 0.01 s" in caplog.text


@pytest.mark.parametrize(
    ("counts", "tokens", "unknown"),
    [
        ([1, 1, 3], [5, PROMISED, 7, 8, 9], 2),
        ([1, 1, 3], [5, 6, 7, 8, 9], 0),
        ([3], [7, 8, 9], 0),
        ([1], [PROMISED], 1),
    ],
)
def test_a_plan_says_which_of_its_tokens_only_devices_know(counts: list[int], tokens: list[int], unknown: int) -> None:
    made = replace(plan(len(counts), sum(counts), 2), counts=np.array(counts), tokens=np.array(tokens))
    assert made.num_unknown == unknown
    assert wire.decode(wire.encode(made)).num_unknown == unknown


def plan(sequences: int, tokens: int, width: int) -> StepPlan:
    draw = np.random.default_rng(sequences)
    counts = np.ones(sequences, np.int64)
    counts[-1] += tokens - sequences
    return StepPlan(
        starts=draw.integers(0, 1000, sequences),
        counts=counts,
        samples=draw.integers(0, counts + 1),
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


@pytest.mark.parametrize("samples", [[2, 0, 0], [0, 0, -1]])
def test_a_sequence_gives_tokens_for_those_that_it_computes_only(samples: list[int]) -> None:
    with pytest.raises(wire.NotAStep):
        wire.decode(wire.encode(replace(plan(3, 3, 2), samples=np.array(samples))))


def test_who_has_come_to_fewer_meetings_is_late() -> None:
    board = Board.create(3)
    try:
        other = Board(board.descriptor, 3)  # as another process maps it
        for rank in (0, 2, 1, 0, 2):
            other.come(rank, Meeting.BROADCAST if rank == 1 else Meeting.GATHER)
        assert board.counts == [2, 1, 2]
        assert late(board.counts) == [1]
        assert board.present is Meeting.GATHER
        board.come(1, Meeting.GATHER)
        assert late(other.counts) == []
    finally:
        board.close()
