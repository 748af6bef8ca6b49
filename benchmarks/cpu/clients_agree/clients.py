"""The three clients, each in processes of its own, as its users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_figures import client as vllm
from cpu_figures import peers
from cpu_figures.loads import Load as VllmLoad

from .answers import Answer, of_guidellm, of_octavo, of_vllm
from .loads import Load, guidellm_flags, octavo_flags

RUN_SECONDS = 600
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

# torch is that of the development environment, so that its files are linked and not fetched.
GUIDELLM = peers.Peer("guidellm", ("guidellm==0.8.1",), overrides=("torch==2.15.0",))


class ClientFailed(Exception):
    """A client ended badly, or has not answered all; the message has its last lines."""


Ask = Callable[[Load, int, int], list[Answer]]
"""Runs a load against a port of this machine, with a seed."""


@dataclass(frozen=True, slots=True)
class Client:
    """By its name in tables."""

    name: str
    ask: Ask


def prepare(stack: ExitStack, tokenizer: Path, say: Callable[[str], None]) -> list[Client]:
    """All three, installed first if need be. vLLM's stays loaded until the stack ends: that takes longest."""
    python = peers.prepare(peers.VLLM, say) / "python"
    guidellm = peers.prepare(GUIDELLM, say) / "guidellm"
    loaded = stack.enter_context(vllm.LoadClient(python, tokenizer))
    return [
        Client("octavo bench", _octavo),
        Client("vllm bench serve", lambda load, port, seed: _vllm(loaded, load, port, seed)),
        Client("guidellm", lambda load, port, seed: _guidellm(guidellm, tokenizer, load, port, seed)),
    ]


def _octavo(load: Load, port: int, seed: int) -> list[Answer]:
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "octavo.json"
        words = octavo_flags(load, f"http://127.0.0.1:{port}", seed, result)
        document = _run([sys.executable, "-m", "octavo_engine", "bench", *words], {}, result)
    return _all(load, of_octavo(document))


def _vllm(loaded: vllm.LoadClient, load: Load, port: int, seed: int) -> list[Answer]:
    same = VllmLoad(load.name, load.streams, load.requests, load.prompt_tokens, load.output_tokens)
    result = loaded.run(same, port=port, seed=seed, model=load.model)
    return _all(load, of_vllm(result))


def _guidellm(program: Path, tokenizer: Path, load: Load, port: int, seed: int) -> list[Answer]:
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "guidellm.json"
        words = guidellm_flags(load, f"http://127.0.0.1:{port}", tokenizer, seed, result)
        document = _run([str(program), "run", *words], QUIET, result)
    return _all(load, of_guidellm(document))


def _run(command: Sequence[str], environment: Mapping[str, str], result: Path) -> dict[str, Any]:
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    if done.returncode or not result.exists():
        raise ClientFailed(
            f"{Path(command[0]).name} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
        )
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return document


def _all(load: Load, answers: list[Answer]) -> list[Answer]:
    """Who leaves answers out, or stops them early, must not look fast."""
    short = [answer.tokens for answer in answers if answer.tokens != load.output_tokens]
    if len(answers) != load.requests or short:
        raise ClientFailed(f"{load.name}: {len(answers)} of {load.requests} answers, some of {short} tokens")
    return answers
