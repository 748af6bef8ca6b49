"""Forms are tried where they can be killed: whatever a form does to the grammar engine, the server goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import stubborn_trial
from octavo_engine.errors import RequestError
from octavo_engine.metrics import FormResult
from octavo_engine.structured import Forms, Grammar, forms, spec, trials
from octavo_engine.structured.kept import MAX_BYTES
from octavo_engine.structured.spec import Spec
from octavo_engine.structured.trials import Assignment, TooHard, Trials
from small_vocabulary import END, VOCABULARY

LIMIT = 0.2  # seconds


@pytest.fixture(scope="module")
def real() -> Iterator[Trials]:
    made = Trials(VOCABULARY, [END], seconds=2.0)
    yield made
    made.close()


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trials]:
    monkeypatch.setattr(trials, "COMMAND", ("-P", stubborn_trial.__file__))
    monkeypatch.setattr(trials, "PATIENCE", 3)
    made = Trials(VOCABULARY, [END], seconds=LIMIT)
    yield made
    made.close()


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
    assert 0 < real.check(spec.choice(["yes", "no"], "p")) < 2
    wrong = spec.json_schema({"type": "array", "uniqueItems": True}, "guided_json")
    with pytest.raises(RequestError) as told:
        real.check(wrong)
    with pytest.raises(RequestError) as here:
        Forms(VOCABULARY, [END]).compile(wrong)
    assert (str(told.value), told.value.param) == (str(here.value), "guided_json")
    assert not isinstance(told.value, TooHard)


@pytest.mark.parametrize("how", [stubborn_trial.SPIN, stubborn_trial.SLEEP, stubborn_trial.BREAK_DOWN])
def test_what_does_not_end_is_killed_and_the_next_is_tried(
    stubborn: Trials, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    stubborn.prepare()
    before = pid(stubborn)
    with pytest.raises(TooHard, match=r"p: this form takes more than 0.2 s or 1024 MiB .* make it simpler"):
        stubborn.check(spec.regex(how, "p"))
    assert not is_there(before)
    assert "the limit of time or memory" in caplog.text
    after = pid(stubborn)
    assert stubborn.check(spec.regex("a|b", "p")) > 0
    with pytest.raises(TooHard):
        stubborn.check(spec.regex(how, "another"))
    assert pid(stubborn) == after, "it is known by now, and not tried again"


def test_what_grows_beyond_bounds_is_refused_where_it_grows(stubborn: Trials) -> None:
    with pytest.raises(RequestError, match=r"p: this form takes more than"):
        stubborn.check(spec.regex(stubborn_trial.GROW, "p"))
    assert stubborn.check(spec.regex("a|b", "p")) > 0


def test_a_process_that_was_killed_from_outside_is_replaced(real: Trials, caplog: pytest.LogCaptureFixture) -> None:
    real.prepare()
    os.kill(pid(real), signal.SIGKILL)
    with pytest.raises(TooHard):
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
    assert process._process.wait(20) == 0


def test_a_vocabulary_arrives_as_it_is() -> None:
    sent = Assignment([b"", b"\xff\x00", "日".encode()], frozenset({0, 2}), [2, 0], 0.5, 1 << 30)
    assert Assignment.from_words(sent.words()) == sent


def deep(levels: int, opening: str, closing: str) -> str:
    return opening * levels + "a" + closing * levels


def chain(links: int, link: Any) -> dict[str, Any]:
    """Definitions of which each refers to the next, and the last to the first."""
    names = [f"d{number}" for number in range(links)]
    definitions = {
        name: link(f"#/$defs/{following}") for name, following in zip(names, [*names[1:], "d0"], strict=True)
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions}


BOMBS: dict[str, Any] = {
    "references in a circle": lambda: spec.json_schema(chain(1500, lambda name: {"$ref": name}), "p"),
    "objects in a circle": lambda: spec.json_schema(
        chain(500, lambda name: {"type": "object", "properties": {"a": {"$ref": name}}, "required": ["a"]}), "p"
    ),
    "all of a circle": lambda: spec.json_schema(
        chain(300, lambda name: {"allOf": [{"$ref": name}, {"type": "object"}]}), "p"
    ),
    "a definition that doubles": lambda: spec.json_schema(doubling(24), "p"),
    "a million choices": lambda: spec.json_schema({"enum": list(range(1_000_000))}, "p"),
    "as many choices as fit": lambda: spec.json_schema({"enum": [f"{number:x}" for number in range(9000)]}, "p"),
    "a billion times": lambda: spec.regex("(a|b){1,1000000000}", "p"),
    "a billion items": lambda: spec.json_schema({"type": "array", "minItems": 10**9}, "p"),
    "a long string at least": lambda: spec.json_schema({"type": "string", "minLength": 10**9}, "p"),
    "nested quantifiers": lambda: spec.regex("(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}", "p"),
    "stars of stars": lambda: spec.regex(deep(2000, "(", ")*"), "p"),
    "a backtracker's horror": lambda: spec.regex("(a+)+(a|a)*(a?){99}a{99}b", "p"),
    "an unclosed class": lambda: spec.regex("[a-", "p"),
    "a pattern in a schema that is none": lambda: spec.json_schema({"type": "string", "pattern": "(("}, "p"),
    "deep brackets": lambda: spec.regex(deep(30_000, "(", ")"), "p"),
    "deep rules": lambda: spec.grammar("start: " + deep(30_000, "(", ")").replace("a", '"a"'), "p"),
    "deep rules in the other notation": lambda: spec.grammar(
        "root ::= " + deep(30_000, "(", ")").replace("a", '"a"'), "p"
    ),
    "rules that call themselves": lambda: spec.grammar("start: start start | start", "p"),
    "rules of each other": lambda: spec.grammar(
        "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(999)) + '\nr999: "a"', "p"
    ),
    "a number of many digits": lambda: spec.json_schema({"type": "number", "multipleOf": 1e-9, "maximum": 1e300}, "p"),
    "unions of unions": lambda: spec.json_schema(
        {"anyOf": [{"anyOf": [{"const": f"{one}{two}"} for one in range(40)]} for two in range(60)]}, "p"
    ),
}


def doubling(levels: int) -> dict[str, Any]:
    """Each definition has the next twice: as a tree it has 2 ** levels leaves."""
    definitions: dict[str, Any] = {f"d{levels}": {"type": "integer"}}
    for number in range(levels):
        both = {"$ref": f"#/$defs/d{number + 1}"}
        definitions[f"d{number}"] = {"type": "array", "prefixItems": [both, both], "minItems": 2, "maxItems": 2}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


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


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_different_forms_take_no_more_memory_than_may_be_kept(real: Trials, count: int) -> None:
    made = Forms(VOCABULARY, [END])
    for number in range(count):
        real.check(small(number))
        made.compile(small(number))
        assert made.kept_bytes <= MAX_BYTES
    assert made.kept_bytes > 100 * count or made.kept_bytes > MAX_BYTES // 2
