"""Prompts come back with how likely the model found them, in OpenAI's form and in vLLM's, streamed and in batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.errors import PromptTooLong
from octavo_engine.server.completion_tokens import offsets_in
from octavo_engine.server.fields import parse_body
from octavo_engine.server.prompts import completion_prompts
from octavo_engine.server.schemas import CompletionBody
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from scripted_server import SCRIPT, WINDOW, ScriptedServer, score, scripted_server

QUESTION = {"role": "user", "content": "What is the capital of France?"}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
EMOJI = "A family 👨‍👩‍👧, 日本語 and \n\n  spaces"
PROMPTS = [
    "Two plus",
    EMOJI,
    ["one", EMOJI],
    [345, 678, 9],
    [[345], [678, 9, 10, 11, 12]],
    "<|im_start|>user\nHi<|im_end|>",
]


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[ScriptedServer]:
    with scripted_server(tokenizer) as server:
        yield server


def ids_of(prompt: Any, tokenizer: Tokenizer) -> list[list[int]]:
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    return [tokenizer.encode(one, add_special_tokens=True) if isinstance(one, str) else one for one in prompts]


def spelled(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def choices(server: ScriptedServer, path: str = COMPLETIONS, **body: Any) -> list[dict[str, Any]]:
    reply = server.post(path, **body)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["choices"]
    return found


def streamed(server: ScriptedServer, **body: Any) -> list[dict[str, Any]]:
    """The choices that a stream's pieces add up to."""
    whole: dict[int, dict[str, Any]] = {}
    for line in server.post(COMPLETIONS, stream=True, **body).text.split("\n\n"):
        data = line.removeprefix("data: ")
        for piece in json.loads(data)["choices"] if data and data != "[DONE]" else []:
            before = whole.get(piece["index"])
            if before is None:
                whole[piece["index"]] = piece
                continue
            assert before["finish_reason"] is None, "a piece after the end"
            lists = before["logprobs"] and {name: before["logprobs"][name] + piece["logprobs"][name] for name in LISTS}
            whole[piece["index"]] = piece | {"text": before["text"] + piece["text"], "logprobs": lists}
    return [whole[index] for index in sorted(whole)]


@pytest.mark.parametrize("max_tokens", [0, 1, 7])
@pytest.mark.parametrize("top", [0, 1, 3])
@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
def test_the_lists_begin_with_the_prompts_tokens(server, tokenizer, prompt: Any, top: int, max_tokens: int) -> None:
    body = {
        "prompt": prompt,
        "n": 2,
        "echo": True,
        "logprobs": top,
        "max_tokens": max_tokens,
        "skip_special_tokens": False,
    }
    told = choices(server, **body)
    prompts = [ids for ids in ids_of(prompt, tokenizer) for _ in range(2)]
    assert [choice["index"] for choice in told] == list(range(len(prompts)))
    for choice, ids in zip(told, prompts, strict=True):
        said = server.model.script[:max_tokens]
        assert choice["text"] == tokenizer.decode([*ids, *said], skip_special_tokens=False)
        assert choice["finish_reason"] == "length"
        lists = choice["logprobs"]
        assert lists["tokens"] == [spelled(tokenizer, token) for token in [*ids, *said]]
        scores = [score(ids, place, top) for place in range(1, len(ids))]
        assert lists["token_logprobs"] == [None, *(each.logprob for each in scores), *[-0.5] * len(said)]
        assert lists["top_logprobs"][0] is None
        for token, each, likeliest in zip(ids[1:], scores, lists["top_logprobs"][1:], strict=False):
            assert max(likeliest.values()) == max(each.logprob, *(value for _, value in each.top), -99)
            assert set(likeliest) == {spelled(tokenizer, other) for other in (token, *(other for other, _ in each.top))}
    assert streamed(server, **body) == told


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
@pytest.mark.parametrize("skip", [True, False])
def test_offsets_are_where_tokens_stand_in_the_text(server, tokenizer, prompt: Any, skip: bool) -> None:
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 40, "skip_special_tokens": skip}
    specials = {spelled(tokenizer, token) for token in tokenizer.special_ids}
    for choice in choices(server, **body):
        text, lists = choice["text"], choice["logprobs"]
        assert lists["text_offset"] == sorted(lists["text_offset"])
        for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
            hidden = skip and token in specials
            if "\ufffd" not in token and not hidden:  # else it is a part of a character, or not shown
                assert text.startswith(token, offset)


class Sentencepiece:
    """A vocabulary that puts a space before the first word, and a BOS before that."""

    strips_first_space, special_ids = True, frozenset({1})
    texts = ("", "<s>", " Hello", " big", "\xe9")

    def token_bytes(self, index: int) -> bytes:
        return self.texts[index].encode()

    def whole_text(self, index: int) -> str:
        return self.texts[index]


@pytest.mark.parametrize(
    ("text", "ids", "offsets"),
    [
        ("Hello big", [1, 2, 3], [0, 0, 5]),
        ("Hello big", [2, 3], [0, 5]),
        ("<s> Hello big\xe9", [1, 2, 3, 4], [0, 3, 9, 13]),
        ("Hello big\xe9", [1, 2, 3, 4], [0, 0, 5, 9]),
        ("", [1], [0]),
    ],
)
def test_a_bos_and_a_first_space_take_no_room_in_a_text_without_them(
    text: str, ids: list[int], offsets: list[int]
) -> None:
    assert offsets_in(text, ids, Sentencepiece()) == offsets  # type: ignore[arg-type]


