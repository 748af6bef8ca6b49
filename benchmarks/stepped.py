"""An engine that a benchmark steps itself: without HTTP, and nobody records anything."""

from __future__ import annotations

from pathlib import Path

from octavo_engine.assembly import Assembly, assemble
from octavo_engine.config import EngineConfig
from octavo_engine.tokenizer import load_tokenizer
from why_paging.serving import Unrecorded


def stepped(model: Path, threads: int, cache_bytes: int = 64 << 20, guesses: int = 0) -> Assembly:
    """One in bfloat16 on a processor, for sequences of up to 512 tokens.

    A step gives one token of each, and what comes true of up to so many `guesses`.
    """
    config = EngineConfig(
        model=str(model),
        dtype="bfloat16",
        device="cpu",
        threads=threads,
        max_model_len=512,
        kv_cache_memory_bytes=cache_bytes,
        num_speculative_tokens=guesses,
        max_step_seconds=3600.0,  # prompts are computed in as many steps on every machine
    )
    return assemble(config, load_tokenizer(str(model)), Unrecorded())
