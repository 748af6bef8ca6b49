"""Decodes replayed from real CUDA graphs, recorded while an engine runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine_harness import Harness
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.loading import load_model
from octavo_engine.pulse import Pulse
from octavo_engine.request import SamplingParams
from octavo_engine.runtime.cuda_recorder import CudaRecorder
from octavo_engine.runtime.graph_capture import GraphCapture, NotRecorded
from octavo_engine.runtime.graphs import GraphedSteps
from octavo_engine.runtime.runner import Steps
from replaying import graphed
from tiny_models import make_model, save_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]
CUDA = torch.device("cuda")
SIZES = (1, 2, 4, 8)
LENGTHS = (1, 16, 40, 65, 300, 7)


def answers(decoder: Decoder, wrap: Callable[[Steps], Steps | GraphedSteps], *, overlap: bool) -> list[list[int]]:
    """Greedy tokens, while a size is recorded after each step; batches become smaller one by one."""
    harness = Harness(decoder, spare_blocks=1, wrap=wrap, overlap=overlap)
    steps = harness.runner._compute
    capture = None
    if isinstance(steps, GraphedSteps):
        capture = GraphCapture(steps.record, SIZES, pulse=Pulse(), on_phase=lambda *_: None, clock=lambda: 1.0)
    source = torch.Generator().manual_seed(3)
    requests = [
        harness.submit(
            torch.randint(3, decoder.spec.vocab, (length,), generator=source).tolist(),
            SamplingParams(temperature=0.0, max_tokens=16 + 4 * number, ignore_eos=True),
        )
        for number, length in enumerate(LENGTHS)
    ]
    while harness.engine.has_work:
        harness.engine.step()
        if capture is not None and not capture(idle=False):
            capture = None
    if isinstance(steps, GraphedSteps):
        assert steps.recorded == list(SIZES), "a size could not be recorded; the log says why"
    return [request.output_ids for request in requests]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("variant", ["llama", "mistral_window", "qwen2_window", "qwen3"])
def test_replayed_tokens_are_those_of_steps_launched_one_by_one(variant: str, overlap: bool, tmp_path: Path) -> None:
    place = save_model(make_model(variant), tmp_path)
    decoder = load_model(str(place), dtype=torch.float32, device=CUDA, kernels=choose_attention("triton"))
    plain = answers(decoder, lambda steps: steps, overlap=overlap)
    assert answers(decoder, lambda steps: graphed(steps, SIZES, CudaRecorder(CUDA)), overlap=overlap) == plain


def test_a_replay_reads_the_same_memory_again() -> None:
    numbers = torch.arange(4.0, device=CUDA)
    recording = CudaRecorder(CUDA).record(lambda: numbers * 2)
    numbers.add_(1)
    recording.replay()
    assert recording.result.tolist() == [2.0, 4.0, 6.0, 8.0]


def test_a_recording_that_fails_leaves_the_device_usable() -> None:
    recorder, numbers = CudaRecorder(CUDA), torch.arange(4.0, device=CUDA)

    def waits_for_the_device() -> torch.Tensor:
        return numbers * float(numbers.sum().item())

    stream = torch.cuda.current_stream(CUDA)
    with pytest.raises(NotRecorded):
        recorder.record(waits_for_the_device)
    assert torch.cuda.current_stream(CUDA) == stream
    assert (numbers + 1).tolist() == [1.0, 2.0, 3.0, 4.0]
