"""Finds a number that does not agree with its words: `1 requests wait`, `12 request waits`."""

from __future__ import annotations

import re

_NUMBER_OF = r"(?<![\d.,/:-]){number} (?:(?:prompt|cached|ready|KV|more) )*"
_NOUNS = "request|token|block|step|line|sequence|seat|replica"
_MANY = re.compile(_NUMBER_OF.format(number=r"(?:[02-9]|\d[\d,]*\d)") + rf"(?:{_NOUNS})\b")
_ONE = re.compile(_NUMBER_OF.format(number="1") + r"(\w+)(?: (\w+))?")
_OF_MANY = {"are", "were", "wait", "start", "serve", "report", "have"}
_OF_ONE = {"was", "is", "waits", "starts", "serves", "reports", "has", "ms", "s"}


def disagreements(text: str) -> list[str]:
    """What a reader stumbles over, each with its words."""
    return [match[0] for match in _MANY.finditer(text)] + [
        match[0] for match in _ONE.finditer(text) if _speaks_of_many(match[1], match[2] or "")
    ]


def _speaks_of_many(word: str, then: str) -> bool:
    """What follows a 1: a noun in the plural, or a verb of one, at once or after the noun. `1 of` tells nothing yet."""
    if word == "of":
        return False
    return word in _OF_MANY or then in _OF_MANY or (word.endswith("s") and word not in _OF_ONE)
