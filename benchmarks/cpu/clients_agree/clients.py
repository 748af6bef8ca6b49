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
from functools import partial
from pathlib import Path
from typing import Any

from cpu_figures import client as vllm
from cpu_figures import peers
from cpu_figures.loads import Load as VllmLoad

from . import definitions
from .answers import Answer, of_guidellm, of_octavo, of_vllm
from .definitions import Definition
from .loads import Load, guidellm_flags, octavo_flags

RUN_SECONDS = 600
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

# Of itself guidellm has a process for each stream: on the one processor that it has here these would wait for another.
ONE_PROCESS = {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}

# torch is that of the development environment, so that its files are linked and not fetched.
GUIDELLM = peers.Peer("guidellm", ("guidellm==0.8.1",), overrides=("torch==2.15.0",))


class ClientFailed(Exception):
    """A client ended badly, or has not answered all; the message has its last lines."""


@dataclass(frozen=True, slots=True)
class Client:
    """By its name in tables.

    Attributes:
        run: runs a load against a port of this machine, with a seed; returns the client's own document.
        read: the document's requests.
        definitions: of the figures that the document reports.
    """

    name: str
    run: Callable[[Load, int, int], Mapping[str, Any]]
    read: Callable[[Mapping[str, Any]], list[Answer]]
    definitions: Sequence[Definition]

    def ask(self, load: Load, port: int, seed: int) -> list[Answer]:
        """All answers in the order in which they were asked. Raises ClientFailed, or NotTheDefinition."""
        document = self.run(load, port, seed)
        answers = _all(load, self.read(document))
        definitions.prove(self.definitions, answers, document)
        return sorted(answers, key=lambda answer: answer.sent)


def prepare(stack: ExitStack, tokenizer: Path, say: Callable[[str], None]) -> list[Client]:
    """All three, installed first if need be. vLLM's stays loaded until the stack ends: that takes longest."""
    python = peers.prepare(peers.VLLM, say) / "python"
    guidellm = peers.prepare(GUIDELLM, say) / "guidellm"
    loaded = stack.enter_context(vllm.LoadClient(python, tokenizer))
    return [
        Client("octavo bench", _octavo, of_octavo, definitions.OCTAVO),
        Client("vllm bench serve", partial(_vllm, loaded), of_vllm, definitions.VLLM),
        Client("guidellm", partial(_guidellm, guidellm, tokenizer), of_guidellm, definitions.GUIDELLM),
    ]


def _octavo(load: Load, port: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "octavo.json"
        words = octavo_flags(load, f"http://127.0.0.1:{port}", seed, result)
        return _run([sys.executable, "-m", "octavo_engine", "bench", *words], {}, result)


def _vllm(loaded: vllm.LoadClient, load: Load, port: int, seed: int) -> dict[str, Any]:
    same = VllmLoad(load.name, load.streams, load.asked, load.prompt_tokens, load.output_tokens, rate=load.rate)
    return loaded.run(same, port=port, seed=seed, model=load.model)


def _guidellm(program: Path, tokenizer: Path, load: Load, port: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "guidellm.json"
        words = guidellm_flags(load, f"http://127.0.0.1:{port}", tokenizer, seed, result)
        document = _run([str(program), "run", *words], QUIET | ONE_PROCESS, result)
    requests = document["benchmarks"][0]["requests"]
    for kind in ("errored", "incomplete"):
        if requests[kind]:
            raise ClientFailed(f"{load.name}: {len(requests[kind])} {kind}: {requests[kind][0]['info'].get('error')}")
    return document


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
    if short or (len(answers) != load.asked and not load.seconds):
        raise ClientFailed(f"{load.name}: {len(answers)} of {load.asked} answers, some of {short} tokens")
    return answers
