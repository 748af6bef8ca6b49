"""Embeddings are transformers' final hidden states, the last norm included, pooled and of length 1, in any schedule."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_harness import GREEDY, Harness
from local_ranks import load, several_ranks
from octavo_engine.errors import CheckpointInvalid, ModelUnsupported
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.huggingface.pooling_config import read_pooling
from octavo_engine.prompt_reading import HiddenSum
from octavo_engine.request import FinishReason, Pooling, Request
from octavo_engine.scheduling.policy import Policy
from octavo_engine.server.embeddings import COMPUTED
from tiny_models import SIZES, make_model, save_model

pytestmark = pytest.mark.engine
LENGTHS = (1, 2, 15, 16, 17, 40, 90)
FAR = 1e-4
BOTH = list(Pooling)


@pytest.fixture(scope="module")
def oracle() -> Any:
    return make_model("qwen3")


@pytest.fixture(scope="module")
def path(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(oracle, tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def decoder(path: Path) -> Decoder:
    return load(path, torch.float32)


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(3, SIZES["vocab_size"]) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(oracle: Any, texts: list[list[int]]) -> dict[Pooling, list[torch.Tensor]]:
    """The last of transformers' hidden states is that behind the final norm."""
    with torch.no_grad():
        states = [oracle.model(torch.tensor([text])).last_hidden_state[0].double() for text in texts]
    pooled = {Pooling.LAST: [state[-1] for state in states], Pooling.MEAN: [state.mean(0) for state in states]}
    return {name: [each / each.norm() for each in vectors] for name, vectors in pooled.items()}


def embed(harness: Harness, texts: list[list[int]], pooling: Pooling, **fields: Any) -> list[Request]:
    return [harness.submit(text, COMPUTED, pooling=pooling, **fields) for text in texts]


def check(requests: list[Request], expected: list[torch.Tensor]) -> None:
    for request, wanted in zip(requests, expected, strict=True):
        assert request.finish_reason is FinishReason.LENGTH
        assert request.num_output == 0
        assert isinstance(request.reading, HiddenSum)
        found = torch.tensor(request.reading.direction(), dtype=torch.float64)
        assert (found - wanted).abs().max() < FAR
        assert abs(float(found.norm()) - 1) < 1e-6


@pytest.mark.parametrize("pooling", BOTH)
@pytest.mark.parametrize(
    "options", [{}, {"budget": 7}, {"chunked": False, "budget": 90}, {"overlap": True, "budget": 23}], ids=str
)
def test_they_are_transformers_own(decoder, texts, expected, pooling: Pooling, options: dict[str, Any]) -> None:
    harness = Harness(decoder, **options)
    requests = embed(harness, texts, pooling)
    harness.finish([])
    check(requests, expected[pooling])
    assert harness.sampler.logits == {}, "nothing was sampled"
    assert harness.engine.snapshot.used_blocks == 0


@pytest.mark.parametrize("pooling", BOTH)
def test_beside_answers_which_do_not_change(decoder, texts, expected, pooling: Pooling) -> None:
    alone = Harness(decoder, caching=False).alone(texts)
    harness = Harness(decoder, caching=False, budget=50)
    answering = [harness.submit(text) for text in texts]
    requests = embed(harness, texts, pooling)
    answers = harness.finish(answering)
    check(requests, expected[pooling])
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in alone]


def test_of_the_last_token_a_cached_text_needs_no_more_than_its_last_block(decoder, texts, expected) -> None:
    harness = Harness(decoder)
    harness.together(texts)
    last, mean = embed(harness, texts, Pooling.LAST), embed(harness, texts, Pooling.MEAN)
    harness.finish([])
    check(last, expected[Pooling.LAST])
    check(mean, expected[Pooling.MEAN])
    assert [request.num_cached for request in last] == [(length - 1) // 16 * 16 for length in LENGTHS]
    assert {request.num_cached for request in mean} == {0}


@pytest.mark.parametrize("pooling", BOTH)
def test_after_a_preemption_no_state_counts_twice(decoder, texts, expected, pooling: Pooling) -> None:
    harness = Harness(decoder, blocks=16, budget=32, seqs=1, policy=Policy(level_seconds=10.0))
    low = embed(harness, texts[-1:], pooling, priority=1)
    harness.engine.step()
    harness.submit(texts[0], GREEDY, priority=0)
    harness.finish([])
    assert low[0].num_preemptions == 1
    check(low, expected[pooling][-1:])


@pytest.mark.parametrize("pooling", BOTH)
def test_ranks_that_share_the_layers_have_the_same(path, texts, expected, pooling: Pooling) -> None:
    with several_ranks(path, 2, budget=37) as harness:
        requests = embed(harness, texts, pooling)
        harness.finish([])
    check(requests, expected[pooling])


MODES = {f"pooling_mode_{name}": False for name in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}


@pytest.mark.parametrize(
    ("asked", "pooling"),
    [("mean_tokens", Pooling.MEAN), ("mean_sqrt_len_tokens", Pooling.MEAN), ("lasttoken", Pooling.LAST)],
)
def test_the_checkpoint_says_what_is_pooled(tmp_path: Path, asked: str, pooling: Pooling) -> None:
    write(tmp_path, MODES | {"word_embedding_dimension": 8, f"pooling_mode_{asked}": True, "include_prompt": True})
    assert read_pooling(str(tmp_path)) is pooling


@pytest.mark.parametrize("asked", [["cls_token"], ["cls_token", "mean_tokens"], ["weightedmean_tokens"], []])
def test_what_is_not_done_here_is_refused(tmp_path: Path, asked: list[str]) -> None:
    write(tmp_path, MODES | {f"pooling_mode_{name}": True for name in asked})
    with pytest.raises(ModelUnsupported, match="--embedding-pooling") as caught:
        read_pooling(str(tmp_path))
    assert all(name in str(caught.value) for name in asked)


def test_a_checkpoint_may_say_nothing_but_no_nonsense(tmp_path: Path) -> None:
    assert read_pooling(str(tmp_path)) is None
    write(tmp_path, {"pooling_mode_mean_tokens": "yes"})
    with pytest.raises(CheckpointInvalid, match="pooling_mode_mean_tokens"):
        read_pooling(str(tmp_path))


def write(checkpoint: Path, config: dict[str, Any]) -> None:
    (checkpoint / "1_Pooling").mkdir()
    (checkpoint / "1_Pooling" / "config.json").write_text(json.dumps(config))
