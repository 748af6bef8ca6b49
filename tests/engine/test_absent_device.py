"""Steps as a GPU gets them, without one: of the model that hack/gpu-check times, in its full size. Every tensor is on
the device, and the host reads nothing back but the tokens at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from absent_device import CUDA, NAME, Once, SameThread, absent_device, read_by_shape
from cubins import Recorded
from gpu_check import check, octavo
from gpu_check.loads import FULL_PLAN
from gpu_check.results import EAGER, OCTAVO
from octavo_engine import assembly
from octavo_engine.batch import Batch, Slice
from octavo_engine.config import EngineConfig
from octavo_engine.kernels.triton.device import target_of
from octavo_engine.memory import CacheGeometry
from octavo_engine.request import PROMISED, Request, SamplingParams
from octavo_engine.runtime.drawn import Draw
from octavo_engine.runtime.graphs import GraphedSteps
from octavo_engine.runtime.kv_store import allocate
from octavo_engine.runtime.runner import Runner, Steps
from octavo_engine.runtime.sampler import Sampler
from tiny_models import SIZES, make_model, save_model

pytestmark = pytest.mark.engine
PROMPT, BLOCK, LAYERS = 512, 16, 32
BLOCKS = PROMPT // BLOCK + 1  # of each sequence
PARAMS = (
    SamplingParams(temperature=0.0, max_tokens=8),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=50, seed=1, max_tokens=8),
    SamplingParams(temperature=1.0, logprobs=3, min_tokens=2, logit_bias=((5, 1.0),), max_tokens=8),
)


def requests() -> list[Request]:
    made = [Request(id=str(number), tokens=[7] * PROMPT, params=how, arrival=0.0) for number, how in enumerate(PARAMS)]
    for number, request in enumerate(made):
        request.blocks[:] = range(number * BLOCKS, (number + 1) * BLOCKS)
    return made


def batch(of: Sequence[Request], count: int) -> Batch:
    """Their last so many tokens."""
    return Batch(slices=tuple(Slice(each, len(each.tokens) - count, count, True) for each in of))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Recorded]]:
    monkeypatch.setattr(octavo, "ThreadPoolExecutor", SameThread)
    target_of.cache_clear()
    with absent_device() as noted:
        yield noted
    target_of.cache_clear()


def steps() -> Steps:
    spec = check.spec_of(FULL_PLAN, torch.bfloat16)
    geometry = CacheGeometry(spec.layers, spec.kv_heads, spec.head_dim, 2, BLOCK)
    caches = allocate(geometry, len(PARAMS) * BLOCKS + 1, dtype=torch.bfloat16, device=CUDA)
    return Steps(octavo.random_decoder(spec, torch.bfloat16, CUDA), caches, alone=True)


def launched(noted: list[Recorded]) -> Counter[str]:
    """How often each kernel was launched since it was last asked."""
    found = Counter(launch.name for launch in noted)
    noted.clear()
    return found


@pytest.mark.parametrize("contender", [OCTAVO, EAGER])
def test_what_is_timed_runs_as_on_a_device(
    contender: str, launches: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole load of hack/gpu-check, steps overlapping, with recorded decodes and without."""
    monkeypatch.setattr(octavo, "CudaRecorder", lambda _device: Once())
    load = replace(FULL_PLAN.loads[1], steps=4)
    decoder = octavo.random_decoder(check.spec_of(FULL_PLAN, torch.bfloat16), torch.bfloat16, CUDA)
    timing = octavo.Timed(decoder, contender)(load)
    assert timing.tokens_per_second > 0
    assert timing.load == load
    decodes = launched(launches)["decode"] // LAYERS
    assert decodes == 1 if contender == OCTAVO else decodes >= load.steps


LAYER = {"norm_row": 2 * LAYERS + 1, "turn_heads": LAYERS, "gate_row": LAYERS}
DRAWN = {"list_candidates": 1, "draw_candidate": 1}


def test_prompts_and_the_decodes_after_them_ask_nothing_of_the_device(launches: list[Recorded]) -> None:
    runner = Runner(steps(), block_size=BLOCK, device=CUDA, sampler=Sampler(eos_ids=(2,)))
    asked = requests()
    drawn = runner.launch(batch(asked, PROMPT))
    assert isinstance(drawn, Draw)
    assert (drawn.tokens.device, drawn.tokens.shape) == (CUDA, (len(PARAMS),))
    assert launched(launches) == LAYER | DRAWN | {"mixed": LAYERS}
    for request in asked:
        request.tokens.append(PROMISED)
    drawn = runner.launch(batch(asked, 1))
    assert isinstance(drawn, Draw)
    assert drawn.tokens.device == CUDA
    assert launched(launches) == LAYER | DRAWN | {"decode": LAYERS, "merge": LAYERS}
    with pytest.raises(DataDependentOutputException):
        drawn.tokens.tolist()


def test_a_replay_asks_nothing_either_and_launches_nothing_but_the_draw(launches: list[Recorded]) -> None:
    graphed = GraphedSteps.over(steps(), (4,), Once(), max_context=8192)
    graphed.record(4)
    assert launched(launches) == LAYER | {"decode": LAYERS, "merge": LAYERS}
    runner = Runner(graphed, block_size=BLOCK, device=CUDA, sampler=Sampler(eos_ids=(2,)))
    asked = [replace(each, tokens=[7] * (PROMPT + 1)) for each in requests()]
    drawn = runner.launch(batch(asked, 1))
    assert isinstance(drawn, Draw)
    assert drawn.tokens.device == CUDA
    assert launched(launches) == DRAWN
    assert graphed.latest == "the CUDA graph of 4 sequences"


class NoTokenizer:
    """Enough of one for requests that are tokens."""

    vocab_size, eos_ids = SIZES["vocab_size"], ()


@pytest.mark.parametrize(
    ("variant", "changes"), [("llama", {}), ("qwen3", {"dtype": "bfloat16", "kv_cache_dtype": "fp8"})]
)
def test_an_engine_is_assembled_and_answers_as_on_a_device(
    variant: str, changes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the checkpoint to tokens, sizes being recorded after the first step; and it knows which device that was."""
    place = save_model(make_model(variant), tmp_path)
    read_by_shape(monkeypatch)
    monkeypatch.setattr(assembly, "choose_device", lambda _name: torch.device("cuda"))
    monkeypatch.setattr(assembly, "CudaRecorder", lambda _device: Once())
    monkeypatch.setattr(assembly, "detokenizer", lambda _tokenizer, _request: octavo.NoText())
    target_of.cache_clear()
    with absent_device():
        config = EngineConfig(model=str(place), max_num_seqs=8, **changes)  # type: ignore[arg-type]
        made = assembly.assemble(config, NoTokenizer(), octavo.NoMetrics())  # type: ignore[arg-type]
        asked = [
            Request(id=str(n), tokens=[7] * n, params=replace(PARAMS[n % 2], ignore_eos=True), arrival=0.0)
            for n in (1, 16, 40, 65, 300)
        ]
        for request in asked:
            made.engine.add(request)
        while made.engine.has_work:
            made.engine.step()
            while made.errand is not None and made.graphs.recorded != [1, 2, 4, 8]:
                made.errand(True)
    target_of.cache_clear()
    assert [len(request.output_ids) for request in asked] == [8] * len(asked)
    assert made.attention_backend == "triton"
    assert made.circumstances() == f"; {NAME} (cuda:0, GPU-0-1); launched last: the CUDA graph of 8 sequences"
