"""A whole engine over a device that tells its tokens late (`late_device`), small enough for properties."""

from __future__ import annotations

from late_device import EOS, LateDevice
from octavo_engine.engine import Engine
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.policy import make_policy
from octavo_engine.scheduling.scheduler import Scheduler
from scripted_engine import CountingMetrics, NumberText

BLOCK = 2


class LateEngine:
    """Its parts, at hand."""

    def __init__(
        self, *, blocks: int = 64, seqs: int = 8, budget: int = 16, policy: str = "fcfs", overlap: bool = False
    ) -> None:
        self.device, self.metrics, self.cache = LateDevice(BLOCK), CountingMetrics(), KVCache(blocks, BLOCK)
        self.scheduler = Scheduler(
            self.cache, max_num_batched_tokens=budget, max_num_seqs=seqs, policy=make_policy(policy, 30.0)
        )
        self.engine = Engine(
            scheduler=self.scheduler,
            runner=self.device,
            metrics=self.metrics,
            detokenizer=lambda request: NumberText(),
            eos_ids=frozenset({EOS}),
            max_model_len=1000,
            overlap=overlap,
        )
