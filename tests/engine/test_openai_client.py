"""The official OpenAI client against the real engine and the real model, in the process that users start."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import openai
import pydantic
import pytest

from patience import PATIENCE_SECONDS
from serving_process import ServingProcess, serving_process

pytestmark = pytest.mark.engine

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
STORY: list[Any] = [{"role": "user", "content": "Tell a story about a fox in 日本 👍🏽."}]


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[ServingProcess]:
    with serving_process(
        smollm2_gguf,
        "--served-model-name=smollm2",
        "--kv-cache-memory-bytes=200000000",
        "--max-num-seqs=4",
        "--log-decisions",
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServingProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_SECONDS)


def test_it_knows_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize(
    "extra",
    [
        {"temperature": 0, "max_tokens": 24},
        {"temperature": 0.9, "seed": 7, "max_tokens": 24, "n": 2, "logprobs": True, "top_logprobs": 3},
        {"temperature": 0, "stop": ["fox", "\n"], "max_completion_tokens": 24},
    ],
)
def test_a_stream_equals_the_plain_answer(client: openai.OpenAI, extra: dict[str, Any]) -> None:
    create: Any = client.chat.completions.create
    plain = create(model="smollm2", messages=STORY, **extra)
    texts, ends = [""] * extra.get("n", 1), [None] * extra.get("n", 1)
    usage: Any = None
    logprobs: dict[int, list[Any]] = {}
    for chunk in create(model="smollm2", messages=STORY, stream=True, stream_options={"include_usage": True}, **extra):
        usage = chunk.usage or usage
        for piece in chunk.choices:
            texts[piece.index] += piece.delta.content or ""
            ends[piece.index] = piece.finish_reason
            logprobs.setdefault(piece.index, []).extend(piece.logprobs.content if piece.logprobs else [])
    assert texts == [choice.message.content for choice in plain.choices]
    assert ends == [choice.finish_reason for choice in plain.choices]
    assert usage.completion_tokens == plain.usage.completion_tokens
    for choice in plain.choices:
        tokens = choice.logprobs.content if choice.logprobs else []
        assert [token.bytes for token in logprobs[choice.index]] == [token.bytes for token in tokens]


def test_completions_and_models(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="smollm2", prompt="The capital of France is", temperature=0, max_tokens=2)
    assert "Paris" in answer.choices[0].text
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"


@pytest.mark.parametrize(
    ("wrong", "param", "code"),
    [
        ({"temperature": 9}, "temperature", "invalid_value"),
        ({"max_tokens": 100_000}, "max_tokens", "context_length_exceeded"),
        ({"extra_body": {"nonsense": 1}}, "nonsense", "unknown_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "unsupported_parameter"),
    ],
)
def test_bad_requests_name_the_field(client: openai.OpenAI, wrong: dict[str, Any], param: str, code: str) -> None:
    create: Any = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="smollm2", messages=QUESTION, **wrong)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=QUESTION)


def test_leaving_a_stream_frees_its_blocks(client: openai.OpenAI, server: ServingProcess) -> None:
    with client.chat.completions.create(
        model="smollm2", messages=STORY, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
        assert server.load()["running"] == 1
    server.until(lambda: server.load()["running"] == 0, "the request has ended")
    assert server.load()["kv_cache_usage_ratio"] == 0


def test_many_at_once_get_what_each_gets_alone(client: openai.OpenAI, server: ServingProcess) -> None:
    prompts = [f"Count from {number} to {number + 3}:" for number in range(6)]
    create: Any = client.completions.create
    alone = [create(model="smollm2", prompt=prompt, max_tokens=4, temperature=0).choices[0] for prompt in prompts]

    async def together() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE_SECONDS
        ) as concurrent:
            asked = (
                concurrent.completions.create(model="smollm2", prompt=prompt, max_tokens=4, temperature=0, logprobs=2)
                for prompt in prompts
            )
            return [answer.choices[0] for answer in await asyncio.gather(*asked)]

    for one, other in zip(alone, asyncio.run(together()), strict=True):
        gaps = [sorted(top.values())[-1] - sorted(top.values())[-2] for top in other.logprobs.top_logprobs]
        assert one.text == other.text or min(gaps) < 0.05  # bfloat16 may order a near-tie differently in a batch


def test_metrics_count_what_was_asked_and_not_the_warm_up(server: ServingProcess) -> None:
    text = server.management("/metrics").text
    for phase in ("imports", "tokenizer", "kernels", "weights", "kv_cache", "machine", "warm_up"):
        assert f'octavo_startup_seconds{{model_name="smollm2",phase="{phase}"}}' in text
    (arrivals,) = (line for line in text.splitlines() if line.startswith("octavo_time_to_first_token_seconds_count"))
    assert float(arrivals.split()[-1]) < server.load()["arrivals_total"]


def timeline(server: ServingProcess, name: str) -> dict[str, Any]:
    reply = server.management(f"/v1/requests/{name}/timeline")
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


def test_the_timeline_of_an_answer_is_found_by_what_the_client_sees(
    client: openai.OpenAI, server: ServingProcess
) -> None:
    reply = client.completions.with_raw_response.create(model="smollm2", prompt="Hello, my dear", max_tokens=3)
    document = timeline(server, reply.parse().id)
    words = [event["what"] for event in document["events"]]
    assert words == ["arrived", "submitted", "queued", "admitted", "computed", "first_token", "finished"]
    assert (document["state"], document["why"]) == ("finished", "length")
    assert document["tokens"]["output"] == 3
    assert sum(span["seconds"] for span in document["spans"]) == pytest.approx(document["seconds"], abs=0.001)
    assert timeline(server, reply.headers["x-request-id"]) == document | {
        "received": pytest.approx(document["received"], abs=0.1)
    }


def test_a_live_request_has_a_timeline(client: openai.OpenAI, server: ServingProcess) -> None:
    create: Any = client.chat.completions.create
    with create(
        model="smollm2", messages=STORY, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}
    ) as stream:
        document = timeline(server, next(iter(stream)).id)
        assert (document["state"], document["spans"][-1]["state"]) == ("decode", "decode")
    server.until(lambda: timeline(server, document["id"])["why"] == "abort", "its end is told")


def test_an_answer_has_a_line_in_the_access_log_of_the_process(client: openai.OpenAI, server: ServingProcess) -> None:
    answer = client.completions.create(model="smollm2", prompt="Xylophone sonata", max_tokens=3)

    def told() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in server.output.splitlines() if line.startswith('{"time":')]
        return [line for line in lines if line["id"] == answer.id]

    server.until(told, "the line is written")
    (line,) = told()
    assert (line["status"], line["finish_reason"], line["output_tokens"]) == (200, "length", 3)
    assert answer.usage is not None
    assert line["prompt_tokens"] == answer.usage.prompt_tokens
    assert timeline(server, answer.id)["x_request_id"] == line["x_request_id"]
    assert "Xylophone" not in server.output


def test_decisions_are_logged_with_the_ids_that_clients_see_and_without_words(
    client: openai.OpenAI, server: ServingProcess
) -> None:
    answer = client.completions.create(model="smollm2", prompt="Xylophone concerto", max_tokens=2)

    def decisions() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in server.output.splitlines() if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if line.get("request") == f"{answer.id}-0"]

    server.until(lambda: len(decisions()) == 2, "both decisions are written")
    admitted, finished = decisions()
    assert (admitted["decision"], finished["decision"]) == ("admit", "finish")
    assert (finished["reason"], finished["output"]) == ("length", 2)
    assert admitted["step"] <= finished["step"]
    assert "Xylophone" not in server.output


LONG = " ".join(f"Rule {number}: a fox says {number * 7}." for number in range(40))


def streamed_usage(chunks: Any) -> Any:
    *_, last = list(chunks)
    return last.usage


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_cached_tokens_are_counted_once_plain_and_streamed(
    client: openai.OpenAI, server: ServingProcess, route: str
) -> None:
    create: Any = client.chat.completions.create if route == "chat" else client.completions.create
    text = f"{route} {LONG}"
    asked: Any = {"messages": [{"role": "user", "content": text}]} if route == "chat" else {"prompt": text}
    asked |= {"model": "smollm2", "max_tokens": 2, "temperature": 0}
    before = hits(server)
    cold = create(**asked).usage
    warm = create(**asked, n=2).usage
    streamed = streamed_usage(create(**asked, stream=True, stream_options={"include_usage": True}))
    # At least one token is computed, and blocks are found as a whole.
    whole = (cold.prompt_tokens - 1) // 16 * 16
    assert cold.prompt_tokens_details.cached_tokens < 16 * 3  # what the template begins with may be known
    assert warm.prompt_tokens_details.cached_tokens == whole
    assert streamed.prompt_tokens_details.cached_tokens == whole
    assert warm.prompt_tokens == streamed.prompt_tokens == cold.prompt_tokens
    # Both choices of the second answer looked for the prompt, each once.
    assert hits(server) - before == cold.prompt_tokens_details.cached_tokens + 3 * whole


def hits(server: ServingProcess) -> float:
    text = server.management("/metrics").text
    (line,) = (line for line in text.splitlines() if 'cache_tokens_total{model_name="smollm2",result="hit"}' in line)
    return float(line.split()[-1])


def test_a_flush_makes_a_prompt_cold_again(client: openai.OpenAI, server: ServingProcess) -> None:
    create: Any = client.completions.create
    asked: Any = {"model": "smollm2", "prompt": f"flush {LONG}", "max_tokens": 2}
    assert create(**asked).usage.prompt_tokens_details.cached_tokens == 0
    assert create(**asked).usage.prompt_tokens_details.cached_tokens > 0
    flushed = server.flush()
    assert flushed["flushed_blocks"] > 0
    assert flushed["held_blocks"] == 0
    assert 'octavo_kv_blocks{model_name="smollm2",state="cached"} 0.0' in server.management("/metrics").text
    assert create(**asked).usage.prompt_tokens_details.cached_tokens == 0


class Person(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(max_length=30)]
    age: Annotated[int, pydantic.Field(ge=0, le=120)]
    languages: Annotated[list[Literal["de", "en", "fr"]], pydantic.Field(max_length=2)]


ABOUT: list[Any] = [{"role": "user", "content": "Describe a person as JSON: name, age, languages."}]


def test_an_answer_is_parsed_into_the_class_that_it_was_asked_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="smollm2", messages=ABOUT, response_format=Person, temperature=0, max_tokens=300
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_a_response_is_parsed_into_the_class_that_it_was_asked_for(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model="smollm2", input=ABOUT, text_format=Person, temperature=0, max_output_tokens=300
    )
    assert answer.status == "completed"
    assert isinstance(answer.output_parsed, Person)


def test_a_stream_of_json_equals_the_plain_answer(client: openai.OpenAI) -> None:
    create: Any = client.chat.completions.create
    wish = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": Person.model_json_schema()}}
    }
    wish |= {"model": "smollm2", "messages": ABOUT, "temperature": 0.8, "seed": 3, "max_tokens": 60, "n": 2}
    texts = ["", ""]
    for chunk in create(stream=True, **wish):
        for piece in chunk.choices:
            texts[piece.index] += piece.delta.content or ""
    assert texts == [choice.message.content for choice in create(**wish).choices]


def test_choices_and_expressions(client: openai.OpenAI) -> None:
    create: Any = client.chat.completions.create
    chosen = create(
        model="smollm2",
        messages=QUESTION,
        n=4,
        temperature=1.5,
        extra_body={"structured_outputs": {"choice": ["Rome", "Oslo"]}},
    )
    assert {choice.message.content for choice in chosen.choices} <= {"Rome", "Oslo"}
    assert {choice.finish_reason for choice in chosen.choices} == {"stop"}
    dated = create(model="smollm2", messages=QUESTION, extra_body={"guided_regex": r"\d{4}-\d{2}-\d{2}"})
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", dated.choices[0].message.content)


def test_a_schema_that_cannot_be_enforced_names_its_keyword(client: openai.OpenAI) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    wish: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
        client.chat.completions.create(model="smollm2", messages=ABOUT, response_format=wish)
    assert caught.value.param == "response_format.json_schema.schema"
