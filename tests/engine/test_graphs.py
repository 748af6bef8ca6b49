"""Decodes that are padded and replayed give what they give step by step, and touch nobody else's cache. The recording
itself is a device's affair: here a replay computes again, from the same tensors (`tests/gpu` has the real one)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_harness import Harness, NoMetrics
from octavo_engine import assembly
from octavo_engine.config import EngineConfig
from octavo_engine.engine import Engine
from octavo_engine.kernels.attention import Backend
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.recorded import MOST_RULES, RecordedNumbers
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.loading import load_model
from octavo_engine.pulse import Pulse
from octavo_engine.request import SamplingParams
from octavo_engine.runtime.graph_capture import GraphCapture
from octavo_engine.runtime.graphs import GraphedSteps
from octavo_engine.runtime.inputs import StepInputs
from octavo_engine.runtime.kv_store import LayerCache
from octavo_engine.runtime.runner import Steps
from paging import Pages
from replaying import Replaying, Unwilling, graphed
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine
BLOCK, BLOCKS, LONGEST = 16, 40, 70  # tokens; blocks beside the padding's; tokens
SIZES = (1, 2, 4, 6)
VARIANTS = ("llama", "mistral_window", "qwen3")


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Backend], Decoder]:
    place = tmp_path_factory.mktemp("tiny")
    found = {}
    for variant in VARIANTS:
        checkpoint = str(save_model(make_model(variant), place / variant))
        for backend in ("torch", "reference"):
            found[variant, backend] = load_model(
                checkpoint,
                dtype=torch.float32,
                device=torch.device("cpu"),
                kernels=choose_attention(backend),
                loop="python",
            )
    return found


def random_caches(decoder: Decoder) -> list[LayerCache]:
    source = torch.Generator().manual_seed(1)
    shape = (BLOCKS + 1, BLOCK, decoder.spec.kv_heads, decoder.spec.head_dim)
    return [tuple(torch.randn(shape, generator=source) for _ in range(2)) for _ in range(decoder.spec.layers)]


def decodes(lengths: list[int], seed: int) -> StepInputs:
    """A step of sequences with so many tokens each, the new one included, in random blocks."""
    draw = random.Random(seed)
    blocks = draw.sample(range(BLOCKS), BLOCKS)
    tables = [[blocks.pop() for _ in range(-(-length // BLOCK))] for length in lengths]
    layout = Pages(tables, BLOCK, BLOCKS).layout([(index, length - 1, 1) for index, length in enumerate(lengths)])
    return StepInputs(torch.tensor([draw.randrange(199) for _ in lengths]), layout, None)


@dataclass
class Twins:
    """The same model with caches of its own each way: step by step, and recorded."""

    plain: Steps
    steps: Steps
    recorded: GraphedSteps  # around `steps`
    recorder: Replaying

    @classmethod
    def of(cls, decoder: Decoder) -> Twins:
        plain, steps = (Steps(decoder, random_caches(decoder), alone=True) for _ in range(2))
        recorder = Replaying()
        return cls(plain, steps, graphed(steps, SIZES, recorder), recorder)

    @property
    def caches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor of both, the padding's block left out."""
        return [
            (ours[:BLOCKS], theirs[:BLOCKS])
            for pair in zip(self.plain.caches, self.steps.caches, strict=True)
            for ours, theirs in zip(*pair, strict=True)
        ]

    def give_blocks_away(self, seed: int) -> None:
        """Everything cached is another's from now on; the same in both."""
        source = torch.Generator().manual_seed(seed)
        for ours, theirs in self.caches:
            theirs.copy_(ours.normal_(generator=source))

    def agree_on(self, inputs: StepInputs) -> None:
        """Both compute it: the same logits and likeliest tokens; all slots but those of the step as they were."""
        before = [theirs.clone() for _, theirs in self.caches]
        wanted, found = self.plain(inputs), self.recorded(inputs)
        assert wanted is not None
        assert found is not None
        assert found.shape == wanted.shape
        torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-5)
        assert found.argmax(-1).tolist() == wanted.argmax(-1).tolist()
        slots = inputs.layout.slots
        for (ours, theirs), old in zip(self.caches, before, strict=True):
            torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-5)
            now, then = theirs.flatten(0, 1).clone(), old.flatten(0, 1)
            assert not torch.equal(now[slots], then[slots])
            now[slots] = then[slots]
            assert torch.equal(now, then)


