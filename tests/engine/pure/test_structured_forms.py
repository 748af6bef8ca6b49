"""Who waits for a form to be compiled, and for how long; and which of them are kept."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from moved_clock import MovedClock
from octavo_engine.errors import Overloaded, RequestError
from octavo_engine.structured import Forms, Grammar, forms, spec
from octavo_engine.structured.kept import BYTES_EACH, Kept
from patience import PATIENCE_SECONDS
from small_vocabulary import END, VOCABULARY

FORM = spec.choice(["yes", "no"], "p")


def numbered(number: int) -> spec.Spec:
    return spec.regex(f"{number}", "p")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Compilation waits for it."""
    opened, compile_spec = threading.Event(), forms.compile_spec

    def slowly(*arguments: Any) -> Grammar:
        assert opened.wait(PATIENCE_SECONDS)
        return compile_spec(*arguments)

    monkeypatch.setattr(forms, "compile_spec", slowly)
    yield opened
    opened.set()


async def test_a_form_is_compiled_once() -> None:
    made = Forms(VOCABULARY, [END])
    first = await made.grammar(FORM)
    assert await made.grammar(spec.choice(["yes", "no"], "another_field")) is first


async def test_a_refusal_reaches_who_asked() -> None:
    with pytest.raises(RequestError, match="uniqueItems"):
        await Forms(VOCABULARY, [END]).grammar(spec.json_schema({"uniqueItems": True, "type": "array"}, "p"))


async def test_the_loop_goes_on_while_a_form_is_compiled(gate: threading.Event) -> None:
    made = Forms(VOCABULARY, [END], seconds=PATIENCE_SECONDS)
    waiting = asyncio.create_task(made.grammar(FORM))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    assert isinstance(await waiting, Grammar)


class Passed:
    """In the place of trials that every form passes."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def prepare(self) -> None: ...

    def check(self, form: spec.Spec) -> None:
        self.begun.set()


async def test_a_form_that_is_begun_has_the_patience_of_its_trial(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a form may take is bounded by the processor's clock: on a busy machine the wall's says nothing of it."""
    clock, trials = MovedClock(monkeypatch), Passed()
    made = Forms(VOCABULARY, [END], seconds=60.0)
    monkeypatch.setattr(made, "_trials", trials)
    waiting = asyncio.create_task(made.grammar(FORM))
    assert await asyncio.to_thread(trials.begun.wait, PATIENCE_SECONDS)
    clock.move_on(61.0)
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert not waiting.done()
    gate.set()
    assert isinstance(await waiting, Grammar)


async def test_who_waits_too_long_is_told_and_so_are_those_behind(gate: threading.Event) -> None:
    made, numbers = Forms(VOCABULARY, [END], seconds=0.05), itertools.count()
    for _ in range(forms.WORKERS):
        while isinstance(busy := await caught(made, numbered(next(numbers))), Overloaded):
            pass  # its worker was late to begin
        assert isinstance(busy, RequestError)
        assert busy.param == "p"
        assert "0.05 s" in str(busy)
    late = await caught(made, FORM)
    assert isinstance(late, Overloaded)
    assert (late.reason, late.retry_after) == ("compile_busy", 1)


async def caught(made: Forms, form: spec.Spec) -> Exception:
    with pytest.raises((RequestError, Overloaded)) as error:
        await made.grammar(form)
    return error.value


def test_what_is_kept_is_bounded_and_the_least_asked_for_goes_first() -> None:
    grammar = Forms(VOCABULARY, [END]).compile(FORM)
    kept = Kept(max_bytes=BYTES_EACH * 5)
    for number in range(4):
        kept.put(numbered(number), grammar)
    assert kept.find(numbered(0)) is grammar
    for number in range(4, 10_000):
        kept.put(numbered(number), grammar)
        kept.find(numbered(0))
    assert len(kept) == 4
    assert kept.find(numbered(0)) is grammar
    assert kept.find(numbered(9_999)) is grammar
    assert kept.find(numbered(5)) is None


def test_what_alone_is_more_than_may_be_kept_is_not() -> None:
    grammar, kept = Forms(VOCABULARY, [END]).compile(FORM), Kept(max_bytes=1)
    kept.put(FORM, grammar)
    assert kept.find(FORM) is None
    assert len(kept) == 0
