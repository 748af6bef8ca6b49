"""The real server, engine and scheduler on a real socket; only the model is replaced, by one that follows a script."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from octavo_engine.assembly import build_scheduler, detokenizer
from octavo_engine.async_engine import AsyncEngine
from octavo_engine.batch import Batch, Known, Read
from octavo_engine.config import EngineConfig
from octavo_engine.engine import Engine, Runner
from octavo_engine.engine import Recorder as EngineRecorder
from octavo_engine.errors import FormTooComplex
from octavo_engine.history.recent import History
from octavo_engine.history.timeline import Timeline
from octavo_engine.metrics import Metrics
from octavo_engine.prompt_reading import HiddenSum, PromptLogprobs, PromptReading, ScoredToken
from octavo_engine.request import RejectReason, Request, Sampled, TokenLogprob
from octavo_engine.server.app import build_app
from octavo_engine.server.auth import KeyRing
from octavo_engine.server.certificates import Certificates
from octavo_engine.server.context import Context
from octavo_engine.server.deadlines import Deadlines
from octavo_engine.server.exchange import Watcher
from octavo_engine.server.intake import Limits
from octavo_engine.server.lifecycle import Lifecycle
from octavo_engine.server.listeners import Listener, api_listener, bind, url_of
from octavo_engine.server.tools import Formats
from octavo_engine.structured import Forms
from octavo_engine.tokenizer import Tokenizer
from patience import PATIENCE_SECONDS

SCRIPT = "Paris, 日本語 and 👍🏽 e\u0301 – the END of it.\n\nMore"
WINDOW = 256
DEADLINE_SECONDS = PATIENCE_SECONDS
FORM_SECONDS = 20.0  # a machine that stalls is no reason to refuse a form
PATIENT = Deadlines(head=PATIENCE_SECONDS, body=PATIENCE_SECONDS, write=PATIENCE_SECONDS)  # nor to give up a client


@dataclass
class ScriptedModel:
    """Says `script` token by token. Steps wait for `gate`; `failing` names requests that go wrong, and `fault` says of
    any why it gets no token, or None."""

    script: list[int]
    gate: threading.Event = field(default_factory=threading.Event)
    failing: set[str] = field(default_factory=set)
    fault: Callable[[Request], str | FormTooComplex | None] = lambda _: None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """One whose gate is open."""
        made = cls([*tokenizer.encode(SCRIPT, add_special_tokens=False), tokenizer.eos_ids[0]])
        made.gate.set()
        return made

    def launch(self, batch: Batch) -> Known:
        assert self.gate.wait(DEADLINE_SECONDS), "the test never opened the gate"
        return Known([self._sample(piece.request) for piece in batch.sampling], list(map(self._read, batch.reading)))

    def _sample(self, request: Request) -> Sampled:
        token = self.script[request.num_output % len(self.script)]
        if why := "scripted failure" if request.id in self.failing else self.fault(request):
            return Sampled(token, error=why)
        if request.params.logprobs is None:
            return Sampled(token)
        others = tuple(TokenLogprob(token + i, -0.5 - i) for i in range(request.params.logprobs))
        return Sampled(token, TokenLogprob(token, -0.5), others)

    @staticmethod
    def _read(read: Read) -> PromptReading:
        """See `score`; a hidden state is a place in the prompt and one number for all."""
        if not read.scores:
            places = range(read.start, read.stop)
            return HiddenSum(array("d", [sum(places), 10 * len(places)]))
        width, tokens = read.request.params.prompt_logprobs or 0, read.request.tokens
        scores = [score(tokens, place, width) for place in range(read.start + 1, read.stop + 1)]
        return PromptLogprobs(
            width,
            array("f", [each.logprob for each in scores]),
            array("i", [each.rank for each in scores]),
            array("f", [logprob for each in scores for _, logprob in each.top]),
            array("i", [token for each in scores for token, _ in each.top]),
        )


def score(tokens: Sequence[int], place: int, width: int) -> ScoredToken:
    """What the model makes of a prompt's token: of every fourth that it is the likeliest, of others nothing good."""
    likeliest = tokens[place] if place % 4 == 0 else tokens[place] + 100
    top = tuple((likeliest + other, -0.25 - other) for other in range(width))
    return ScoredToken(-0.25, 1, top) if place % 4 == 0 else ScoredToken(-8.0 - place, 9, top)


class Recorder:
    """Keeps what the engine reports, and passes it on to the history, and to the metrics where a test looks at them."""

    def __init__(self, history: History, metrics: Metrics | None = None) -> None:
        self.history = history
        self.metrics = metrics
        self.ended: list[Request] = []
        self.rejected: list[RejectReason] = []

    def step(self, batch: Batch, seconds: float) -> None:
        self.history.step(batch, seconds)
        if self.metrics is not None:
            self.metrics.step(batch, seconds)

    def token(self, request: Request, at: float) -> None:
        if self.metrics is not None:
            self.metrics.token(request, at)

    def finished(self, request: Request, at: float) -> None:
        self.ended.append(request)
        self.history.finished(request, at)
        if self.metrics is not None:
            self.metrics.finished(request, at)

    def reject(self, reason: RejectReason) -> None:
        self.rejected.append(reason)
        if self.metrics is not None:
            self.metrics.rejected(reason)


