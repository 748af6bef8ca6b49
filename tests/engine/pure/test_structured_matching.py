"""Which tokens a form allows: of each kind, at each place, to the end; and what happens to forms that cannot be."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits

from guessed_forms import assert_guesses_change_nothing
from octavo_engine.errors import FormTooComplex, RequestError
from octavo_engine.request import Constraint
from octavo_engine.structured import Forms, Grammar, spec
from octavo_engine.structured import grammar as grammars
from octavo_engine.structured.matching import FormLost
from octavo_engine.structured.vocabulary import Vocabulary
from patience import PATIENCE_SECONDS
from small_vocabulary import BEGIN, END, OTHER_END, VOCABULARY, SmallVocabulary, answer_to, ids_in

FORMS, FRESH = (Forms(VOCABULARY, [END, OTHER_END]) for _ in range(2))


def grammar(form: spec.Spec) -> Grammar:
    return FORMS.compile(form)


def allowed(form: spec.Spec, text: str) -> list[int]:
    """The tokens that may follow a text."""
    return ids_in(grammar(form).start().allowed(VOCABULARY.encode(text, add_special_tokens=False), 0))


def accepts(form: spec.Spec, text: str) -> bool:
    """Whether the text is a whole answer."""
    try:
        return END in allowed(form, text)
    except FormLost:
        return False


def schema(**keywords: Any) -> spec.Spec:
    return spec.json_schema(keywords, "p")


GBNF = """
root ::= "<" [a-z]+ ">" root? "</" [a-z]+ ">"
"""
LARK = """
start: "(" start ")" | "x"
"""


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (
            spec.json_object("p"),
            ["{}", '{"a": [1, {"b": null}]}', '{\n  "é": "\\n"}'],
            ["", "[]", "1", "{", "{} ", " {}"],
        ),
        (schema(type="integer", minimum=3), ["3", "40"], ["2", "-3", "3.5", '"3"', "03"]),
        (schema(type="array", items={"enum": ["a", 1]}, minItems=1), ['["a",1]', "[1]"], ["[]", '["b"]', "[1,]"]),
        (spec.regex(r"(ab|c)\d{2}", "p"), ["ab12", "c00"], ["ab1", "c000", "", "xc00"]),
        (spec.regex("ä+.", "p"), ["äß", "ää"], ["ä", "ä\n", "aß"]),
        (spec.regex(r"\d/\w\W", "p"), ["1/a/", "0/_ä"], ["٣/a ", "1/ä ", "1/ab"]),
        (spec.choice(["yes", "no", "not now"], "p"), ["yes", "no", "not now"], ["not", "y", "yesno", "NO"]),
        (
            spec.choice([".*", 'a"b', "(", "日本\n", "a|b", "-#&~ \\"], "p"),
            [".*", 'a"b', "(", "日本\n", "a|b", "-#&~ \\"],
            ["a", "b"],
        ),
        (spec.grammar(GBNF, "p"), ["<a></b>", "<a><b></b></a>"], ["<a>", "<></>", "<a></b"]),
        (spec.grammar(LARK, "p"), ["x", "((x))"], ["(x", "()", "xx"]),
    ],
)
def test_an_answer_is_a_whole_one_or_not(form: spec.Spec, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not accepts(form, text)] == []
    assert [text for text in bad if accepts(form, text)] == []


def test_a_complete_form_leaves_the_ends_alone() -> None:
    assert allowed(spec.choice(["yes"], "p"), "yes") == [END, OTHER_END]
    assert allowed(schema(type="object", additionalProperties=False), "{}") == [END, OTHER_END]


def test_where_more_may_come_the_end_is_one_of_many() -> None:
    found = allowed(spec.regex("[0-9]+", "p"), "12")
    assert {END, OTHER_END} < set(found)
    assert len(found) > 10
    assert not {END, OTHER_END} & set(allowed(spec.regex("[0-9]+", "p"), ""))


def test_control_tokens_are_never_text() -> None:
    inside = allowed(spec.json_object("p"), '{"a": "')
    assert len(inside) > 100
    assert not VOCABULARY.special_ids & set(inside)
    assert BEGIN not in allowed(spec.regex("(<begin>)+", "p"), "")
    assert accepts(spec.regex("(<begin>)+", "p"), "<begin>")  # written out, which is another thing


def test_tokens_may_reach_over_several_parts_of_a_form() -> None:
    form = schema(type="object", properties={"name": {"type": "null"}}, required=["name"], additionalProperties=False)
    assert VOCABULARY.encode('{"name": null}', add_special_tokens=False)[0] == VOCABULARY.tokens.index(b'{"')
    assert accepts(form, '{"name": null}')


def test_whitespace_in_json_is_bounded() -> None:
    form = spec.json_object("p")
    assert accepts(form, "{" + "\n" + " " * 40 + "}")
    assert not accepts(form, "{" + " " * 400 + "}")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8), st.integers(0, 2**32))
def test_every_choice_whatever_its_letters_is_said_as_it_is(choices: list[str], seed: int) -> None:
    tokens, ended = answer_to(grammar(spec.choice(choices, "p")), seed)
    assert ended
    assert VOCABULARY.text(tokens) in choices


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([r"[a-c]{1,3}(-\d+)?", "(x|yy|zzz)+", r"\w+@\w+\.(com|org)", "[^a]b?"]), st.integers(0, 2**32))
def test_answers_match_their_expression(expression: str, seed: int) -> None:
    tokens, ended = answer_to(grammar(spec.regex(expression, "p")), seed)
    if ended:
        assert re.fullmatch(expression, VOCABULARY.text(tokens), re.DOTALL)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_what_is_allowed_depends_on_the_answer_alone_however_often_it_is_asked(seed: int, data: st.DataObject) -> None:
    form = spec.json_object("p")
    tokens, _ = answer_to(grammar(form), seed, limit=40)
    asked = grammar(form).start()
    for place in sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6))):
        assert asked.allowed([7, 8, *tokens[:place]], 2) == grammar(form).start().allowed(tokens[:place], 0)


PEOPLE = {"type": "array", "items": {"properties": {"value": {"enum": ["the fox", 1]}}, "required": ["value"]}}
GUESSED = [
    spec.json_object("p"),
    schema(**PEOPLE),
    spec.choice(["yes", "the fox", "yet"], "p"),
    spec.grammar(GBNF, "p"),
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(GUESSED), st.integers(0, 2**32))
def test_guesses_are_told_of_as_if_they_were_said_and_are_not_learned(form: spec.Spec, seed: int) -> None:
    made = grammar(form)
    assert_guesses_change_nothing(made.start, answer_to(made, seed, limit=30)[0], seed)


def test_what_a_form_leaves_no_choice_about_is_known() -> None:
    form = schema(type="object", properties={"name": {"const": "no"}}, required=["name"], additionalProperties=False)
    said = VOCABULARY.encode('{"', add_special_tokens=False)
    forced = grammar(form).start().forced([7, *said], 1)
    assert VOCABULARY.text(forced) == "name"  # the quote after it may be part of a longer token
    assert grammar(form).start().forced([], 0) == []
    assert grammar(spec.choice(["yes", "no"], "p")).start().forced([], 0) == []


def test_nothing_is_guessed_of_an_answer_that_has_left_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of its limits is for what it says."""
    monkeypatch.setattr(grammars, "ANEW_SECONDS", PATIENCE_SECONDS)
    made = grammar(spec.regex(UNFOLDING + "|alone", "p"))
    asked, tokens = made.start(), VOCABULARY.encode("abcdefghijklmnopqrstuvwxyz", add_special_tokens=False)
    places = iter(range(1, len(tokens) + 1))
    assert next(place for place in places if meets_limit(asked.branch(), tokens[:place]))
    assert not made.worn.is_set(), "a guess wears out nothing"
    assert next(place for place in places if meets_limit(asked, tokens[:place]))
    assert made.worn.is_set()
    assert asked.forced(tokens, 0) == ()
    with pytest.raises(FormLost):
        asked.branch()


