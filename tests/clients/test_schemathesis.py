"""schemathesis on every route, with good bodies and with bad ones, while a neighbour asks one question again and again.

No answer is of the server's fault, undocumented, or of another form than documented; what is invalid is refused; the
neighbour's tokens never change; and afterwards all blocks are free.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import fuzzed_api
from client_environments import Clients
from patience import PATIENCE_SECONDS
from serving_process import ServingProcess, serving_process
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine

VOCABULARY = 49152
CANARY = {"model": "tiny", "prompt": "A canary sings", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
EXAMPLES, SOAK_EXAMPLES = 20, 500


@pytest.fixture(scope="module")
def server(smollm2_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingProcess]:
    """A tiny random model behind the real tokenizer and its template: steps take a millisecond."""
    folder = tmp_path_factory.mktemp("tiny")
    model = make_model("llama", vocab_size=VOCABULARY)
    model.generation_config.max_new_tokens = 8  # of a chat that does not say
    save_model(model, folder)
    for file in smollm2_checkpoint.iterdir():
        if "token" in file.name or file.suffix == ".jinja":
            shutil.copy(file, folder)
    flags = ("--served-model-name=tiny", "--max-model-len=256", "--kv-cache-memory-bytes=30000000", "--dtype=float32")
    with serving_process(folder, *flags) as server:
        yield server


class Canary:
    """Asks one question in a thread, until it is told to end or hears another answer."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.wanted = self._ask()
        self.asked = 0
        self.others: list[Any] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sing, daemon=True)

    def __enter__(self) -> Canary:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(PATIENCE_SECONDS)
        self.others += [answer for answer in [self._ask()] if answer != self.wanted]

    def _ask(self) -> Any:
        reply = httpx.post(f"{self._url}/v1/completions", json=CANARY | {"logprobs": 0}, timeout=PATIENCE_SECONDS)
        assert reply.status_code == 200, reply.text
        choice = reply.json()["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def _sing(self) -> None:
        while not self._end.wait(0.2) and not self.others:
            self.others += [answer for answer in [self._ask()] if answer != self.wanted]
            self.asked += 1


def fuzz(clients: Clients, server: ServingProcess, folder: Path, document: Any, *flags: str) -> None:
    """One run beside a canary, and what has to hold during it and afterwards."""
    before = server.load()["arrivals_total"]
    with Canary(server.url) as canary:
        with fuzzed_api.start(clients, document, server.url, folder, *flags) as run:
            try:
                said, _ = run.communicate()
            finally:  # also where the test is given up
                run.kill()
        assert run.returncode == 0, told(said)
    assert not canary.others
    assert canary.asked > 3
    assert server.load()["arrivals_total"] - before - canary.asked > EXAMPLES, "and many were computed"
    server.until(lambda: server.load()["running"] == 0, "what ran has ended")
    server.until(lambda: server.flush()["held_blocks"] == 0, "all blocks are free")
    assert "Traceback" not in server.output


def told(said: str) -> str:
    """Of what it said, the failures; bodies may be long."""
    return "\n".join(line[:2_000] for line in said.partition("FAILURES")[2].splitlines())[:20_000] or said


def documented(server: ServingProcess) -> Any:
    return server.management("/openapi.json").json()


@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(SOAK_EXAMPLES, marks=pytest.mark.soak)])
def test_anything_may_be_sent(clients: Clients, server: ServingProcess, tmp_path: Path, examples: int) -> None:
    fuzz(clients, server, tmp_path, documented(server), *fuzzed_api.FOR_ALL, f"--max-examples={examples}")


@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(SOAK_EXAMPLES, marks=pytest.mark.soak)])
def test_what_is_good_is_taken(clients: Clients, server: ServingProcess, tmp_path: Path, examples: int) -> None:
    document = fuzzed_api.that_must_be_taken(documented(server))
    fuzz(clients, server, tmp_path, document, *fuzzed_api.FOR_GOOD, f"--max-examples={examples}")
