"""Forms are tried where they can be killed: whatever a form does to the grammar engine, the server goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import stubborn_trial
from form_bombs import BOMBS, NOWHERE
from octavo_engine.errors import FormTooComplex, RequestError
from octavo_engine.metrics import FormResult
from octavo_engine.structured import Forms, Grammar, forms, spec, trials
from octavo_engine.structured.kept import MAX_BYTES, Kept
from octavo_engine.structured.spec import Spec
from octavo_engine.structured.trials import Assignment, Trials
from patience import PATIENCE_SECONDS
from small_vocabulary import END, VOCABULARY

LIMIT = 0.2  # seconds


@pytest.fixture(scope="module")
def real() -> Iterator[Trials]:
    made = Trials(VOCABULARY, [END], seconds=10.0)  # a processor that is slow is no reason to refuse a form
    yield made
    made.close()


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trials]:
    monkeypatch.setattr(trials, "COMMAND", ("-P", stubborn_trial.__file__))
    monkeypatch.setattr(trials, "PATIENCE", PATIENCE_SECONDS / LIMIT)
    made = Trials(VOCABULARY, [END], seconds=LIMIT)
    yield made
    made.close()


def check_in_vain(made: Trials, form: Spec, message: str) -> None:
    """A form that nobody waits for longer than has to be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "PATIENCE", 3)
        with pytest.raises(FormTooComplex, match=message):
            made.check(form)


def pid(made: Trials) -> int:
    """Of the process that would be used next."""
    process = made._places.get()
    made._places.put(process)
    assert process is not None
    return process._process.pid


def is_there(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_can_be_compiled_passes_and_what_cannot_is_refused_in_the_same_words(real: Trials) -> None:
    assert 0 < real.check(spec.choice(["yes", "no"], "p")) < 10
    wrong = spec.json_schema({"type": "array", "uniqueItems": True}, "guided_json")
    with pytest.raises(RequestError) as told:
        real.check(wrong)
    with pytest.raises(RequestError) as here:
        Forms(VOCABULARY, [END]).compile(wrong)
    assert (str(told.value), told.value.param) == (str(here.value), "guided_json")
    assert not isinstance(told.value, FormTooComplex)


@pytest.mark.parametrize("form", NOWHERE.values(), ids=NOWHERE)
def test_what_can_be_read_but_not_followed_is_refused_before_there_is_an_answer(real: Trials, form: Spec) -> None:
    assert isinstance(Forms(VOCABULARY, [END]).compile(form), Grammar)
    for _ in range(2):
        with pytest.raises(FormTooComplex, match=r"too complex after \d+ tokens of an answer: .*; ") as told:
            real.check(form)
        assert (told.value.param, told.value.code) == (form.param, "form_too_complex")


def test_a_form_that_some_answers_get_through_is_taken(real: Trials) -> None:
    assert real.check(spec.regex("[A-Z0-9 ]*|((([a-z]{1,30}){1,30}){1,30}){1,30}", "p")) > 0


@pytest.mark.parametrize("how", [stubborn_trial.SPIN, stubborn_trial.SLEEP, stubborn_trial.BREAK_DOWN])
def test_what_does_not_end_is_killed_and_the_next_is_tried(
    stubborn: Trials, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn.prepare()
    before = pid(stubborn)
    check_in_vain(stubborn, spec.regex(how, "p"), r"p: this form takes more than 0.2 s or 1024 MiB .* make it simpler")
    assert not is_there(before)
    assert "the limit of time or memory" in caplog.text
    after = pid(stubborn)
    assert stubborn.check(spec.regex("a|b", "p")) > 0
    with pytest.raises(FormTooComplex):
        stubborn.check(spec.regex(how, "another"))
    assert pid(stubborn) == after, "it is known by now, and not tried again"


def test_what_grows_beyond_bounds_is_refused_where_it_grows(stubborn: Trials) -> None:
    with pytest.raises(RequestError, match=r"p: this form takes more than"):
        stubborn.check(spec.regex(stubborn_trial.GROW, "p"))
    assert stubborn.check(spec.regex("a|b", "p")) > 0


def test_a_process_that_was_killed_from_outside_is_replaced(real: Trials, caplog: pytest.LogCaptureFixture) -> None:
    real.prepare()
    os.kill(pid(real), signal.SIGKILL)
    with pytest.raises(FormTooComplex):
        real.check(spec.regex("lost", "p"))
    assert real.check(spec.regex("found", "p")) > 0


def test_none_is_left_behind() -> None:
    made = Trials(VOCABULARY, [END], seconds=1.0, places=2)
    made.check(spec.regex("a", "p"))
    number = pid(made)
    assert is_there(number)
    made.close()
    assert not is_there(number)


def test_a_process_that_nobody_asks_any_more_ends_by_itself() -> None:
    made = Trials(VOCABULARY, [END], seconds=1.0)
    made.prepare()
    process = made._places.get()
    assert process is not None
    process._line.close()
    assert process._process.wait(PATIENCE_SECONDS) == 0


def test_a_vocabulary_arrives_as_it_is() -> None:
    sent = Assignment([b"", b"\xff\x00", "日".encode()], frozenset({0, 2}), [2, 0], 0.5, 1 << 30)
    assert Assignment.from_words(sent.words()) == sent


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_or_compiled_and_harms_nobody(
    real: Trials, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused = None
    try:
        form: Spec = BOMBS[name]()
        real.check(form)
    except RequestError as error:
        refused = error
    if refused is None:
        assert isinstance(Forms(VOCABULARY, [END]).compile(form), Grammar)
    else:
        assert refused.param == "p"
        assert len(str(refused)) < 600
    assert real.check(spec.regex(f"after {len(name)}", "p")) > 0


async def test_what_came_of_each_wish_is_told(stubborn: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[FormResult, float]] = []
    made = Forms(VOCABULARY, [END], tried=True, on_asked=lambda *given: told.append(given))
    monkeypatch.setattr(made, "_trials", stubborn)
    form = spec.regex("a|b", "p")
    await made.grammar(form)
    assert made.kept_bytes > 0
    await made.grammar(form)
    for wrong in (spec.regex("(", "p"), spec.regex(stubborn_trial.BREAK_DOWN, "p")):
        with pytest.raises(RequestError):
            await made.grammar(wrong)
    with monkeypatch.context() as patch:
        patch.setattr(forms, "compile_spec", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await made.grammar(spec.regex("c", "p"))
    made.close()
    assert [result for result, _ in told] == ["compiled", "kept", "refused", "slow", "failed"]
    assert [seconds > 0 for _, seconds in told] == [True, False, True, True, True]


def small(number: int) -> Spec:
    return spec.json_schema({"type": "object", "properties": {f"p{number}": {"type": "integer"}}}, "p")


def resident(number: int | str) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{number}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("count", "may_be_kept"), [(400, 4 << 20), pytest.param(10_000, MAX_BYTES, marks=pytest.mark.soak)]
)
def test_many_different_forms_take_no_more_memory_than_may_be_kept(real: Trials, count: int, may_be_kept: int) -> None:
    made = Forms(VOCABULARY, [END])
    made._kept = Kept(may_be_kept)
    held: list[tuple[int, int]] = []  # by this process and by the other, when half of them are done, and all
    for number in range(count):
        real.check(small(number))
        made.compile(small(number))
        assert made.kept_bytes <= may_be_kept
        if number in (count // 2, count - 1):
            held.append((resident("self"), resident(pid(real))))
    assert made.kept_bytes > may_be_kept // 2, "there were more than can be kept"
    for half, whole in zip(*held, strict=True):
        assert whole - half < 16 << 20