def meets_limit(asked: Constraint, tokens: list[int]) -> bool:
    try:
        asked.allowed(tokens, 0)
    except FormTooComplex:
        return True
    return False


def test_answers_of_one_grammar_do_not_know_each_other() -> None:
    shared = grammar(spec.choice(["yes", "no"], "p"))
    one, other = shared.start(), shared.start()
    y, n = (VOCABULARY.tokens.index(letter) for letter in (b"y", b"n"))
    before = other.allowed([], 0)
    one.allowed([y], 0)
    assert other.allowed([], 0) == before
    assert n in ids_in(other.allowed([], 0))


@pytest.mark.parametrize(
    "form",
    [
        schema(**{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        spec.grammar("start: start start | start", "p"),
    ],
)
def test_a_form_that_nothing_satisfies_is_refused_as_such(form: spec.Spec) -> None:
    with pytest.raises(RequestError, match=r"p: this form cannot be enforced: no text satisfies it; "):
        grammar(form)


def test_a_token_that_was_not_allowed_is_an_error_and_not_an_end() -> None:
    asked = grammar(spec.choice(["yes", "no"], "p")).start()
    with pytest.raises(FormLost):
        asked.allowed([VOCABULARY.tokens.index(b"{")], 0)
    with pytest.raises(FormLost):  # and stays one
        asked.allowed([VOCABULARY.tokens.index(b"{")], 0)


@pytest.mark.parametrize(
    ("form", "told"),
    [
        (schema(type="array", uniqueItems=True), "uniqueItems"),
        (schema(type="object", **{"if": {}, "then": {}}), "if"),
        (schema(type="object", dependentRequired={"a": ["b"]}), "dependentRequired"),
        (schema(type="array", contains={"type": "integer"}), "contains"),
        (schema(type="string", format="colour"), "colour"),
        (schema(**{"$ref": "#/$defs/none"}), "none"),
        (schema(**{"$ref": "http://example.invalid/schema.json"}), "example.invalid"),
        (schema(type="vegetable"), "vegetable"),
        (spec.regex("(", "p"), "regex"),
        (spec.regex(r"(a)\1", "p"), "back"),
        (spec.regex("(?=a)b", "p"), "look"),
        (spec.grammar("start: missing", "p"), "missing"),
        (spec.grammar("root ::= missing", "p"), "missing"),
        (spec.grammar("::= ::= (", "p"), ""),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_its_name_and_a_remedy(form: spec.Spec, told: str) -> None:
    with pytest.raises(RequestError) as caught:
        grammar(form)
    assert caught.value.param == "p"
    assert told.lower() in str(caught.value).lower()
    assert re.match(r"p: this form cannot be enforced: .*; (leave out|write)", str(caught.value))


@pytest.mark.parametrize(
    "form",
    [
        spec.regex("(a{1,1000}){1,1000000}", "p"),
        spec.regex("((a*)*)*b", "p"),
        spec.regex("(" * 200 + "a" + ")*" * 200, "p"),
        spec.regex("(a|aa|aaa|b|bb)+.*[ab]{20}c", "p"),
        schema(**{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        schema(enum=[f"value {number}" for number in range(4000)]),
        schema(anyOf=[{"properties": {f"p{i}": {"pattern": f"^{i}*x{{1,{i}}}$"}}} for i in range(1, 300)]),
    ],
)
def test_a_bomb_is_refused_or_harmless(form: spec.Spec) -> None:
    try:
        made = grammar(form)
    except RequestError:
        return
    asked, tokens = made.start(), []
    with suppress(FormTooComplex):  # and nothing else
        while len(tokens) < 30 and (token := ids_in(asked.allowed(tokens, 0))[-1]) not in (END, OTHER_END):
            tokens.append(token)


UNFOLDING = "((([a-z]{1,30}){1,30}){1,30}){1,30}"  # ever more ways lead to what has been said


def say(form: spec.Spec, text: str, field: str = "p") -> None:
    """Say a text token by token, as an answer comes about."""
    asked, tokens = grammar(form).start(param=field), VOCABULARY.encode(text, add_special_tokens=False)
    for said in range(len(tokens) + 1):
        asked.allowed(tokens[:said], 0)


def test_a_form_that_meets_a_limit_in_the_midst_of_an_answer_says_where_and_what_to_do() -> None:
    with pytest.raises(FormTooComplex) as met:
        say(spec.regex(UNFOLDING, "p"), "abcdefghijklmnopqrstuvwxyz", "the_field")
    assert (met.value.param, met.value.code) == ("the_field", "form_too_complex")
    told = str(met.value)
    assert re.match(r"the_field: this form is too complex after \d+ tokens of an answer: ", told)
    assert "too many expressions constructed; nest no repetitions in each other" in told


DOUBLING = "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(7)) + '\nr7: "a"'
REPEATING = "([a-z]{1,30}x){1,30}"


def test_an_answer_that_meets_a_limit_uses_up_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "ANEW_SECONDS", PATIENCE_SECONDS)  # a slow processor makes it no form that is slow
    form = spec.regex(UNFOLDING, "p")
    made = grammar(form)
    before, after = made.start(), None
    assert not made.worn.is_set()
    with pytest.raises(FormTooComplex):
        say(form, "abcdefghijklmnopqrstuvwxyz")
    assert made.worn.is_set()
    after = made.start()
    tokens = VOCABULARY.encode("abc", add_special_tokens=False)
    for asked in (before, after):
        for said in range(len(tokens) + 1):
            assert asked.allowed(tokens[:said], 0) == FRESH.compile(form).start().allowed(tokens[:said], 0)
    assert grammar(form) is not made, "who comes now gets one that is not worn"


def test_a_form_that_took_long_to_compile_is_not_compiled_again_within_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    form = spec.regex(UNFOLDING + "|slow", "p")
    with pytest.raises(FormTooComplex):
        say(form, "abcdefghijklmnopqrstuvwxyz")
    monkeypatch.setattr(grammars, "ANEW_SECONDS", 0.0)
    worn = FORMS.compile(form)
    with pytest.raises(FormTooComplex):
        say(form, "abcdefghijklmnopqrstuvwxyz")
    monkeypatch.setattr(grammars, "LLMatcher", None)
    with pytest.raises(FormTooComplex, match="at the first token"):
        worn.start().allowed([], 0)


@pytest.mark.parametrize(
    ("limit", "value", "form", "text"),
    [
        ("initial_lexer_fuel", 1, spec.regex(REPEATING, "p"), ""),
        ("max_grammar_size", 10, schema(type="object", properties={"a": {"type": "integer"}}), ""),
        ("step_lexer_fuel", 100, spec.regex(REPEATING, "p"), "abxcd"),
        ("max_lexer_states", 20, spec.regex(REPEATING, "p"), "abcdefghijklmnopqrstuvwxyz"),
        ("step_max_items", 20, spec.grammar(DOUBLING, "p"), "aa"),
        ("max_items_in_row", 4, spec.grammar(DOUBLING, "p"), "aa"),
    ],
)
def test_each_limit_of_the_grammar_engine_is_known_for_one(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, form: spec.Spec, text: str
) -> None:
    say(form, text)  # by itself it is harmless
    monkeypatch.setattr(grammars, "LIMITS", LLParserLimits(**{limit: value, "verbose_errors": False}))
    monkeypatch.setitem(globals(), "FORMS", Forms(VOCABULARY, [END, OTHER_END]))
    with pytest.raises(FormTooComplex):
        say(form, text)


def test_a_schema_of_many_pages_is_kept_to() -> None:
    properties = {f"field_{number}": {"type": "integer", "description": "x" * 100} for number in range(300)}
    form = schema(type="object", properties=properties, required=["field_299"], additionalProperties=False)
    assert accepts(form, '{"field_0":1,"field_299":2}')
    assert not accepts(form, '{"field_0":1}')


def test_a_forced_text_is_cut_as_the_tokenizer_cuts_it() -> None:
    vocabulary = Vocabulary(VOCABULARY, [END])
    assert vocabulary(b"true") == [VOCABULARY.tokens.index(b"true")]
    assert vocabulary(b"\xff\xfe") == [VOCABULARY.tokens.index(b"\xff"), VOCABULARY.tokens.index(b"\xfe")]


class Spacing(SmallVocabulary):
    """Puts a space before each text, and reads control tokens in it, as some tokenizers do."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        spaced = super().encode(" ", add_special_tokens=False)
        if "<end>" in text:
            before, _, after = text.partition("<end>")
            return [
                *spaced,
                *super().encode(before, add_special_tokens=False),
                END,
                *self.encode(after, add_special_tokens=False),
            ]
        return [*spaced, *super().encode(text, add_special_tokens=False)]


@pytest.mark.parametrize("text", ["true", "yes<end>no", "日本 fox", '{"name": "'])
def test_whatever_a_tokenizer_adds_a_forced_text_stays_what_it_is(text: str) -> None:
    ids = Vocabulary(Spacing(), [END])(text.encode())
    assert b"".join(VOCABULARY.tokens[index] for index in ids) == text.encode()
    assert END not in ids
    forms = Forms(Spacing(), [END])
    tokens, ended = answer_to(forms.compile(spec.choice([text], "p")), 1)
    assert ended
    assert VOCABULARY.text(tokens) == text


def test_a_model_without_an_end_cannot_have_a_form() -> None:
    for ends in ([], [VOCABULARY.vocab_size]):
        with pytest.raises(RequestError, match="no end token"):
            Forms(VOCABULARY, ends).compile(spec.json_object("p"))


def test_an_end_that_only_the_model_has_is_one_too() -> None:
    beyond = VOCABULARY.vocab_size + 90
    made = Forms(VOCABULARY, [beyond, END]).compile(spec.choice(["no"], "p"))
    tokens = VOCABULARY.encode("no", add_special_tokens=False)
    assert ids_in(made.start().allowed(tokens, 0)) == [END, beyond]


def test_properties_come_in_the_order_of_the_schema() -> None:
    names = ["zebra", "ant", "moth"]
    form = schema(type="object", properties={name: {"const": 1} for name in names}, required=names)
    tokens, ended = answer_to(grammar(form), 3)
    assert ended
    assert [name for name in json.loads(VOCABULARY.text(tokens)) if name in names] == names