batches = st.lists(st.lists(st.integers(1, LONGEST), min_size=1, max_size=7), min_size=1, max_size=4)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=12, deadline=None)
@given(batches, st.integers(0, 10**6))
def test_padded_and_replayed_is_what_it_is_step_by_step(
    decoders: dict[tuple[str, Backend], Decoder], variant: str, backend: Backend, lengths: list[list[int]], seed: int
) -> None:
    twins = Twins.of(decoders[variant, backend])
    for size in reversed(SIZES):
        twins.recorded.record(size)
    for number, batch in enumerate(lengths):
        twins.give_blocks_away(number)
        twins.agree_on(decodes(batch, seed + number))
    assert sum(twins.recorder.replays.values()) == sum(len(batch) <= SIZES[-1] for batch in lengths)


def test_a_batch_is_padded_to_its_own_size_alone(decoders: dict[tuple[str, Backend], Decoder]) -> None:
    twins = Twins.of(decoders["llama", "torch"])
    for size in (6, 2):
        twins.recorded.record(size)
    assert twins.recorded.recorded == [2, 6]
    for sequences in (1, 2, 3, 4, 5, 6, 7):
        twins.agree_on(decodes([20] * sequences, sequences))
    assert twins.recorder.replays == {2: 1, 6: 2}  # 1, 3 and 4 have sizes of their own, which nobody has recorded


def test_what_a_larger_batch_left_behind_is_padding_for_a_smaller_one(
    decoders: dict[tuple[str, Backend], Decoder],
) -> None:
    twins = Twins.of(decoders["llama", "torch"])
    twins.recorded.record(6)
    twins.agree_on(decodes([20, 30, 40, 50, 60, 5], 1))
    twins.give_blocks_away(2)
    twins.agree_on(decodes([20, 30, 40, 50, 60], 3))


def test_recording_writes_nothing_into_blocks_of_the_latest_batch(
    decoders: dict[tuple[str, Backend], Decoder],
) -> None:
    """They may have been given to another request in between."""
    twins = Twins.of(decoders["llama", "torch"])
    twins.recorded.record(6)
    twins.agree_on(decodes([30, 40, 50, 60, 5], 3))
    for _, theirs in twins.caches:
        theirs.fill_(7.0)
    twins.recorded.record(4)
    assert all(bool((theirs == 7.0).all()) for _, theirs in twins.caches)


PROMPTS = [[5, 6, 7], list(range(3, 40)), [9], list(range(50, 70)), [8] * 17, [4, 5]]


def answers(decoder: Decoder, recorder: Replaying | Unwilling | None, **options: object) -> list[list[int]]:
    """Greedy answers, each a token longer than the one before, so that batches of all sizes come; sizes are recorded
    while requests run."""

    def wrap(steps: Steps) -> Steps | GraphedSteps:
        return steps if recorder is None else graphed(steps, SIZES, recorder)

    harness = Harness(decoder, blocks=BLOCKS, spare_blocks=1, wrap=wrap, budget=24, **options)
    steps = harness.runner._compute
    capture = None
    if isinstance(steps, GraphedSteps):
        capture = GraphCapture(steps.record, SIZES, pulse=Pulse(), on_phase=lambda *_: None, clock=lambda: 1.0)
    requests = [
        harness.submit(prompt, SamplingParams(temperature=0.0, max_tokens=8 + 3 * number, ignore_eos=True))
        for number, prompt in enumerate(PROMPTS)
    ]
    while harness.engine.has_work:
        harness.engine.step()
        if capture is not None and not capture(idle=False):
            capture = None
    return [request.output_ids for request in requests]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_engine_answers_the_same_while_its_graphs_are_recorded(
    decoders: dict[tuple[str, Backend], Decoder], variant: str, overlap: bool
) -> None:
    recorder = Replaying()
    decoder = decoders[variant, "torch"]
    assert answers(decoder, recorder, overlap=overlap) == answers(decoder, None)
    assert set(recorder.replays) == set(SIZES)


