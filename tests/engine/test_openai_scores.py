"""The official client's prompts come back with transformers' own log-probabilities, and its texts' embeddings are
transformers' hidden states: the real model in float32, in the process that users start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from patience import PATIENCE_SECONDS
from serving_process import ServingProcess, serving_process

pytestmark = pytest.mark.engine
TEXTS = [
    "The capital of France is Paris, and that of Japan 東京.",
    " ".join(f"A sheet folded {count} times has {2**count} leaves 📄." for count in range(1, 8)),
]


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[ServingProcess]:
    options = ("--dtype=float32", "--max-model-len=1024", "--kv-cache-memory-bytes=100000000", "--max-num-seqs=8")
    with serving_process(
        smollm2_gguf, "--served-model-name=smollm2", "--max-num-batched-tokens=48", *options
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServingProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


def logprobs_of(model: Any, ids: list[int]) -> torch.Tensor:
    """transformers', `[tokens - 1, vocab]`."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0, :-1]
    return logits.log_softmax(-1)


@pytest.mark.parametrize("time", ["first", "cached"])
def test_an_echoed_prompt_has_transformers_own_logprobs(client, tokenizer, smollm2_reference, time: str) -> None:
    create: Any = client.completions.create
    answer = create(model="smollm2", prompt=TEXTS, max_tokens=0, echo=True, logprobs=2)
    for text, choice in zip(TEXTS, answer.choices, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=True)
        rows, lists = logprobs_of(smollm2_reference, ids), choice.logprobs
        assert choice.text == text
        assert (lists.token_logprobs[0], lists.top_logprobs[0]) == (None, None)
        found = torch.tensor(lists.token_logprobs[1:])
        assert (found - rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]).abs().max() < 1e-3
        for likeliest, row in zip(lists.top_logprobs[1:], rows, strict=True):
            assert abs(max(likeliest.values()) - float(row.max())) < 1e-3


def test_a_chats_prompt_has_them_too(client, smollm2_reference) -> None:
    question: list[Any] = [{"role": "user", "content": TEXTS[0]}]
    create: Any = client.chat.completions.create
    answer = create(model="smollm2", messages=question, max_tokens=1, extra_body={"prompt_logprobs": 1})
    first, *others = answer.model_extra["prompt_logprobs"]
    assert first is None
    ids = [int(next(iter(entries))) for entries in others]  # each token's own entry is the first
    rows = logprobs_of(smollm2_reference, [1, *ids])  # the template begins with <|im_start|>
    for token, entries, row in zip(ids, others, rows, strict=True):
        assert abs(entries[str(token)]["logprob"] - float(row[token])) < 1e-3
        assert abs(max(entry["logprob"] for entry in entries.values()) - float(row.max())) < 1e-3
        assert {1, entries[str(token)]["rank"]} == {entry["rank"] for entry in entries.values()}


def test_embeddings_are_transformers_hidden_states_in_both_encodings(client, tokenizer, smollm2_reference) -> None:
    create: Any = client.embeddings.create
    packed = create(model="smollm2", input=TEXTS)  # the client asks for base64, and unpacks it
    plain = create(model="smollm2", input=TEXTS, encoding_format="float")
    assert packed.usage.prompt_tokens == plain.usage.total_tokens > 80
    for text, one, other in zip(TEXTS, packed.data, plain.data, strict=True):
        with torch.inference_mode():
            ids = torch.tensor([tokenizer.encode(text, add_special_tokens=True)])
            state = smollm2_reference.model(ids).last_hidden_state[0, -1]
        wanted = state / state.norm()
        assert len(one.embedding) == len(wanted) == 576
        assert (torch.tensor(one.embedding) - wanted).abs().max() < 1e-4
        assert torch.equal(torch.tensor(one.embedding), torch.tensor(other.embedding))


def test_a_text_among_many_has_the_embedding_that_it_has_alone(client, server) -> None:
    create: Any = client.embeddings.create
    texts = [f"leaf {number}" for number in range(40)]
    vectors = [item.embedding for item in create(model="smollm2", input=texts, encoding_format="float").data]
    alone = create(model="smollm2", input=texts[37], encoding_format="float").data[0].embedding
    assert (torch.tensor(vectors[37]) - torch.tensor(alone)).abs().max() < 1e-5
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="smollm2", input=["x"] * 2049)
    assert caught.value.param == "input"
    assert "2048" in str(caught.value)
    metrics = server.management("/metrics").text
    assert 'octavo_requests_total{finish_reason="length",model_name="smollm2"}' in metrics
