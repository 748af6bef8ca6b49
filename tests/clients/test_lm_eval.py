"""lm-eval scores a small task through the API as transformers does with the same checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from client_environments import Clients, Place

pytestmark = pytest.mark.engine

COUNTRIES = ["France", "Japan", "Italy", "Egypt", "Canada", "Kenya"]
CAPITALS = ["Paris", "Tokyo", "Rome", "Cairo", "Ottawa", "Nairobi"]
CHOICES = 3
TASK = {
    "task": "capitals",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "Question: What is the capital of {{country}}?\nAnswer:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{right}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def write_task(folder: Path) -> list[int]:
    """The task and its data; returns which choice is right. (YAML is a superset of JSON.)"""
    rights = [number % CHOICES for number in range(len(COUNTRIES))]
    rows = []
    for number, (country, right) in enumerate(zip(COUNTRIES, rights, strict=True)):
        choices = [CAPITALS[(number - right + place) % len(CAPITALS)] for place in range(CHOICES)]
        rows.append({"country": country, "choices": choices, "right": right})
    data = folder / "capitals.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "capitals.yaml").write_text(json.dumps(TASK | {"dataset_kwargs": {"data_files": {"test": str(data)}}}))
    return rights


@torch.no_grad()
def likelihood(model: Any, tokenizer: Any, context: str, continuation: str) -> tuple[float, bool]:
    """log P(continuation | context), and whether it is what the model would say: from one plain forward pass."""
    begun, whole = (tokenizer.encode(text, add_special_tokens=False) for text in (context, context + continuation))
    logprobs = model(torch.tensor([whole]), use_cache=False).logits[0].float().log_softmax(-1)
    said = whole[len(begun) :]
    steps = logprobs[len(begun) - 1 : -1]
    return sum(steps[i, token].item() for i, token in enumerate(said)), steps.argmax(-1).tolist() == said


def test_scores_and_likelihoods_are_transformers_own(
    clients: Clients, place: Place, smollm2_checkpoint: Path, tmp_path: Path, freed: None
) -> None:
    rights = write_task(tmp_path)
    seen = clients.run_python("lm_eval_scores.py", place, str(tmp_path), str(smollm2_checkpoint))
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(smollm2_checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_checkpoint)
    correct = 0
    for item, right in zip(seen["items"], rights, strict=True):
        wanted = [likelihood(model, tokenizer, *choice["asked"]) for choice in item]
        assert [choice["said"][0] for choice in item] == pytest.approx([value for value, _ in wanted], abs=1e-3)
        assert [choice["said"][1] for choice in item] == [greedy for _, greedy in wanted]
        values = [value for value, _ in wanted]
        correct += values.index(max(values)) == right
    assert [len(item) for item in seen["items"]] == [CHOICES] * len(COUNTRIES)
    assert seen["accuracy"] == pytest.approx(correct / len(COUNTRIES))
    assert correct > len(COUNTRIES) / CHOICES, "the real model knows more than chance does"
