"""A vocabulary of all bytes and a few longer tokens, and a model without taste that says anything it is allowed to.

What it prefers is what ends something, so that answers come to an end by themselves.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from octavo_engine.structured import Grammar

END, OTHER_END, BEGIN = 0, 1, 2
THINK = ("<think>", "</think>")
SPECIAL = [b"<end>", b"<other>", b"<begin>"]
WORDS = [
    *(b'{"', b'":', b'",', b'"}', b'": "', b'", "', b"}}", b"]}", b"[]", b"{}", b"\n  "),
    *(b"true", b"false", b"null", b"name", b"value", b"yes", b"no", b"the", b" fox", "日本".encode(), "é".encode()),
    *(b"10", b"20", b"-1", b"0.5", b"2026", b"<think>", b"</think>"),
]
CLOSING = {b'"': 30, b"}": 30, b"]": 30, b'"}': 5, b"]}": 5, b"}}": 5}


class SmallVocabulary:
    """What a tokenizer is asked for. Bytes come after the control tokens, so that no id is its byte."""

    def __init__(self) -> None:
        self.tokens = [*SPECIAL, *(bytes([byte]) for byte in range(256)), *WORDS]
        self.vocab_size = len(self.tokens)
        self.special_ids = frozenset({END, OTHER_END, BEGIN})
        self._ids = {token: index for index, token in enumerate(self.tokens) if index not in self.special_ids}

    def token_bytes(self, index: int) -> bytes:
        return self.tokens[index]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        rest, ids = text.encode(), []
        while rest:
            size = next(size for size in range(8, 0, -1) if rest[:size] in self._ids)
            ids.append(self._ids[rest[:size]])
            rest = rest[size:]
        return ids

    def text(self, ids: Iterable[int]) -> str:
        return b"".join(self.tokens[index] for index in ids if index not in self.special_ids).decode()


VOCABULARY = SmallVocabulary()
WEIGHTS = [60 if index == END else CLOSING.get(token, 1) for index, token in enumerate(VOCABULARY.tokens)]


def ids_in(bits: bytes) -> list[int]:
    """The tokens of a mask."""
    return [index for index in range(8 * len(bits)) if bits[index // 8] >> index % 8 & 1]


def answer_to(grammar: Grammar, seed: int, limit: int = 600) -> tuple[list[int], bool]:
    """Tokens of a random answer without its end, and whether it came to one within the limit."""
    constraint, chance, tokens = grammar.start(), random.Random(seed), []
    while len(tokens) < limit:
        allowed = ids_in(constraint.allowed(tokens, 0))
        (token,) = chance.choices(allowed, [WEIGHTS[index] for index in allowed])
        if token in (END, OTHER_END):
            return tokens, True
        tokens.append(token)
    return tokens, False