def engine_around(model: Runner, tokenizer: Tokenizer, recorder: EngineRecorder, config: EngineConfig) -> Engine:
    """The real engine and scheduler around a model."""
    return Engine(
        scheduler=build_scheduler(config, 256),
        runner=model,
        metrics=recorder,
        detokenizer=lambda request: detokenizer(tokenizer, request),
        eos_ids=frozenset(tokenizer.eos_ids),
        max_model_len=WINDOW,
    )


@dataclass
class ScriptedServer:
    """What a test looks at."""

    url: str
    context: Context
    engine: AsyncEngine
    model: ScriptedModel
    recorder: Recorder
    call: Callable[[Any], Any]  # runs a coroutine on the server's loop
    listener: Listener

    def timeline(self, name: str) -> Timeline | None:
        """Of the first request called so, as the management port would tell it."""
        found = self.recorder.history.find(name, self.engine.live_requests(), self.engine.stats(), time.monotonic())
        return found[0] if found else None

    @property
    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=DEADLINE_SECONDS)

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        return url.host, url.port or 80

    def post(self, path: str, **body: Any) -> httpx.Response:
        with self.client as client:
            return client.post(path, json={"model": "scripted"} | body)

    def let_time_go_by(self, seconds: float) -> None:
        """From its next step on, the engine takes it to be so much later."""
        engine = self.engine._engine
        before = engine._clock
        engine._clock = lambda: before() + seconds

    def idle(self) -> bool:
        stats = self.engine.stats()
        return not stats.running and not sum(stats.waiting.values()) and not stats.used_blocks


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that must happen soon."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.005)


def exchange(server: ScriptedServer, sent: bytes) -> bytes:
    """Send bytes as they are and read until the server closes."""
    with socket.create_connection(server.address, timeout=DEADLINE_SECONDS) as connection:
        try:
            connection.sendall(sent)
        except (BrokenPipeError, ConnectionResetError):
            return b""
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except ConnectionResetError:
            pass
        return received


@contextmanager
def scripted_server(
    tokenizer: Tokenizer,
    *,
    keys: KeyRing | None = None,
    max_waiting: int = 64,
    timeout: float = 3 * PATIENCE_SECONDS,
    queue_timeout: float = 3 * PATIENCE_SECONDS,
    deadlines: Deadlines = PATIENT,
    certificates: Certificates | None = None,
    origins: tuple[str, ...] = (),
    max_body_bytes: int = 64 * 1024,
    metrics: Metrics | None = None,
    on_end: Watcher = lambda _: None,
    runner: Runner | None = None,
    tried: bool = False,
    **engine: Any,
) -> Iterator[ScriptedServer]:
    """A running server; `engine` are fields of EngineConfig. `runner`: in the place of the scripted model. `tried`:
    forms are tried in a process of their own first, as in earnest."""
    config = EngineConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64} | engine)
    model, history = ScriptedModel.of(tokenizer), History()
    recorder = Recorder(history, metrics)
    async_engine = AsyncEngine(
        engine_around(runner or model, tokenizer, recorder, config),
        max_waiting_requests=max_waiting,
        max_waiting_prompt_tokens=100_000,
        on_reject=recorder.reject,
    )
    lifecycle = Lifecycle(model_name="scripted", max_num_seqs=config.max_num_seqs, engine=async_engine)
    context = Context(
        model_name="scripted",
        engine=async_engine,
        tokenizer=tokenizer,
        limits=Limits(
            max_model_len=WINDOW,
            max_prompt_tokens=128,
            vocab_size=tokenizer.vocab_size,
            timeout_seconds=timeout,
            queue_seconds=queue_timeout,
            has_priorities=config.scheduling_policy == "priority",
        ),
        keys=keys or KeyRing(()),
        lifecycle=lifecycle,
        max_body_bytes=max_body_bytes,
        body_seconds=deadlines.body,
        origins=origins,
        forms=Forms(tokenizer, tokenizer.eos_ids, tried=tried, seconds=FORM_SECONDS),
        formats=Formats.of(tokenizer.chat_template),
        on_reject=recorder.reject,
        on_refused=history.refused,
        on_end=on_end,
    )
    async_engine.start()
    lifecycle.serving()
    with _running(context, bind("--port", "127.0.0.1", 0), deadlines, certificates) as (url, call, listener):
        try:
            yield ScriptedServer(url, context, async_engine, model, recorder, call, listener)
        finally:
            model.gate.set()
            async_engine.stop()
            context.forms.close()


@contextmanager
def _running(
    context: Context, bound: socket.socket, deadlines: Deadlines, certificates: Certificates | None
) -> Iterator[tuple[str, Callable[[Any], Any], Listener]]:
    listener, loop = api_listener(build_app(context), deadlines, certificates), asyncio.new_event_loop()
    url = url_of(bound, "http" if certificates is None else "https")
    thread = threading.Thread(target=loop.run_forever, name="test-server", daemon=True)
    thread.start()

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(DEADLINE_SECONDS)

    try:
        call(listener.start(bound, on_end=lambda: None))
        yield url, call, listener
    finally:
        call(listener.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_SECONDS)
        loop.close()
