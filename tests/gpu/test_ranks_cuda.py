"""Several ranks on real CUDA devices: NCCL in steps that overlap, and in graphs, gives the tokens of one rank."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest
import torch

from engine_harness import NoMetrics
from no_text import NoText
from octavo_engine import assembly
from octavo_engine.config import EngineConfig
from octavo_engine.request import Request, SamplingParams
from tiny_models import SIZES, make_model, save_model

DEVICES = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICES < 2, reason=f"needs two CUDA devices; torch sees {DEVICES}"),
]
LENGTHS = (1, 16, 40, 65, 300, 7)
GRAPHS = "1,2,4,8"


class NoTokenizer:
    """Enough of one for an engine whose requests are tokens."""

    vocab_size, eos_ids = SIZES["vocab_size"], ()


def answers(path: Path, ranks: int, **changes: object) -> list[list[int]]:
    """Greedy tokens while sizes are recorded between steps; batches become smaller one by one."""
    draw = random.Random(3)
    config = EngineConfig(
        model=str(path),
        dtype="float32",
        tensor_parallel_size=ranks,
        max_num_seqs=8,
        cuda_graph_sizes=GRAPHS,
        kv_cache_memory_bytes=64 * 1024**2,
        **changes,  # type: ignore[arg-type]
    )
    made = assembly.assemble(config, NoTokenizer(), NoMetrics())  # type: ignore[arg-type]
    try:
        requests = [
            Request(
                id=str(number),
                tokens=[draw.randrange(3, SIZES["vocab_size"]) for _ in range(length)],
                params=SamplingParams(temperature=0.0, max_tokens=16 + 4 * number, ignore_eos=True),
                arrival=0.0,
            )
            for number, length in enumerate(LENGTHS)
        ]
        for request in requests:
            made.engine.add(request)
        errand = made.errand
        while made.engine.has_work:
            made.engine.step()
            if errand is not None and not errand(True):
                errand = None
        if made.graphs is not None:
            assert made.graphs.recorded == [1, 2, 4, 8], "a size could not be recorded; the log says why"
    finally:
        made.close()
    return [request.output_ids for request in requests]


@pytest.fixture(autouse=True)
def tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "detokenizer", lambda _tokenizer, _request: NoText())


@pytest.mark.parametrize("variant", ["llama", "mistral_window", "qwen3"])
def test_their_tokens_are_those_of_one_rank(variant: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And all of them part in the end: nobody is left behind or killed, with graphs that have recorded meetings."""
    path = save_model(make_model(variant), tmp_path)
    plain = answers(path, 1, enforce_eager=True, async_scheduling=False)
    for eager, overlap in product((True, False), (False, True)):
        assert answers(path, 2, enforce_eager=eager, async_scheduling=overlap) == plain
    assert not [message for message in caplog.messages if "do not part" in message or "does not end" in message]
