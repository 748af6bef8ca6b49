"""The servers that are asked, and how. One has the real model. The other one computes nothing and answers every 20 ms:
what a client adds can be told apart there.

Of clients in turns, one after the other is watched alone. Of two together, each asks at random times: see `together`.
Server and clients have a processor each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cpu_figures.servers import Recipe, free_port, octavo

POOL_BYTES = 1 << 30
RANDOM_ENOUGH = 10  # requests at random times, so that hardly ever none of another client's comes in between


@dataclass(frozen=True, slots=True)
class Load:
    """`requests` of one length, `streams` of them at once, and nothing to be found in a cache."""

    name: str
    model: str  # as the server calls it
    streams: int
    requests: int  # that count
    prompt_tokens: int
    output_tokens: int
    rate: float = 0.0  # requests a second, at random times; 0: each stream asks again as soon as it was answered
    seconds: float = 0.0  # it is asked for so long, instead of `requests`

    @property
    def warmup(self) -> int:
        """The requests that come first and do not count: what is lazy is done, and who keeps connections has them."""
        return 2 * self.streams

    @property
    def asked(self) -> int:
        """All requests."""
        return self.warmup + self.requests

    def quick(self) -> Load:
        """A short form: does everything run?"""
        return replace(self, requests=RANDOM_ENOUGH if self.rate else 2 * self.streams, output_tokens=16)


REAL = Load("SmolLM2, one stream", "smollm2", 1, 8, 512, 64)
PACED_ONE = Load("a step each 20 ms, one stream", "m", 1, 16, 128, 32)
PACED = Load("a step each 20 ms, 8 streams", "m", 8, 64, 128, 64)
IN_TURNS = (REAL, PACED_ONE, PACED)

REAL_TOGETHER = Load("SmolLM2, 0.6 a second from each", "smollm2", 1, 90, 64, 64, rate=0.6)
PACED_TOGETHER = Load("a step each 20 ms, 4 a second from each", "m", 1, 240, 128, 32, rate=4.0)
TOGETHER = (REAL_TOGETHER, PACED_TOGETHER)


def processors() -> tuple[int, int]:
    """The server's and the clients'. Raises OSError where there is but one."""
    there = sorted(os.sched_getaffinity(0))
    if len(there) < 2:
        raise OSError("a server and its client need a processor each; here is one")
    return there[0], there[1]


@contextmanager
def held_to(processor: int) -> Iterator[None]:
    """What is started in the block stays on one processor, whatever it starts itself."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def recipe(load: Load, model: Path) -> Recipe:
    """The server of a load."""
    if load.model != REAL.model:
        return _paced()
    return octavo(model, 1, "--no-enable-prefix-caching", name=load.model, pool_bytes=POOL_BYTES)


def _paced() -> Recipe:
    """The engine whose model sleeps, behind the real API (`served_engine.py`)."""
    port = free_port()
    script = f"from served_engine import one_process; one_process('paced', 1, {port}, {sys.getswitchinterval()})"
    return Recipe("paced", [sys.executable, "-c", script], f"http://127.0.0.1:{port}/v1/models", port)


def octavo_flags(load: Load, url: str, seed: int, result: Path) -> Sequence[str]:
    """Of `octavo bench`."""
    return (
        *(f"--url={url}", f"--model={load.model}", "--endpoint=completions"),
        f"--rate={load.rate}" if load.rate else f"--concurrency={load.streams}",
        f"--seconds={load.seconds}" if load.seconds else f"--requests={load.asked}",
        "--warmup=0",
        *(f"--input-tokens={load.prompt_tokens}", f"--output-tokens={load.output_tokens}"),
        *(f"--seed={seed}", f"--json={result}"),
    )


def guidellm_flags(load: Load, url: str, tokenizer: Path, seed: int, result: Path) -> Sequence[str]:
    """Of `guidellm run`."""
    return (
        f"--backend=kind=openai_http,target={url},model={load.model},request_format=/v1/completions,http2=false",
        f"--tokenizer=kind=huggingface_auto,model={tokenizer}",
        f"--profile=kind=poisson,rate={load.rate}"
        if load.rate
        else f"--profile=kind=concurrent,streams={load.streams}",
        f"--data=kind=synthetic_text,prompt_tokens={load.prompt_tokens},output_tokens={load.output_tokens}",
        f"--constraint=kind=max_requests,count={load.asked}",
        f"--seed=kind=static,value={seed}",
        f"--output=kind=json,path={result}",
        "--disable-progress",
    )
