"""From a hub to an answer: what was fetched over a bad line is the model that was put there."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import torch

from engine_harness import GREEDY, Harness
from faulty_http import Fault, running
from fetching import fetch, held, hurry
from model_sources import HubFiles
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.model.loading import load_model
from octavo_engine.preflight.command import preflight
from octavo_engine.preflight.settings import PreflightSettings
from serving_process import DEADLINE_SECONDS, serving_process
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine

COMMIT = "e" * 40
PROMPTS = ([1, 5, 9, 30], [1, 150, 7], list(range(3, 60)))


def hub_of(place: Path) -> HubFiles:
    return HubFiles({COMMIT: held(place)}, {"main": COMMIT})


@pytest.mark.parametrize("variant", ["llama_tied", "qwen3"])
def test_a_fetched_checkpoint_gives_the_same_tokens(tmp_path, monkeypatch, variant):
    hurry(monkeypatch)
    model = make_model(variant)
    original = save_model(model, tmp_path / "original", max_shard_size="40KB")
    (original / "tokenizer.json").write_text("{}")
    with running(hub_of(original)) as server:
        report = preflight(PreflightSettings.parse(["--source=hf://org/tiny", f"--endpoint={server.url}", "--", "m"]))
        server.faults += [Fault("resolve", cut_after=9000, times=12), Fault("resolve", status=503, times=5)]
        found = fetch("hf://org/tiny", tmp_path / "fetched", endpoint=server.url, revision=report.revision)
    assert len([name for name in held(tmp_path / "fetched") if name.endswith(".safetensors")]) > 2
    assert (report.revision, report.files, report.total_bytes) == (COMMIT, len(found.files), found.total_bytes)
    decoder = load_model(
        str(tmp_path / "fetched"), dtype=torch.float32, device=torch.device("cpu"), kernels=choose_attention("torch")
    )
    for answer in Harness(decoder).together(PROMPTS):
        prompt = torch.tensor([answer.request.tokens[: -len(answer.tokens)]])
        oracle = model.generate(prompt, max_new_tokens=GREEDY.max_tokens, do_sample=False, eos_token_id=None)
        assert answer.tokens == oracle[0, prompt.shape[1] :].tolist()


def test_a_fetched_directory_is_served(tmp_path, smollm2_gguf):
    with running(HubFiles({COMMIT: {smollm2_gguf.name: smollm2_gguf.read_bytes()}}, {"main": COMMIT})) as server:
        fetch(f"hf://org/tiny/{smollm2_gguf.name}", tmp_path, endpoint=server.url)
    small = ("--served-model-name=smollm2", "--kv-cache-memory-bytes=200000000", "--max-num-seqs=2")
    with serving_process(tmp_path, *small) as serving:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        body = {"model": "smollm2", "messages": question, "temperature": 0, "max_tokens": 12}
        reply = httpx.post(f"{serving.url}/v1/chat/completions", json=body, timeout=DEADLINE_SECONDS)
    assert "Paris" in json.loads(reply.text)["choices"][0]["message"]["content"]
