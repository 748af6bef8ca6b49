"""Traces as a collector gets them: true times, the caller's own trace, and nothing that holds up a request."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.config import ServerConfig, read_traces_endpoint
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.server.watchers import Watchers, open_watchers
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from otlp_collector import Collector, Received, collector
from patience import PATIENCE_SECONDS
from scripted_server import ScriptedServer, scripted_server

pytestmark = pytest.mark.engine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = [{"role": "user", "content": "Xylophones, where?"}]
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
SERVER = 2  # the kind of a span, in the protocol
SECOND = 10**9


class Traced:
    """A server whose traces go to a collector, and whose access log is kept."""

    def __init__(self, tokenizer: Tokenizer, sink: Collector) -> None:
        self.sink, self.out = sink, io.StringIO()
        self.watchers: Watchers = open_watchers(ServerConfig(otlp_traces_endpoint=sink.url), "scripted", {}, self.out)
        self._serving = scripted_server(tokenizer, on_end=self.watchers.tell, max_waiting=4)

    def __enter__(self) -> Traced:
        self.server: ScriptedServer = self._serving.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__(None, None, None)
        self.watchers.close()

    def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
        with self.server.client as client:
            return client.post(path, json={"model": "scripted"} | body, headers=headers or {})


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # milliseconds; else five seconds
    monkeypatch.setattr("octavo_engine.server.traces.CLOSE_SECONDS", PATIENCE_SECONDS)
    with collector() as made:
        yield made


def split(spans: list[Received]) -> tuple[list[Received], list[Received]]:
    """The spans of HTTP requests, and those below them."""
    return [span for span in spans if span.kind == SERVER], [span for span in spans if span.kind != SERVER]


def test_an_answer_is_a_span_in_the_callers_trace_with_its_stretches_below(
    tokenizer: Tokenizer, sink: Collector
) -> None:
    before = time.time_ns()
    with Traced(tokenizer, sink) as traced:
        asked: Any = {"messages": QUESTION, "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "seed": 7}
        answer = traced.post(CHAT, SAMPLED | {"x-request-id": "mine-1"}, **asked).json()
        told = traced.server.timeline(answer["id"])
    after = time.time_ns()
    (whole,), parts = split(sink.until(4))
    assert (whole.name, whole.trace_id, whole.parent_id, whole.failed) == ("chat scripted", TRACE, CALLER, False)
    usage = answer["usage"]
    assert whole.attributes == whole.attributes | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "http.response.status_code": 200,
        "octavo.x_request_id": "mine-1",
    }
    assert "error.type" not in whole.attributes
    assert whole.resource["service.name"] == "octavo"
    assert "Xylophone" not in str(sink.spans)

    assert told is not None
    assert [part.name for part in parts] == [span.state.value for span in told.spans()]
    assert {part.parent_id for part in parts} == {whole.span_id}
    assert {part.trace_id for part in parts} == {TRACE}
    assert {part.attributes["octavo.choice"] for part in parts} == {f"{answer['id']}-0"}
    assert before < whole.began == parts[0].began < parts[-1].ended <= whole.ended < after
    assert all(earlier.ended == later.began for earlier, later in pairwise(parts))
    for part, span in zip(parts, told.spans(), strict=True):
        assert (part.ended - part.began) / SECOND == pytest.approx(span.seconds, abs=1e-6)
    first = whole.attributes["gen_ai.server.time_to_first_token"]
    assert first == pytest.approx(told.first_token, abs=1e-6)
    assert whole.attributes["octavo.queue_seconds"] <= first <= whole.attributes["gen_ai.server.request.duration"]
    assert json.loads(traced.out.getvalue())["trace_id"] == TRACE
    assert sink.headers[0]["path"] == "/v1/traces"


def test_each_choice_has_its_own_stretches_and_a_stream_is_told_like_a_plain_answer(
    tokenizer: Tokenizer, sink: Collector
) -> None:
    with Traced(tokenizer, sink) as traced:
        traced.post(COMPLETIONS, prompt=["a", "b"], n=2, max_tokens=2, stream=True)
    (whole,), parts = split(sink.until(13))
    assert (whole.name, whole.parent_id) == ("text_completion scripted", "")
    assert whole.attributes["gen_ai.request.choice.count"] == 4
    assert whole.attributes["gen_ai.usage.output_tokens"] == 8
    name = whole.attributes["gen_ai.response.id"]
    assert {part.attributes["octavo.choice"] for part in parts} == {f"{name}-{index}" for index in range(4)}
    (line,) = map(json.loads, traced.out.getvalue().splitlines())
    assert line["trace_id"] == whole.trace_id, "a trace of its own is in the access log, too"


def test_what_the_caller_does_not_sample_is_not_sent_and_what_asks_for_no_answer_neither(
    tokenizer: Tokenizer, sink: Collector
) -> None:
    with Traced(tokenizer, sink) as traced:
        traced.post(COMPLETIONS, {"traceparent": f"00-{TRACE}-{CALLER}-00"}, prompt="x", max_tokens=1)
        traced.post("/tokenize", prompt="x")
        traced.post("/nothing")
        traced.post(COMPLETIONS, {"traceparent": "00-nonsense"}, prompt="x", max_tokens=1)
    (whole,), _ = split(sink.spans)
    assert whole.parent_id == ""


def test_refusals_and_faults_are_told_apart(tokenizer: Tokenizer, sink: Collector) -> None:
    with Traced(tokenizer, sink) as traced:
        assert traced.post(COMPLETIONS, prompt="x", temperature=9).status_code == 400
        assert traced.post(COMPLETIONS, prompt="x", n=5).status_code == 429
        traced.server.model.fault = lambda _: "scripted failure"
        assert traced.post(COMPLETIONS, prompt="x").status_code == 500
    wholes, _ = split(sink.spans)
    told = [(span.failed, span.attributes["error.type"]) for span in wholes]
    assert told == [(False, "invalid_value"), (False, "queue_full"), (True, "internal_error")]
    assert "gen_ai.response.id" not in wholes[0].attributes


def test_a_collector_that_does_not_answer_holds_up_neither_requests_nor_the_end(
    tokenizer: Tokenizer, sink: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo_engine.server.traces.CLOSE_SECONDS", 0.1)
    sink.gate.clear()
    with Traced(tokenizer, sink) as traced:
        for _ in range(5):
            assert traced.post(COMPLETIONS, prompt="x", max_tokens=1).status_code == 200
    assert sink.spans == []


@pytest.mark.parametrize(
    ("flag", "environment", "url"),
    [
        (None, {}, None),
        ("http://a:4318/v1/traces", {}, "http://a:4318/v1/traces"),
        ("https://a/x", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:4318"}, "https://a/x"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:4318/"}, "http://b:4318/v1/traces"),
        (
            None,
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/t"},
            "http://c/t",
        ),
        ("http://a", {"OTEL_SDK_DISABLED": "true"}, None),
        ("http://a", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://a"),
    ],
)
def test_where_traces_go(flag: str | None, environment: dict[str, str], url: str | None) -> None:
    assert read_traces_endpoint(flag, environment) == url


@pytest.mark.parametrize(
    ("flag", "environment", "named"),
    [
        ("collector:4318", {}, "--otlp-traces-endpoint"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://user:secret@b"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "is grpc"),
    ],
)
def test_where_they_cannot_go(flag: str | None, environment: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidConfiguration, match=named) as refused:
        read_traces_endpoint(flag, environment)
    assert "secret" not in str(refused.value)


def test_without_the_packages_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "octavo_engine.server.traces", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidConfiguration, match=r"pip install 'octavo\[engine,otel\]'"):
        open_watchers(ServerConfig(otlp_traces_endpoint="http://a"), "m", {}, io.StringIO())
    assert len(open_watchers(ServerConfig(), "m", {}, io.StringIO()).each) == 1, "who asks for none needs none"
