"""The two servers that are asked, and how. One has the real model, and one stream: of several, each round would fall
into another rhythm of prompts and answers, with other waits. The other one computes nothing and answers every 20 ms, to
eight at once: what a client adds can be told apart there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cpu_figures.servers import Recipe, free_port, octavo

POOL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Load:
    """`requests` of one length, `streams` of them at once, and nothing to be found in a cache."""

    name: str
    model: str  # as the server calls it
    streams: int
    requests: int
    prompt_tokens: int
    output_tokens: int

    def quick(self) -> Load:
        """A short form: does everything run?"""
        return Load(self.name, self.model, self.streams, 2 * self.streams, self.prompt_tokens, 16)


REAL = Load("SmolLM2, one stream", "smollm2", 1, 8, 512, 64)
PACED = Load("a step each 20 ms, 8 streams", "m", 8, 48, 128, 64)
LOADS = (REAL, PACED)


def recipe(load: Load, model: Path, threads: int) -> Recipe:
    """The server of a load."""
    if load.model != REAL.model:
        return _paced()
    return octavo(model, threads, "--no-enable-prefix-caching", name=load.model, pool_bytes=POOL_BYTES)


def _paced() -> Recipe:
    """The engine whose model sleeps, behind the real API (`served_engine.py`)."""
    port = free_port()
    script = f"from served_engine import one_process; one_process('paced', 1, {port}, {sys.getswitchinterval()})"
    return Recipe("paced", [sys.executable, "-c", script], f"http://127.0.0.1:{port}/v1/models", port)


def octavo_flags(load: Load, url: str, seed: int, result: Path) -> Sequence[str]:
    """Of `octavo bench`."""
    return (
        *(f"--url={url}", f"--model={load.model}", "--endpoint=completions"),
        *(f"--concurrency={load.streams}", f"--requests={load.requests}", "--warmup=0"),
        *(f"--input-tokens={load.prompt_tokens}", f"--output-tokens={load.output_tokens}"),
        *(f"--seed={seed}", f"--json={result}"),
    )


def guidellm_flags(load: Load, url: str, tokenizer: Path, seed: int, result: Path) -> Sequence[str]:
    """Of `guidellm run`."""
    return (
        f"--backend=kind=openai_http,target={url},model={load.model},request_format=/v1/completions,http2=false",
        f"--tokenizer=kind=huggingface_auto,model={tokenizer}",
        f"--profile=kind=concurrent,streams={load.streams}",
        f"--data=kind=synthetic_text,prompt_tokens={load.prompt_tokens},output_tokens={load.output_tokens}",
        f"--constraint=kind=max_requests,count={load.requests}",
        f"--seed=kind=static,value={seed}",
        f"--output=kind=json,path={result}",
        "--disable-progress",
    )
