"""vLLM's load client, `vllm bench serve`, run against either server. It knows nothing of what it measures."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from .loads import Load
from .results import Figures

SECONDS = 600
MILLI = 1e-3


class ClientFailed(Exception):
    """The client ended badly, or requests did; the message has its last lines."""


def flags(load: Load, *, port: int, tokenizer: Path, seed: int, folder: Path) -> list[str]:
    """The client's arguments for a load."""
    pairs = {
        "--backend": "openai",
        "--base-url": f"http://127.0.0.1:{port}",
        "--endpoint": "/v1/completions",
        "--model": "smollm2",
        "--tokenizer": tokenizer,
        "--dataset-name": "random",
        "--random-prefix-len": load.prefix_tokens,
        "--random-input-len": load.prompt_tokens,
        "--random-output-len": load.output_tokens,
        "--random-range-ratio": 0,
        "--num-prompts": load.prompts,
        "--max-concurrency": load.streams,
        "--request-rate": "inf",
        "--seed": seed,
        "--temperature": 0,
        "--ready-check-timeout-sec": 0,  # its trial request would warm the prefix cache
        "--percentile-metrics": "ttft,tpot,itl",
        "--metric-percentiles": "50,99",
        "--result-dir": folder,
        "--result-filename": "result.json",
    }
    words = [str(word) for pair in pairs.items() for word in pair]
    return ["bench", "serve", *words, "--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]


def ask(vllm: Path, load: Load, *, port: int, tokenizer: Path, seed: int) -> Figures:
    """Run a load; raises ClientFailed."""
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        command = [str(vllm), *flags(load, port=port, tokenizer=tokenizer, seed=seed, folder=Path(scratch))]
        done = subprocess.run(
            command, env=os.environ | quiet, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        result = Path(scratch) / "result.json"
        if done.returncode or not result.exists():
            raise ClientFailed((done.stdout + done.stderr)[-2000:])
        return read(json.loads(result.read_text(encoding="utf-8")), load)


def read(result: dict[str, Any], load: Load) -> Figures:
    """The client's JSON as figures; raises ClientFailed for a short answer: who stops early must not look fast."""
    wanted = load.prompts * load.output_tokens
    if result["completed"] != load.prompts or result["total_output_tokens"] != wanted:
        raise ClientFailed(
            f"{load.name}: {result['completed']} of {load.prompts} answers with {result['total_output_tokens']} of"
            f" {wanted} tokens; {next((error for error in result.get('errors', ()) if error), 'no error was told')}"
        )
    return Figures(
        tokens_per_second=result["output_throughput"],
        ttft_mean=result["mean_ttft_ms"] * MILLI,
        ttft_median=result["median_ttft_ms"] * MILLI,
        ttft_p99=result["p99_ttft_ms"] * MILLI,
        itl_median=result["median_itl_ms"] * MILLI,
        itl_p99=result["p99_itl_ms"] * MILLI,
        tpot_mean=result["mean_tpot_ms"] * MILLI,
        ttfts=tuple(result["ttfts"]),
        prompt_tokens=result["total_input_tokens"],
    )
