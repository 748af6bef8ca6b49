"""What the tests of other people's clients share: the clients, and a server with the real model in float32.

Its chat template is a real one that knows tools, Qwen2.5's, whose turns are written as the model's own are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_environments import Clients, Place, clients
from real_model import smollm2_checkpoint, smollm2_gguf
from serving_process import ServingProcess, serving_process

__all__ = ["smollm2_checkpoint", "smollm2_gguf"]

# Threads that share a busy core and spin while they wait for each other take a hundred times as long. Read by torch's
# OpenMP when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

KEY = "sesame"
FLAGS = (
    *("--served-model-name=smollm2", f"--api-key={KEY}", "--dtype=float32", "--kv-cache-memory-bytes=400000000"),
    *("--max-model-len=1024", "--max-num-seqs=4", "--max-waiting-requests=8"),
)


@pytest.fixture(scope="session", name="clients")
def clients_fixture() -> Clients:
    return clients()


@pytest.fixture(scope="session")
def server(smollm2_gguf: Path, clients: Clients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingProcess]:
    template = tmp_path_factory.mktemp("template") / "qwen2_5.jinja"
    template.write_text(clients.templates()["qwen2_5"], "utf-8")
    with serving_process(smollm2_gguf, *FLAGS, f"--chat-template={template}") as server:
        yield server


@pytest.fixture(scope="session")
def place(server: ServingProcess) -> Place:
    return Place(server.url, "smollm2", KEY)


@pytest.fixture
def freed(server: ServingProcess) -> Iterator[None]:
    """After the test nothing runs, and no block is held."""
    yield
    server.until(lambda: server.load()["running"] == 0, "what ran has ended")
    server.until(lambda: server.flush()["held_blocks"] == 0, "all blocks are free")
