"""Models that think aloud: a thought is free, and what is said after it has the form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guessed_forms import assert_guesses_change_nothing
from octavo_engine.structured import Forms, Thought, spec, thought_between
from octavo_engine.structured.thought import everything_but
from small_vocabulary import END, OTHER_END, THINK, VOCABULARY, SmallVocabulary, ids_in

FORMS = Forms(VOCABULARY, [END, OTHER_END])
GRAMMAR = FORMS.compile(spec.choice(["yes", "no"], "p"))
OPENING, CLOSING = (VOCABULARY.tokens.index(mark.encode()) for mark in THINK)
PLAIN = GRAMMAR.start().allowed([], 0)
FREE = set(range(VOCABULARY.vocab_size)) - {END, OTHER_END}
YES = VOCABULARY.encode("yes", add_special_tokens=False)


def thought(*, begun: bool) -> Thought:
    made = thought_between(VOCABULARY, *THINK, begun=begun)
    assert made == Thought(OPENING, CLOSING, begun)
    return made


def allowed(tokens: list[int], *, begun: bool) -> set[int]:
    return set(ids_in(GRAMMAR.start(thought(begun=begun)).allowed([9, 9, *tokens], 2)))


def test_a_thought_that_the_prompt_began_is_free_until_it_ends() -> None:
    assert allowed([], begun=True) == FREE
    assert allowed([50, OPENING, 60], begun=True) == FREE
    assert allowed([50, CLOSING], begun=True) == set(ids_in(PLAIN))
    assert allowed([CLOSING, *YES], begun=True) == {END, OTHER_END}


def test_a_thought_that_the_model_may_begin_is_one_if_it_does() -> None:
    assert allowed([], begun=False) == {*ids_in(PLAIN), OPENING}
    assert allowed([OPENING], begun=False) == FREE
    assert allowed([OPENING, 40, CLOSING], begun=False) == set(ids_in(PLAIN))
    assert allowed(YES[:1], begun=False) == set(ids_in(GRAMMAR.start().allowed(YES[:1], 0)))


def test_marks_in_what_is_said_are_text() -> None:
    quoted = FORMS.compile(spec.json_object("p")).start(thought(begun=False))
    tokens = VOCABULARY.encode('{"a": "<think>', add_special_tokens=False)
    assert END not in ids_in(quoted.allowed(tokens, 0))
    assert END in ids_in(quoted.allowed([*tokens, *VOCABULARY.encode('</think>"}', add_special_tokens=False)], 0))


@settings(max_examples=40, deadline=None)
@given(st.booleans(), st.lists(st.integers(3, 90), max_size=6), st.integers(0, 3), st.integers(0, 99))
def test_guesses_are_told_of_as_if_they_were_said(begun: bool, thoughts: list[int], said: int, seed: int) -> None:
    answer = [*([] if begun else [OPENING]), *thoughts, CLOSING, *YES[:said]]
    assert_guesses_change_nothing(lambda: GRAMMAR.start(thought(begun=begun)), answer, seed)


def test_only_what_comes_after_a_thought_is_forced() -> None:
    word = FORMS.compile(spec.choice(["yes"], "p"))
    assert word.start(thought(begun=False)).forced([9, 9], 2) == ()
    assert word.start(thought(begun=True)).forced([9, 9, 50], 2) == ()
    assert word.start(thought(begun=True)).forced([9, 9, 50, CLOSING], 2) == YES


@settings(max_examples=100, deadline=None)
@given(st.booleans(), st.lists(st.integers(3, 90), max_size=12), st.integers(0, 3), st.data())
def test_it_is_a_function_of_the_answer_whenever_it_is_asked(
    begun: bool, thoughts: list[int], said: int, data: st.DataObject
) -> None:
    answer = [*([] if begun else [OPENING]), *thoughts, CLOSING, *YES[:said]]
    asked = GRAMMAR.start(thought(begun=begun))
    for place in sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=8))):
        assert set(ids_in(asked.allowed(answer[:place], 0))) == allowed(answer[:place], begun=begun)


class Unmarked(SmallVocabulary):
    """Has no token for the marks."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [index for char in text for index in super(Unmarked, self).encode(char, add_special_tokens=False)]


def test_where_a_mark_is_several_tokens_there_is_no_thought() -> None:
    assert thought_between(Unmarked(), *THINK, begun=True) is None


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 17])
def test_everything_but_some(size: int) -> None:
    assert ids_in(everything_but(size, [0, 8, 99])) == [index for index in range(size) if index not in (0, 8)]
