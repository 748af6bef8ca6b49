"""Patterns by which a checkpoint's config names modules. They come from strangers: matching them must end soon.

Python's expressions backtrack: `(a+)+$` takes for ever on a short name. Without repeated groups, the ways to match can
be counted before: where so many repetitions begin and end, times the alternatives.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from octavo_engine.errors import ModelUnsupported

NAME_LENGTH = 48  # `model.layers.100.self_attn.q_proj` has 33
MAX_WAYS = 1_000_000
REPEAT = re.compile(r"(?<!\\)[*+{]")
OPTIONAL = re.compile(r"(?<![\\(])\?")
REPEATED_GROUP = re.compile(r"\)[*+{]")
VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")  # there a space or a comment may stand between a group and its repetition
BACKREFERENCE = re.compile(r"\\[1-9]|\(\?P=|\(\?\(")


@dataclass(frozen=True, slots=True)
class NamePattern:
    """Modules by name."""

    expression: str  # holds for the beginning of a name, as `re.match` has it

    def matches(self, name: str) -> bool:
        """True if it names that module."""
        return _compiled(self.expression).match(name) is not None


EVERYTHING = NamePattern("")


def like(expression: str) -> NamePattern:
    """Names that begin as a regular expression says; raises ModelUnsupported for one that could take too long."""
    if REPEATED_GROUP.search(expression) or BACKREFERENCE.search(expression):
        raise _refusal(expression, "repeats a group, or refers to one")
    if VERBOSE.search(expression):
        raise _refusal(expression, "is a verbose one, whose repetitions are not seen")
    if ways(expression) > MAX_WAYS:
        raise _refusal(expression, "can match in too many ways")
    try:
        _compiled(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise _refusal(expression, f"is no regular expression ({error})") from None
    return NamePattern(expression)


def exactly(name: str) -> NamePattern:
    """That module."""
    return NamePattern(rf"{re.escape(name)}\Z")


def within(part: str) -> NamePattern:
    """Modules whose name has `part`, as whole words between dots: `layers.1` is not in `layers.10`."""
    return NamePattern(rf"(?:.*\.)?{re.escape(part)}(?:\.|\Z)")


def ways(expression: str) -> int:
    """At most so many ways to match a name are tried, of an expression that repeats no group."""
    repeats = len(REPEAT.findall(expression))
    alternatives: int = math.prod(1 + part.count("|") for part in expression.split(")"))
    options: int = 1 << len(OPTIONAL.findall(expression))
    return math.comb(NAME_LENGTH + repeats, repeats) * alternatives * options


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


def _refusal(expression: str, why: str) -> ModelUnsupported:
    return ModelUnsupported(f"quantization_config: the pattern {expression[:80]!r} {why}")
