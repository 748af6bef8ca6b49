"""A model's vocabulary as the grammar engine takes it: the bytes of each token, and how a given text is cut.

The bytes are those that the detokenizer writes, whatever file the tokenizer came from, so that what a grammar has
allowed is what the client reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from llguidance import LLTokenizer, TokenizerWrapper

from octavo_engine.errors import OctavoError

ANCHOR = "\x02"  # stands before a text that is cut: some tokenizers put a space before what begins with nothing


class Tokens(Protocol):
    """What is asked of a tokenizer."""

    vocab_size: int
    special_ids: frozenset[int]

    def token_bytes(self, index: int) -> bytes:
        """The bytes that one token stands for."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""


class Vocabulary(TokenizerWrapper):
    """The tokens of one model. Control tokens are no text, and those of `end_ids` end an answer."""

    def __init__(self, tokenizer: Tokens, end_ids: Sequence[int]) -> None:
        # Not super().__init__: it tries the tokenizer with texts of its own. These names are what the engine reads.
        self._tokenizer = tokenizer
        self._silent = tokenizer.special_ids | frozenset(end_ids)
        self.eos_token_id = end_ids[0]
        self.bos_token_id = None
        self.tokens = [tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(index for index in self._silent if index < tokenizer.vocab_size)
        self.is_tokenizer_wrapper = True

    def __call__(self, text: bytes | str) -> list[int]:
        """The tokens of a text that a grammar leaves no choice about, as the model would write it."""
        wanted = text.encode() if isinstance(text, str) else bytes(text)
        try:
            ids = self._cut(wanted.decode())
        except (UnicodeDecodeError, OctavoError):
            return self._longest_first(wanted)
        spelled = b"".join(self.tokens[index] for index in ids)
        return ids if spelled == wanted and self._silent.isdisjoint(ids) else self._longest_first(wanted)

    def _cut(self, text: str) -> list[int]:
        """As the tokenizer cuts it in the middle of a text."""
        ids = self._tokenizer.encode(ANCHOR + text, add_special_tokens=False)
        return ids[len(self._anchor_ids) :]

    def _longest_first(self, text: bytes) -> list[int]:
        """Cut by taking the longest token each time. It may not be how the model would, but spells the same."""
        ids: list[int] = []
        place = 0
        while place < len(text):
            sizes = range(min(self._longest, len(text) - place), 0, -1)
            found = next((size for size in sizes if text[place : place + size] in self._ids), None)
            if found is None:  # a byte that no token has: no answer can go on here, whoever cuts it
                return ids
            ids.append(self._ids[text[place : place + found]])
            place += found
        return ids

    @cached_property
    def _anchor_ids(self) -> list[int]:
        return self._tokenizer.encode(ANCHOR, add_special_tokens=False)

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """Of tokens that are spelled alike, the first."""
        ids: dict[bytes, int] = {}
        for index, spelled in enumerate(self.tokens):
            if spelled and index not in self._silent:
                ids.setdefault(spelled, index)
        return ids

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)


def grammar_tokenizer(tokenizer: Tokens, end_ids: Sequence[int]) -> LLTokenizer:
    """The engine's form of a vocabulary: a tree of all tokens, made in tenths of a second.

    end_ids: the first is the one that the engine knows; it must be a token of the vocabulary.
    """
    return LLTokenizer(Vocabulary(tokenizer, end_ids))
