"""What a start reports: its phases with their seconds, the weights' progress, and what was built."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from octavo_engine.assembly import Assembly
from octavo_engine.config import EngineConfig
from octavo_engine.metrics import Metrics

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 2.0
GIB = 2.0**30


class StartupReport:
    """Tells the log and the metrics how the start goes."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._next_progress = time.monotonic() + PROGRESS_SECONDS

    def phase(self, name: str, seconds: float) -> None:
        """Phase `name` has ended after `seconds`."""
        self._metrics.startup(name, seconds)
        log.info("%s: %.2f s", name.replace("_", " "), seconds)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """The block is phase `name`."""
        began = time.monotonic()
        yield
        self.phase(name, time.monotonic() - began)

    def progress(self, done: int, total: int) -> None:
        """`done` of the weights' `total` bytes are loaded; logged now and then."""
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
            log.info("weights: %d of %d MB", done // 2**20, total // 2**20)

    def built(self, assembly: Assembly, config: EngineConfig) -> None:
        """Say what the engine is made of."""
        dtype = str(assembly.dtype).removeprefix("torch.")
        self._metrics.engine_info(
            architecture=assembly.spec.architecture,
            dtype=dtype,
            device=assembly.device.type,
            attention_backend=assembly.attention_backend,
            max_num_seqs=str(config.max_num_seqs),
            max_num_batched_tokens=str(config.max_num_batched_tokens),
            enable_chunked_prefill=str(config.enable_chunked_prefill).lower(),
            max_model_len=str(assembly.max_model_len),
        )
        self._metrics.cache_info(
            block_size=str(config.block_size),
            num_blocks=str(assembly.num_blocks),
            enable_prefix_caching=str(config.enable_prefix_caching).lower(),
        )
        log.info(
            "%s in %s on %s, %s attention, weights %.2f GiB, window %d tokens",
            assembly.spec.architecture,
            dtype,
            assembly.identity,
            assembly.attention_backend,
            assembly.weight_bytes / GIB,
            assembly.max_model_len,
        )
        blocks, size = assembly.num_blocks, config.block_size
        log.info("KV cache %.2f GiB: %d blocks of %d tokens", assembly.cache_bytes / GIB, blocks, size)
        machine = assembly.machine
        self._metrics.know(assembly.cost, machine)  # both are one rank's
        rates = machine.bandwidth / 1e9, machine.flops / 1e9
        log.info("%s: reads %.0f GB/s, multiplies at %.0f GFLOP/s", machine.name, *rates)


def spare_the_collector() -> None:
    """What the start has made stays until the end: the garbage collector never looks through it again.

    It is a third of a million objects; a look at them all would stop every stream for 0.2 s now and then.
    """
    gc.freeze()
    gc.enable()
