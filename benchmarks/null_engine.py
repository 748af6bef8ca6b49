"""An engine whose model computes nothing: what is left is what Octavo itself costs.

Scheduler, block accounts, tensors of a step, sampler, text and metrics are the real ones. Only the decoder is replaced,
by one that returns the same few logits at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from checkpoint import packaged_gguf
from prometheus_client import CollectorRegistry

from octavo_engine.assembly import build_scheduler, detokenizer
from octavo_engine.batch import SchedulerStats
from octavo_engine.config import EngineConfig
from octavo_engine.engine import Engine
from octavo_engine.kernels.attention import StepLayout
from octavo_engine.metrics import Metrics
from octavo_engine.runtime.kv_store import LayerCache
from octavo_engine.runtime.runner import Runner, Steps
from octavo_engine.runtime.sampler import Sampler
from octavo_engine.scheduling.scheduler import Scheduler
from octavo_engine.tokenizer import Tokenizer, load_tokenizer

TOKEN = 311  # what the model says, over and over
WIDTH = 512  # of its logits: enough to choose from, too few to take time
MAX_STREAMS = 1_024


class NullModel:
    """Says `TOKEN`, whatever it is asked, after `pause` seconds in which it uses no processor."""

    def __init__(self, max_tokens: int, pause: float) -> None:
        self._pause = pause
        self._hidden = torch.zeros(max_tokens, 1)
        self._logits = torch.zeros(MAX_STREAMS, WIDTH)
        self._logits[:, TOKEN] = 1.0

    def forward(
        self,
        tokens: torch.Tensor,
        layout: StepLayout,  # noqa: ARG002 (computes nothing)
        caches: Sequence[LayerCache],  # noqa: ARG002
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states of the right number."""
        if self._pause:
            time.sleep(self._pause)
        return self._hidden[: len(tokens if kept is None else kept)]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of the right number."""
        return self._logits[: len(hidden)]


@dataclass(frozen=True)
class NullParts:
    """An engine and what a benchmark looks at."""

    engine: Engine
    scheduler: Scheduler
    runner: Runner
    sampler: Sampler
    tokenizer: Tokenizer


def null_engine(*, max_model_len: int, blocks: int, pause: float = 0.0) -> NullParts:
    """An engine for up to `MAX_STREAMS` requests, with SmolLM2's tokenizer. Each step takes `pause` seconds more."""
    config = EngineConfig(model="null", max_num_seqs=MAX_STREAMS, max_num_batched_tokens=8_192)
    tokenizer = load_tokenizer(str(packaged_gguf()))
    scheduler, sampler = build_scheduler(config, blocks), Sampler(eos_ids=tokenizer.eos_ids)
    runner = Runner(
        Steps(NullModel(config.max_num_batched_tokens, pause), [], alone=True),
        block_size=config.block_size,
        device=torch.device("cpu"),
        sampler=sampler,
    )
    engine = Engine(
        scheduler=scheduler,
        runner=runner,
        metrics=Metrics(CollectorRegistry(), model_name="null", stats=SchedulerStats),
        detokenizer=lambda request: detokenizer(tokenizer, request),
        eos_ids=frozenset(tokenizer.eos_ids),
        max_model_len=max_model_len,
    )
    return NullParts(engine, scheduler, runner, sampler, tokenizer)
