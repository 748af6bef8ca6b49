"""Free answers in which a form begins where an opening comes: small vocabulary, all pieces, whenever it is asked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guessed_forms import assert_guesses_change_nothing
from octavo_engine.server.messages import Tool
from octavo_engine.server.strict_calls import strict_calls
from octavo_engine.structured import Forms, Grammar, Mark, Openings, Start, Thought, spec, thought_between
from octavo_engine.structured.opening import Opening
from small_vocabulary import BEGIN, END, OTHER_END, THINK, VOCABULARY, SmallVocabulary, ids_in

MARK = Mark(b"<<a")
START, FOLLOWING = (Start(b"{", b"<t>", space) for space in (b" \n", b" \n;"))
PIECES = st.lists(st.text("<at>{; \n", max_size=4).map(str.encode), max_size=8)
FORMS = Forms(VOCABULARY, [END, OTHER_END])
ENDS = {END, OTHER_END}
ALL = set(range(VOCABULARY.vocab_size))
OBJECT = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}


def form(opening: Opening, following: Opening | None, *, special: bool = False) -> Grammar:
    openings = Openings(opening, following, special)
    return FORMS.compile(spec.parts("start: object", {"object": OBJECT}, openings, "p"))


def ids(text: str) -> list[int]:
    return VOCABULARY.encode(text, add_special_tokens=False)


def allowed(grammar: Grammar, tokens: list[int], thought: Thought | None = None) -> set[int]:
    """Of the vocabulary; that all beyond it are there where the answer is free is tested with logits."""
    return set(ids_in(grammar.start(thought).allowed([7, *tokens], 1))) & ALL


def opened(opening: Opening, pieces: list[bytes]) -> bytes | None:
    """All text from where the form begins on."""
    state = b""
    for number, piece in enumerate(pieces):
        assert state in opening.states
        state, rest = opening.push(state, piece)
        if rest is not None:
            assert any(last in piece for last in opening.lasts)
            return rest + b"".join(pieces[number + 1 :])
    return None


@given(PIECES)
def test_a_mark_is_found_however_the_text_comes(pieces: list[bytes]) -> None:
    _, found, rest = b"".join(pieces).partition(MARK.mark)
    assert opened(MARK, pieces) == (rest if found else None)


@given(PIECES, st.sampled_from([START, FOLLOWING]))
def test_a_start_is_found_however_the_text_comes(pieces: list[bytes], start: Start) -> None:
    text = b"".join(pieces).lstrip(start.space)
    expected = text if text.startswith(b"{") else text[3:] if text.startswith(b"<t>") else None
    assert opened(start, pieces) == expected


@settings(max_examples=40, deadline=None)
@given(PIECES, st.booleans(), st.integers(0, 99))
def test_guesses_are_told_of_as_if_they_were_said(pieces: list[bytes], again: bool, seed: int) -> None:
    call = ids('<<a{"n":2}')
    grammar = form(MARK, MARK if again else None)
    before = [token for piece in pieces for token in ids(piece.decode()) if VOCABULARY.tokens[token] != b"<"]
    assert_guesses_change_nothing(grammar.start, [*before, *call, *(call if again else [])], seed)


def test_only_a_call_that_has_begun_is_forced() -> None:
    asked = form(MARK, MARK).start()
    assert asked.forced(ids("so <<"), 0) == ()
    assert VOCABULARY.text(asked.forced(ids('so <<a{"'), 0)) == "n"


@settings(max_examples=40, deadline=None)
@given(PIECES, st.sampled_from([MARK, START]), st.booleans())
def test_what_is_no_form_is_free(pieces: list[bytes], opening: Opening, again: bool) -> None:
    text = b"".join(pieces).decode()
    if opened(opening, [text.encode()]) is not None:
        return
    after = allowed(form(opening, opening if again else None), ids(text))
    opens = {token for token in ALL if opened(opening, [(text.encode() + VOCABULARY.tokens[token])]) is not None}
    assert after | opens == ALL


def test_bytes_that_are_no_text_and_control_tokens_are_free_as_well() -> None:
    grammar = form(MARK, MARK)
    broken = [VOCABULARY.tokens.index(bytes([byte])) for byte in (0xFF, 0x80, 0xE6)]
    assert allowed(grammar, [*broken, BEGIN, *broken]) == ALL
    assert (
        allowed(grammar, [*broken, *ids("<<a")])
        == allowed(grammar, ids("<<a"))
        == set(ids("{")) | {token for token in ALL if VOCABULARY.tokens[token] in (b'{"',)}
    )


def test_a_form_is_held_to_and_free_text_comes_after_it() -> None:
    many, one = form(MARK, MARK), form(MARK, None)
    assert not allowed(many, ids('x<<a{"n')) & ENDS
    assert allowed(many, ids('x<<a{"n":')) == {*ids("1"), *ids("2"), *ids(" "), *ids("\n"), *ids("\t"), *ids("\r")} | {
        token for token in ALL if VOCABULARY.tokens[token] == b"\n  "
    }
    assert allowed(many, ids('x<<a{"n":1}')) == ALL
    assert allowed(one, ids('x<<a{"n":1}')) == ENDS
    assert allowed(many, ids('x<<a{"n":1}y<<')) == ALL
    assert allowed(many, ids('x<<a{"n":1}y<<a')) == allowed(many, ids("<<a"))


@pytest.mark.parametrize("start", ["{", " \n{", "<t>{", " <t>"])
def test_a_start_has_the_form(start: str) -> None:
    grammar = form(START, FOLLOWING)
    assert not allowed(grammar, ids(start)) & ENDS
    assert allowed(grammar, ids("x" + start)) == ALL
    assert not allowed(grammar, ids('{"n":1}; ' + start)) & ENDS
    assert allowed(grammar, ids('{"n":1}; x' + start)) == ALL


def test_a_token_that_opens_and_goes_on_as_no_form_does_cannot_come() -> None:
    grammar = form(START, FOLLOWING)
    assert {VOCABULARY.tokens[token] for token in ALL - allowed(grammar, [])} == {b"{}"}
    assert allowed(grammar, ids(" ")) == allowed(grammar, [])


def test_control_tokens_are_marks_where_the_text_shows_them() -> None:
    mark = Mark(VOCABULARY.tokens[BEGIN])
    assert allowed(form(mark, mark, special=True), [50, BEGIN]) == allowed(form(MARK, MARK), ids("<<a"))
    assert allowed(form(mark, mark), [50, BEGIN]) == ALL


class Controls(SmallVocabulary):
    """With the marks of Mistral's calls as control tokens, which its texts are cut into."""

    MARKS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def __init__(self) -> None:
        super().__init__()
        self.tokens += map(str.encode, self.MARKS)
        self.vocab_size = len(self.tokens)
        self.special_ids |= {self.tokens.index(mark.encode()) for mark in self.MARKS}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if text in self.MARKS:
            return [self.tokens.index(text.encode())]
        return super().encode(text, add_special_tokens=add_special_tokens)


