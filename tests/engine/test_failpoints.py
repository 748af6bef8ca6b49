"""A fault at each place that a request passes: whom it ends, with what words, and that all others get the same tokens.

The server, the scheduler, the runner with its tensors and its sampler are the real ones; the model is a table. Three
requests are there: the victim, a neighbour that is computed in the same steps, and one that waits meanwhile.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

import scripted_server as support
from octavo_engine.request import Request
from octavo_engine.runtime.inputs import InputBuilder, StepInputs
from octavo_engine.runtime.runner import Runner
from octavo_engine.runtime.sampler import Sampler
from octavo_engine.server.answers import Writer
from octavo_engine.server.chunks import Chunks
from octavo_engine.server.tools import MessageReader
from octavo_engine.structured import Grammar, forms
from octavo_engine.structured.matching import Matching
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from scripted_server import DEADLINE_SECONDS, ScriptedServer, scripted_server, until
from scripted_talk import CALLS, HERMES, saying

pytestmark = pytest.mark.engine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
VOCAB, BLOCK = 199, 16
VICTIM, MARK = "victim", 77  # its x-request-id, and a token that no other prompt has
NEIGHBOUR, LATER = [5, 6, 7], [8, 9]
PLAIN: dict[str, Any] = {"prompt": [3, MARK], "ignore_eos": True}
FAILURES = "injected fault with a /secret/path"


class Table:
    """The model: the logits of a token are those of a table, whatever came before. Steps wait for `gate`.

    fault: called before a step is computed. change: what becomes of its logits, `[rows, vocab]`, and the rows' tokens.
    told: steps after the victim's first wait for it.
    """

    def __init__(self) -> None:
        self._logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(4))
        self._logits[:, MARK] = -9.0
        self.gate = threading.Event()
        self.heal()

    def heal(self) -> None:
        self.gate.set()
        self.told = threading.Event()
        self.told.set()
        self._has_begun = False
        self.fault: Callable[[torch.Tensor], object] = lambda tokens: None
        self.change: Callable[[torch.Tensor, torch.Tensor], object] = lambda logits, tokens: None

    def __call__(self, inputs: StepInputs, reader: object = None, /) -> torch.Tensor | None:
        assert self.gate.wait(DEADLINE_SECONDS)
        if self._has_begun:
            assert self.told.wait(DEADLINE_SECONDS)
        self._has_begun = self._has_begun or bool((inputs.tokens == MARK).any())
        self.fault(inputs.tokens)
        if not inputs.samples:
            return None
        tokens = inputs.tokens if inputs.sampling_rows is None else inputs.tokens[inputs.sampling_rows]
        logits = self._logits[tokens].clone()
        self.change(logits, tokens)
        return logits


class Stage:
    """A server with its model, and the three requests."""

    def __init__(self, server: ScriptedServer, table: Table) -> None:
        self.server, self.table = server, table
        self.alone = [self.neighbour(NEIGHBOUR), self.neighbour(LATER)]

    def neighbour(self, prompt: list[int]) -> str:
        """The events of a stream, without what differs from one to the next."""
        asked = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "stream": True}
        return without_ids(self.server.post(COMPLETIONS, **asked).text)

    def victim(self, path: str, body: dict[str, Any]) -> httpx.Response:
        with self.server.client as client:
            asked = {"model": "scripted", "max_tokens": 12, "temperature": 0} | body
            return client.post(path, json=asked, headers={"x-request-id": VICTIM})

    def play(self, path: str, body: dict[str, Any]) -> tuple[httpx.Response, list[str]]:
        """Let the three meet; what the victim got, and what the neighbour and the one that waited."""
        engine = self.server.engine
        self.table.gate.clear()
        with ThreadPoolExecutor(3) as pool:
            neighbour = pool.submit(self.neighbour, NEIGHBOUR)
            until(lambda: engine.stats().running == 1, "the neighbour runs")
            victim = pool.submit(self.victim, path, body)
            until(lambda: victim.done() or waiting(self.server), "the victim has come")
            later = pool.submit(self.neighbour, LATER)
            until(lambda: self._has_come(victim, later), "the third has come")
            self.table.gate.set()
            return victim.result(), [neighbour.result(), later.result()]

    def _has_come(self, victim: Future[Any], later: Future[Any]) -> bool:
        return later.done() or waiting(self.server) > (0 if victim.done() else 1)


def waiting(server: ScriptedServer) -> int:
    return sum(server.engine.stats().waiting.values())


def without_ids(text: str) -> str:
    """A stream's text, and how it ended."""
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    values = [json.loads(event) for event in events if event != "[DONE]"]
    choices = [choice for value in values for choice in value.get("choices", ())]
    said = "".join(choice["text"] for choice in choices)
    return json.dumps(
        [said, *(choice["finish_reason"] for choice in choices[-1:]), *(value.get("error") for value in values[-1:])]
    )


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture(scope="module")
def stage(tokenizer: Tokenizer) -> Iterator[Stage]:
    table = Table()
    runner = Runner(table, block_size=BLOCK, device=torch.device("cpu"), sampler=Sampler(eos_ids=tokenizer.eos_ids))
    with scripted_server(tokenizer, runner=runner, max_num_seqs=2, block_size=BLOCK) as server:
        yield Stage(server, table)


