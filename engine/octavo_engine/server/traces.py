"""Traces of requests, by OpenTelemetry: one span for each HTTP request that asks for an answer, and below it the
stretches of each choice's timeline. Only this module knows the library.

The spans are made when the reply is over, with the times at which things happened; a thread of the library's own sends
them. What finds no room in its bounded queue is dropped. Names are those of the semantic conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/), ours begin with `octavo.`; no prompt and no answer is told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import islice

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from octavo_engine import __version__
from octavo_engine.history.timeline import Span as Stretch
from octavo_engine.history.timeline import timeline
from octavo_engine.request import EventKind, Request
from octavo_engine.server.exchange import CLIENT_GONE, Exchange

CLOSE_SECONDS = 2.0  # for what has not been sent when the process ends
MOST_STRETCHES = 256  # of one HTTP request: many choices, each preempted often, are not told to the last
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}

Value = str | bool | int | float | list[str]


def exporter_to(url: str) -> SpanExporter:
    """Sends spans to `url` by OTLP over HTTP. Headers, certificates and timeouts are OpenTelemetry's own variables."""
    return OTLPSpanExporter(endpoint=url)


class Traces:
    """A watcher of exchanges. Which of them are sampled is for OTEL_TRACES_SAMPLER, or for the caller's own trace."""

    def __init__(self, exporter: SpanExporter, model: str) -> None:
        self._model = model
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("octavo", __version__)
        self._parents = TraceContextTextMapPropagator()

    def __call__(self, exchange: Exchange) -> None:
        """It is over."""
        operation = OPERATIONS.get(exchange.path)
        if operation is None:
            return
        clock = _Clock()
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=self._parents.extract(exchange.headers, Context()),
            kind=SpanKind.SERVER,
            start_time=clock.nanoseconds(exchange.began),
            attributes={"gen_ai.operation.name": operation, "gen_ai.request.model": self._model},
        )
        exchange.trace_id = f"{span.get_span_context().trace_id:032x}"
        if span.is_recording():
            span.set_attributes(dict(attributes(exchange, self._model)))
            if _failed(exchange):
                span.set_status(StatusCode.ERROR, exchange.error)
            self._add_stretches(span, exchange, clock)
        span.end(clock.nanoseconds(exchange.ended))

    def _add_stretches(self, span: Span, exchange: Exchange, clock: _Clock) -> None:
        below, stretches = set_span_in_context(span, Context()), _stretches(exchange)
        for request, part in islice(stretches, MOST_STRETCHES):
            child = self._tracer.start_span(
                part.state.value,
                context=below,
                start_time=clock.nanoseconds(request.arrival + part.began),
                attributes=dict(_details(request, part)),
            )
            child.end(clock.nanoseconds(request.arrival + part.ended))
        if left_out := sum(1 for _ in stretches):
            span.set_attribute("octavo.stretches_left_out", left_out)

    def close(self) -> None:
        """Send what waits. A collector that does not answer is not waited for."""
        last = threading.Thread(target=self._provider.shutdown, name="octavo-traces", daemon=True)
        last.start()
        last.join(CLOSE_SECONDS)


class _Clock:
    """From the engine's monotonic seconds to Unix time in nanoseconds, as the two are now."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def nanoseconds(self, seconds: float) -> int:
        return round(seconds * 1e9) + self._offset


def _resource() -> Resource:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say of this process, and our name where they give none."""
    told, ours = Resource.create(), Resource({SERVICE_NAME: "octavo", SERVICE_VERSION: __version__})
    unnamed = str(told.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return told.merge(ours) if unnamed else ours.merge(told)


def _failed(exchange: Exchange) -> bool:
    """An error is the server's own; what the client did wrong, or did not wait for, is told by the attributes."""
    return exchange.status >= 500 or (exchange.status == 200 and exchange.error is not None)


def attributes(exchange: Exchange, model: str) -> Iterator[tuple[str, Value]]:
    """What is told of an HTTP request: how it was asked, what it has cost, how it ended."""
    yield "gen_ai.provider.name", "octavo"
    yield "http.request.method", exchange.method
    yield "url.path", exchange.path
    yield "octavo.x_request_id", exchange.x_request_id
    yield "gen_ai.server.request.duration", exchange.seconds
    if exchange.status != CLIENT_GONE:
        yield "http.response.status_code", exchange.status
    if exchange.error is not None:
        yield "error.type", exchange.error
    if exchange.requests:
        yield "gen_ai.response.model", model
        yield from _asked(exchange.requests[0])
        yield from _given(exchange)


def _asked(request: Request) -> Iterator[tuple[str, Value]]:
    """The parameters as they held, defaults included; they are the same for all choices but the seed."""
    params = request.params
    yield "gen_ai.request.max_tokens", params.max_tokens
    yield "gen_ai.request.temperature", params.temperature
    yield "gen_ai.request.top_p", params.top_p
    if params.top_k is not None:
        yield "gen_ai.request.top_k", params.top_k
    if params.seed is not None:
        yield "gen_ai.request.seed", params.seed
    if params.frequency_penalty:
        yield "gen_ai.request.frequency_penalty", params.frequency_penalty
    if params.presence_penalty:
        yield "gen_ai.request.presence_penalty", params.presence_penalty


def _given(exchange: Exchange) -> Iterator[tuple[str, Value]]:
    if exchange.id is not None:
        yield "gen_ai.response.id", exchange.id
    if len(exchange.requests) > 1:
        yield "gen_ai.request.choice.count", len(exchange.requests)
    yield "gen_ai.response.finish_reasons", exchange.finish_reasons
    yield "gen_ai.usage.input_tokens", exchange.prompt_tokens
    yield "gen_ai.usage.cache_read.input_tokens", exchange.cached_tokens
    yield "gen_ai.usage.output_tokens", exchange.output_tokens
    if (queued := exchange.queue_seconds) is not None:
        yield "octavo.queue_seconds", queued
    if (first := exchange.first_token_seconds) is not None:
        yield "gen_ai.server.time_to_first_token", first
    if (pace := _token_seconds(exchange.requests[0])) is not None:
        yield "gen_ai.server.time_per_output_token", pace


def _token_seconds(request: Request) -> float | None:
    """Of a choice, from one token to the next after the first, on average; None: it has fewer than two."""
    if request.token_at is None or request.num_output < 2:
        return None
    first = next((event.at for event in request.events.copy() if event.what is EventKind.FIRST_TOKEN), None)
    return None if first is None else (request.token_at - first) / (request.num_output - 1)


def _stretches(exchange: Exchange) -> Iterator[tuple[Request, Stretch]]:
    """Of each choice, what its time was spent on. The step thread may still add to one that has not ended."""
    for request in exchange.requests:
        for part in timeline(request, request.events.copy(), exchange.ended).spans():
            yield request, part


def _details(request: Request, part: Stretch) -> Iterator[tuple[str, Value]]:
    yield "octavo.choice", request.id
    if part.why:
        yield "octavo.why", str(part.why)
    if part.by:
        yield "octavo.by", part.by
    if part.steps:
        yield "octavo.tokens", part.tokens
        yield "octavo.steps", part.steps