def test_marks_within_calls_are_the_control_tokens_that_a_model_has_for_them() -> None:
    vocabulary = Controls()
    forms = Forms(vocabulary, [END])
    tools = [Tool.model_validate({"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}})]
    grammar = forms.compile(strict_calls("mistral", tools, vocabulary, one=True))
    begin, args, call_id = (vocabulary.encode(mark, add_special_tokens=False) for mark in Controls.MARKS)
    answer = [*ids("Well. "), *begin, *ids("f"), *call_id, *ids("a1"), *args, *ids("{}")]
    for at, token in enumerate(answer):
        assert token in ids_in(grammar.start().allowed(answer[:at], 0)), at
    assert ids_in(grammar.start().allowed(answer, 0)) == [END]
    after_name = ids_in(grammar.start().allowed([*begin, *ids("f")], 0))
    assert ids("[")[0] not in after_name
    assert {*args, *call_id, *ids("{")} <= set(after_name)
    assert ids("5")[0] not in ids_in(grammar.start().allowed([*begin, *ids("f"), *args], 0))
    spelled = grammar.start().allowed(ids("[TOOL_CALLS]"), 0)
    assert spelled == grammar.start().allowed(begin, 0)


def test_a_thought_is_free_and_may_end_the_answer() -> None:
    grammar, (opening, closing) = form(MARK, None), (VOCABULARY.tokens.index(mark.encode()) for mark in THINK)
    for begun, first in ((True, []), (False, [opening])):
        thought = thought_between(VOCABULARY, *THINK, begun=begun)
        assert allowed(grammar, [*first, *ids("<<a")], thought) == ALL
        assert allowed(grammar, [*first, *ids("<<a"), closing], thought) == ALL
        assert allowed(grammar, [*first, closing, *ids('<<a{"n":2}')], thought) == ENDS


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["x", "<<a", '{"n":1}', '{"n":', "2}"]), max_size=5), st.booleans(), st.data())
def test_it_is_a_function_of_the_answer_whenever_it_is_asked(
    texts: list[str], again: bool, data: st.DataObject
) -> None:
    grammar, answer = form(MARK, MARK if again else None), ids("".join(texts))
    steps = [(answer[:at], answer[at]) for at in range(len(answer))]
    sound = next((len(said) for said, token in steps if token not in allowed(grammar, said)), len(answer))
    asked = grammar.start()
    for place in sorted(data.draw(st.lists(st.integers(0, sound), max_size=6))):
        assert set(ids_in(asked.allowed(answer[:place], 0))) & ALL == allowed(grammar, answer[:place])