def test_an_engine_that_can_record_nothing_answers_the_same(
    decoders: dict[tuple[str, Backend], Decoder], caplog: pytest.LogCaptureFixture
) -> None:
    decoder = decoders["llama", "torch"]
    assert answers(decoder, Unwilling()) == answers(decoder, None)
    (line,) = [message for message in caplog.messages if "CUDA graph" in message]
    assert "the CUDA graph of 6 sequences cannot be recorded (OutOfMemoryError: no memory is left)" in line


def test_numbers_follow_the_longest_sequence() -> None:
    numbers = RecordedNumbers(torch.device("cpu"))
    numbers.update(10)

    def double(longest: int) -> int:
        return 2 * longest

    cell, other = numbers.cell(double), numbers.cell(abs)
    assert (cell.dtype, cell.tolist(), other.tolist()) == (torch.int32, [20], [10])
    numbers.update(12)
    assert (cell.tolist(), other.tolist()) == ([24], [12])
    assert numbers.cell(double).data_ptr() == cell.data_ptr()
    for more in range(MOST_RULES - 2):
        numbers.cell(lambda longest, more=more: longest + more)  # type: ignore[misc]
    with pytest.raises(AssertionError):
        numbers.cell(lambda longest: longest)


class NoTokenizer:
    """Enough of one for an engine that gets no request."""

    eos_ids = ()


def assembled(decoder: Decoder, device: str, config: EngineConfig) -> tuple[GraphedSteps | None, Engine]:
    """What is built for that device, over a cache of `BLOCKS` and one more where there are graphs."""
    platform = assembly.Platform(torch.device(device), torch.float32, "triton", torch.float32)
    caches = random_caches(decoder)
    if not platform.graph_sizes_of(config):
        caches = [(keys[:BLOCKS], values[:BLOCKS]) for keys, values in caches]
    graphs = assembly.graphed_steps(config, platform, decoder, caches, 512)
    engine = assembly.build_engine(
        config,
        NoTokenizer(),  # type: ignore[arg-type]
        NoMetrics(),
        decoder,
        caches=caches,
        max_model_len=512,
        graphs=graphs,
    )
    return graphs, engine


def test_an_assembled_engine_leaves_the_last_block_to_padding(
    decoders: dict[tuple[str, Backend], Decoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "CudaRecorder", lambda device: Replaying())
    config = EngineConfig(max_num_seqs=6)
    graphs, engine = assembled(decoders["llama", "torch"], "cuda", config)
    assert graphs is not None
    assert engine._scheduler.capacity_tokens == BLOCKS * BLOCK
    phases: dict[str, float] = {}
    capture = assembly.capture_of(graphs, engine, phases.__setitem__)
    while capture(idle=True):
        pass
    assert tuple(graphs.recorded) == config.graph_sizes == (1, 2, 4, 6)
    assert list(phases) == ["cuda_graphs"]


@pytest.mark.parametrize(("device", "eager", "said"), [("cpu", False, []), ("cuda", True, ["--enforce-eager"])])
def test_where_there_are_no_graphs_there_is_no_block_for_them(
    decoders: dict[tuple[str, Backend], Decoder],
    caplog: pytest.LogCaptureFixture,
    device: str,
    eager: bool,
    said: list[str],
) -> None:
    with caplog.at_level("INFO"):
        graphs, engine = assembled(decoders["llama", "torch"], device, EngineConfig(enforce_eager=eager))
    assert graphs is None
    assert engine._scheduler.capacity_tokens == BLOCKS * BLOCK
    lines = [message for message in caplog.messages if "CUDA graphs" in message]
    assert lines == [f"decodes are not replayed from CUDA graphs: {reason}" for reason in said]
