"""The incremental text equals the plain text, for any tokens and any stop strings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo_engine.tokenizer import Detokenizer, Tokenizer, load_tokenizer

PIECES = [
    "日本語",
    "👩‍👩‍👧‍👦",
    "👍🏽",
    "e\u0301",
    "END",
    "EN",
    "D",
    " the",
    "\n\n",
    "<|im_end|>",
    "\ufffd",
    "ab",
    "abc",
    "aab",
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)
stops = st.lists(st.sampled_from(["END", "\n\n", "本", "👍", "abc", "ab", "bc", "aab", "D the"]), max_size=4).map(tuple)


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


def cut(text: str, stop: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """The definition: the text ends where the first stop string is complete."""
    for end in range(len(text) + 1):
        matched = [word for word in stop if text[:end].endswith(word)]
        if matched:
            word = max(matched, key=len)
            return text[: end if include else end - len(word)], word
    return text, None


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    """What a server sends: pushes until a stop string, and the rest when there was none."""
    sent = []
    for index in ids:
        sent.append(detokenizer.push(index))
        if detokenizer.stopped is not None:
            return sent
    return [*sent, detokenizer.finish()]


@given(text=texts, stop=stops, include=st.booleans(), skip=st.booleans())
@example(text="a" * 5 + "aab", stop=("aab",), include=False, skip=True)
def test_joined_pieces_equal_the_plain_text(
    tokenizer: Tokenizer, text: str, stop: tuple[str, ...], include: bool, skip: bool
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip, stop=stop, include_stop=include)
    sent = "".join(stream(detokenizer, ids))
    assert (sent, detokenizer.stopped) == cut(tokenizer.decode(ids, skip_special_tokens=skip), stop, include)


@given(text=texts, stop=stops, include=st.booleans())
def test_the_split_into_tokens_does_not_matter(
    tokenizer: Tokenizer, text: str, stop: tuple[str, ...], include: bool
) -> None:
    """One token for each byte is the finest split there is."""
    byte_ids = {tokenizer.token_bytes(index): index for index in range(tokenizer.vocab_size)}
    single = [bytes([byte]) for byte in text.encode() if bytes([byte]) in byte_ids]
    detokenizer = Detokenizer(tokenizer, stop=stop, include_stop=include)
    sent = "".join(stream(detokenizer, [byte_ids[byte] for byte in single]))
    assert (sent, detokenizer.stopped) == cut(b"".join(single).decode("utf-8", "replace"), stop, include)


@given(ids=st.lists(st.integers(0, 49151), max_size=30), stop=stops)
def test_any_ids_even_broken_utf8(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...]) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=True, stop=stop)
    sent = "".join(stream(detokenizer, ids))
    assert sent == cut(tokenizer.decode(ids, skip_special_tokens=True), stop, include=False)[0]


def test_half_a_character_is_held_back_and_a_whole_one_is_sent_at_once(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("x👍🏽y", add_special_tokens=False)
    pieces = stream(Detokenizer(tokenizer), ids)
    assert "\ufffd" not in "".join(pieces)
    assert (pieces[0], pieces[-2]) == ("x", "y")


def test_only_what_may_become_a_stop_string_is_held_back(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, stop=("\n\nUser:",))

    def push(text: str) -> str:
        return "".join(map(detokenizer.push, tokenizer.encode(text, add_special_tokens=False)))

    assert push("Hello") == "Hello"
    assert push("\n") == ""
    assert push("Next") == "\nNext"
    assert (push("\n\nUse"), detokenizer.stopped) == ("", None)
    assert (push("r: more"), detokenizer.stopped) == ("", "\n\nUser:")
    assert detokenizer.push(5) == detokenizer.finish() == ""


def test_an_unfinished_character_at_the_end_is_replaced(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode("日", add_special_tokens=False)[:1]
    detokenizer = Detokenizer(tokenizer)
    assert (detokenizer.push(first[0]), detokenizer.finish()) == ("", tokenizer.decode(first, skip_special_tokens=True))