def test_a_prompt_alone_needs_no_logprobs(server, tokenizer) -> None:
    body: dict[str, Any] = {"prompt": ["Two plus", [345, 678]], "echo": True, "max_tokens": 0}
    reply = server.post(COMPLETIONS, **body).json()
    texts = ["Two plus", tokenizer.decode([345, 678], skip_special_tokens=True)]
    assert [choice["text"] for choice in reply["choices"]] == texts
    assert {choice["finish_reason"] for choice in reply["choices"]} == {"length"}
    assert {choice["logprobs"] for choice in reply["choices"]} == {None}
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (4, 0)
    assert streamed(server, **body) == reply["choices"]


def test_the_window_may_be_full_of_a_prompt_that_nothing_comes_after(server, tokenizer) -> None:
    limits = replace(server.context.limits, max_prompt_tokens=WINDOW)

    def kept(**body: Any) -> int:
        parsed = parse_body(CompletionBody, {"model": "m", "echo": True} | body)
        (ids,) = completion_prompts(parsed, tokenizer, limits)
        return len(ids)

    full, over = [7] * WINDOW, [7] * (WINDOW + 1)
    assert kept(prompt=full, max_tokens=0) == WINDOW
    assert kept(prompt=over, max_tokens=0, truncate_prompt_tokens=-1) == WINDOW
    assert kept(prompt=over, max_tokens=1, truncate_prompt_tokens=-1) == WINDOW - 1
    for wrong in ({"prompt": full, "max_tokens": 1}, {"prompt": full}, {"prompt": over, "max_tokens": 0}):
        with pytest.raises(PromptTooLong):
            kept(**wrong)


def test_what_an_evaluation_of_given_answers_asks_and_reads(server, tokenizer) -> None:
    """As lm-eval's local-completions does: contexts and endings as token arrays, one token generated and dropped."""
    contexts, endings = [[345, 678, 9], [10]], [[11, 12], [13, 14, 15, 16]]
    prompts = [context + ending for context, ending in zip(contexts, endings, strict=True)]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    for choice, prompt, context in zip(choices(server, **body), prompts, contexts, strict=True):
        values = choice["logprobs"]["token_logprobs"][len(context) : -1]
        likeliest = choice["logprobs"]["top_logprobs"][len(context) : -1]
        scores = [score(prompt, place, 1) for place in range(len(context), len(prompt))]
        assert values == [each.logprob for each in scores]
        greedy = [value == max(top.values()) for value, top in zip(values, likeliest, strict=True)]
        assert greedy == [each.rank == 1 for each in scores]


def test_of_several_choices_one_reads_the_prompt_for_all(server) -> None:
    body: dict[str, Any] = {"prompt": ["one two", "three four"], "max_tokens": 3, "echo": True, "logprobs": 1}
    before = len(server.recorder.ended)
    told = choices(server, best_of=3, n=2, **body)
    assert told[0]["logprobs"] == told[1]["logprobs"] != told[2]["logprobs"] == told[3]["logprobs"]
    readers = sorted(request.id[-1] for request in server.recorder.ended[before:] if request.reading is not None)
    assert readers == ["0", "3"]


def test_vllms_form_of_a_completion(server, tokenizer) -> None:
    body: dict[str, Any] = {"prompt": [[345, 678, 9, 10, 11], [7]], "max_tokens": 2, "n": 2}
    for choice in choices(server, prompt_logprobs=2, **body):
        ids = body["prompt"][choice["index"] // 2]
        first, *others = choice["prompt_logprobs"]
        assert first is None
        assert len(others) == len(ids) - 1
        for place, entries in enumerate(others, 1):
            wanted, own = score(ids, place, 2), entries[str(ids[place])]
            assert own == {
                "logprob": wanted.logprob,
                "rank": wanted.rank,
                "decoded_token": spelled(tokenizer, ids[place]),
            }
            ranks = {str(token): rank for rank, (token, _) in enumerate(wanted.top, 1)}
            assert {token: entry["rank"] for token, entry in entries.items()} == {str(ids[place]): wanted.rank} | ranks
        assert choice["logprobs"] is None
    assert all("prompt_logprobs" not in choice for choice in choices(server, **body))


def test_both_forms_at_once_have_as_many_as_each_asked_for(server) -> None:
    (choice,) = choices(server, prompt=[345, 678, 9], max_tokens=0, echo=True, logprobs=1, prompt_logprobs=3)
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [2, 2]
    assert [len(entries) for entries in choice["prompt_logprobs"][1:]] == [4, 4]


def test_vllms_form_of_a_chat_stands_beside_its_choices(server) -> None:
    answer = server.post(CHAT, messages=[QUESTION], prompt_logprobs=0, n=2).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"] == 37
    assert [choice["message"]["content"] for choice in answer["choices"]] == [SCRIPT] * 2
    assert "prompt_logprobs" not in server.post(CHAT, messages=[QUESTION]).json()


@pytest.mark.parametrize(
    ("path", "extra", "param"),
    [
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        (COMPLETIONS, {"max_tokens": -1, "echo": True}, "max_tokens"),
        (COMPLETIONS, {"echo": True, "logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": True}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"echo": True}, "echo"),
    ],
)
def test_what_cannot_be_is_refused(server, path: str, extra: dict[str, Any], param: str | None) -> None:
    body = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [QUESTION]}
    reply = server.post(path, **body, **extra)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
