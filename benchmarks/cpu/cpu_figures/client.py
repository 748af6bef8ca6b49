"""vLLM's load client, that of `vllm bench serve`, against either server. It knows nothing of what it measures."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .loads import Load
from .results import Figures

START_SECONDS, LOAD_SECONDS = 300, 600
RESULT, TEXTS, MODEL = "result.json", "texts.json", "smollm2"
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
MILLI = 1e-3
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "OMP_NUM_THREADS": "1"}


class ClientFailed(Exception):
    """The client ended badly, or requests did; the message has its last lines."""


def flags(load: Load, *, port: int, tokenizer: Path, seed: int, folder: Path, model: str = MODEL) -> list[str]:
    """The client's arguments for a load."""
    pairs = {
        "--backend": "openai",
        "--base-url": f"http://127.0.0.1:{port}",
        "--endpoint": "/v1/completions",
        "--model": model,
        "--tokenizer": tokenizer,
        **(_random(load) if load.path is None else _texts(load, folder, seed)),
        "--num-prompts": load.prompts,
        **(
            {"--request-rate": load.rate} if load.rate else {"--request-rate": "inf", "--max-concurrency": load.streams}
        ),
        "--seed": seed,
        "--temperature": 0,
        "--ready-check-timeout-sec": 0,  # its trial request would warm the prefix cache
        "--percentile-metrics": "ttft,tpot,itl",
        "--metric-percentiles": "50,99",
        "--result-dir": folder,
        "--result-filename": RESULT,
    }
    words = [str(word) for pair in pairs.items() for word in pair]
    return [*words, "--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]


def _random(load: Load) -> dict[str, object]:
    return {
        "--dataset-name": "random",
        "--random-prefix-len": load.prefix_tokens,
        "--random-input-len": load.prompt_tokens,
        "--random-output-len": load.output_tokens,
        "--random-range-ratio": 0,
    }


def _texts(load: Load, folder: Path, seed: int) -> dict[str, object]:
    return {
        "--dataset-name": "sharegpt",  # the one form of texts for which the client does not need pandas
        "--dataset-path": folder / TEXTS,
        "--sharegpt-output-len": load.output_tokens,
        "--extra-body": json.dumps({"cache_salt": f"{seed}"}),  # no round finds what another has cached
    }


def conversations(path: Path) -> list[dict[str, Any]]:
    """A file of prompts in ShareGPT's form, each as the model's chat template would have it."""
    prompts = (json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines())
    return [{"conversations": [{"value": CHAT.format(prompt)}, {"value": ""}]} for prompt in prompts]


class LoadClient:
    """The client in a process of vLLM's environment, which waits for loads; a context manager."""

    def __init__(self, python: Path, tokenizer: Path) -> None:
        self._python, self._tokenizer = python, tokenizer

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        command = [str(self._python), str(Path(__file__).with_name("load_client.py"))]
        self._process = subprocess.Popen(
            command, env=os.environ | QUIET, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self._answer(START_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def ask(self, load: Load, *, port: int, seed: int) -> Figures:
        """Run a load; raises ClientFailed."""
        return read(self.run(load, port=port, seed=seed), load)

    def run(self, load: Load, *, port: int, seed: int, model: str = MODEL) -> dict[str, Any]:
        """The same as the client tells it, each request included."""
        with tempfile.TemporaryDirectory() as scratch:
            if load.path is not None:
                (Path(scratch) / TEXTS).write_text(json.dumps(conversations(load.path)), encoding="utf-8")
            words = flags(load, port=port, tokenizer=self._tokenizer, seed=seed, folder=Path(scratch), model=model)
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
            if problem := self._answer(LOAD_SECONDS):
                raise ClientFailed(problem)
            result: dict[str, Any] = json.loads((Path(scratch) / RESULT).read_text(encoding="utf-8"))
            return result

    def _answer(self, seconds: float) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._log.seek(0)
            said = self._log.read().decode(errors="replace")[-2000:]
            raise ClientFailed(f"the load client gave no answer within {seconds} s, or has ended:\n{said}")
        problem: str = json.loads(line)
        return problem


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