class Ends(Enum):
    """Who does."""

    ONE = "the victim"
    STEP = "whoever is computed in its step: nobody knows whose fault a failed step is"
    ALL = "every live request: nobody knows what a scheduler that failed has done"


def injected(*_: Any, **__: Any) -> Any:
    raise RuntimeError(FAILURES)


def is_victim(request: Request) -> bool:
    return request.x_request_id == VICTIM


def when(condition: Callable[..., bool], real: Callable[..., Any], fault: Callable[..., Any] = injected) -> Any:
    """`real`, but a fault where the arguments are the victim's."""
    return lambda *given, **named: (fault if condition(*given, **named) else real)(*given, **named)


def at_tokenising(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    patch.setattr(Tokenizer, "encode", when(lambda _, text, **__: text == VICTIM, Tokenizer.encode))


def at_the_template(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    patch.setattr(Tokenizer, "render_chat", injected)


def at_compiling_its_form(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    patch.setattr(forms, "compile_spec", injected)


def at_beginning_its_form(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    patch.setattr(Grammar, "start", injected)


def at_its_forms_next_token(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    patch.setattr(Matching, "allowed", injected)


def at_a_form_that_allows_nothing(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    patch.setattr(Matching, "allowed", lambda *_: b"")


def at_queueing(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    patch.setattr(support, "detokenizer", when(lambda _, request: is_victim(request), support.detokenizer))


def at_detokenising(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    patch.setattr(support, "detokenizer", broken_text("push", 3))


def at_the_texts_end(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    patch.setattr(support, "detokenizer", broken_text("finish", 1))


def broken_text(method: str, calls: int) -> Any:
    """A maker of detokenizers of which the victim's fails when a method is called for the n-th time."""
    make = support.detokenizer

    def broken(tokenizer: Tokenizer, request: Request) -> Any:
        made = make(tokenizer, request)
        if is_victim(request):
            real, left = getattr(made, method), iter(range(calls - 1))
            setattr(made, method, lambda *given: real(*given) if next(left, None) is not None else injected())
        return made

    return broken


def at_scheduling(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    engine: Any = stage.server.engine._engine
    real, scheduler = engine._scheduler.schedule, engine._scheduler
    once = iter([True])

    def schedule(*given: Any, **named: Any) -> Any:
        has_come = any(is_victim(request) for request in list(engine._requests.values()))
        return injected() if has_come and next(once, False) else real(*given, **named)

    patch.setattr(scheduler, "schedule", schedule)


def at_laying_out(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    has_victim = when(lambda _, batch: any(is_victim(piece.request) for piece in batch.slices), InputBuilder.plan)
    patch.setattr(InputBuilder, "plan", has_victim)


def at_the_forward_pass(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    stage.table.fault = lambda tokens: injected() if MARK in tokens else None


def at_want_of_memory(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    def fault(tokens: torch.Tensor) -> None:
        if MARK in tokens:
            raise torch.OutOfMemoryError(FAILURES)

    stage.table.fault = fault


def at_sampling(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    has_victim = when(lambda _, __, requests: any(map(is_victim, requests)), Sampler.sample)
    patch.setattr(Sampler, "sample", has_victim)


def at_logits_of(value: float) -> Callable[[pytest.MonkeyPatch, Stage], None]:
    def arm(patch: pytest.MonkeyPatch, stage: Stage) -> None:
        def change(logits: torch.Tensor, tokens: torch.Tensor) -> None:
            logits[tokens == MARK] = value

        stage.table.change = change

    return arm


def at_writing_the_answer(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    patch.setattr(Writer, "answer", when(lambda _, deltas, __: len(deltas) > 1, Writer.answer))


def at_writing_a_chunk(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    def ends_the_second(_: Chunks, deltas: Any) -> bool:
        return any(index and delta.finish_reason is not None for index, delta in deltas)

    patch.setattr(Chunks, "pieces", when(ends_the_second, Chunks.pieces))


class Failpoint(NamedTuple):
    """Where, whom it ends, what the victim asks for, and whether its stream has begun by then."""

    arm: Callable[[pytest.MonkeyPatch, Stage], None]
    ends: Ends = Ends.ONE
    body: dict[str, Any] = PLAIN
    path: str = COMPLETIONS
    begun: bool = False


def form(number: int) -> dict[str, Any]:
    """A body with a form that was not asked for before."""
    return {"prompt": [3, MARK], "guided_regex": f"[a-z ]{{{number},}}"}


FAILPOINTS = {
    "tokenising": Failpoint(at_tokenising, body={"prompt": VICTIM}),
    "template": Failpoint(at_the_template, body={"messages": [{"role": "user", "content": "x"}]}, path=CHAT),
    "compiling a form": Failpoint(at_compiling_its_form, body=form(200)),
    "beginning a form": Failpoint(at_beginning_its_form, body=form(201)),
    "queueing": Failpoint(at_queueing),
    "scheduling": Failpoint(at_scheduling, Ends.ALL),
    "laying out": Failpoint(at_laying_out, Ends.STEP),
    "forward pass": Failpoint(at_the_forward_pass, Ends.STEP),
    "out of memory": Failpoint(at_want_of_memory, Ends.STEP),
    "sampling": Failpoint(at_sampling, Ends.STEP),
    "logits that are no number": Failpoint(at_logits_of(float("nan"))),
    "logits without end": Failpoint(at_logits_of(float("inf"))),
    "all tokens forbidden": Failpoint(at_logits_of(float("-inf"))),
    "next token of a form": Failpoint(at_its_forms_next_token, body=form(202)),
    "a form that allows nothing": Failpoint(at_a_form_that_allows_nothing, body=form(203)),
    "detokenising": Failpoint(at_detokenising, begun=True),
    "end of the text": Failpoint(at_the_texts_end, begun=True),
}


def check_fault(text: str, name: str = "") -> None:
    """Words of a fault: an id under which the log has more, and nothing of what went wrong."""
    error = json.loads(text)["error"]
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert name in error["message"] if name else VICTIM in error["message"] or "cmpl-" in error["message"]
    assert FAILURES not in text


def last_event(text: str) -> str:
    assert "[DONE]" not in text
    return [event for event in text.split("\n\n") if event][-1].removeprefix("data: ")


def check_victim(reply: httpx.Response, streams: bool, begun: bool) -> None:
    assert reply.headers["x-request-id"] == VICTIM
    assert reply.status_code == (200 if streams and begun else 500), reply.text
    check_fault(last_event(reply.text) if streams and begun else reply.text)


def wait_for_the_first_words(patch: pytest.MonkeyPatch, stage: Stage) -> None:
    """Let the victim's and the neighbour's streams begin before the victim's second step.

    The event loop gets its turn when it gets it: a short answer may have ended by then, and an error comes before it.
    """
    write, begun = Chunks.pieces, set()
    stage.table.told.clear()

    def pieces(chunks: Chunks, deltas: Any) -> bytes:
        written = write(chunks, deltas)
        begun.add(chunks)
        if len(begun) == 2:
            stage.table.told.set()
        return written

    patch.setattr(Chunks, "pieces", pieces)


def play(stage: Stage, point: Failpoint, streams: bool) -> None:
    """One fault, and that the server is as well as before."""
    engine = stage.server.engine
    with pytest.MonkeyPatch.context() as patch:
        point.arm(patch, stage)
        if streams and point.begun:
            wait_for_the_first_words(patch, stage)
        try:
            victim, others = stage.play(point.path, point.body | {"stream": streams})
        finally:
            stage.table.heal()
    check_victim(victim, streams, point.begun)
    alive = {Ends.ONE: [0, 1], Ends.STEP: [1], Ends.ALL: []}[point.ends]
    for place, told in enumerate(others):
        if place in alive:
            assert told == stage.alone[place]
        else:
            assert '"internal_error"' in told
    assert engine.alive
    until(stage.server.idle, "its blocks are free")
    assert stage.neighbour(NEIGHBOUR) == stage.alone[0]


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", FAILPOINTS)
def test_a_fault_ends_those_whose_it_may_be_and_nobody_else(
    stage: Stage, name: str, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    play(stage, FAILPOINTS[name], streams)


@pytest.mark.parametrize(
    ("arm", "streams"), [(at_writing_the_answer, False), (at_writing_a_chunk, True)], ids=["plain", "streamed"]
)
def test_a_fault_in_writing_an_answer_is_the_answers_own(
    stage: Stage, arm: Any, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    play(stage, Failpoint(arm, body=PLAIN | {"n": 2}, begun=True), streams)


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
def test_a_fault_in_reading_calls_is_the_answers_own(
    smollm2_gguf: Path, streams: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    asked: Any = {"messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    with saying(smollm2_gguf, HERMES, CALLS) as (server, _):
        whole = server.post(CHAT, **asked).json()["choices"][0]["message"]
        with monkeypatch.context() as patch:
            in_a_call = when(lambda _, text, **__: "arguments" in text, MessageReader.push)
            patch.setattr(MessageReader, "push", in_a_call)
            reply = server.post(CHAT, stream=streams, **asked)
        check_fault(last_event(reply.text) if streams else reply.text, reply.headers["x-request-id"])
        until(server.idle, "its blocks are free")
        assert server.post(CHAT, **asked).json()["choices"][0]["message"]["content"] == whole["content"]


@pytest.mark.soak
@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", FAILPOINTS)
def test_twenty_faults_are_as_harmless_as_one(
    stage: Stage, name: str, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        play(stage, FAILPOINTS[name], streams)
