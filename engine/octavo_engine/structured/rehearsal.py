"""Goes the first tokens of answers along a form, to know before there is one whether it gets through them.

That a form can be read says nothing of what following it takes: expressions within expressions unfold as the text goes
on, and the limits of one token may be met at the second. Then no answer would come of it, only an error, late.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from octavo_engine.errors import FormTooComplex
from octavo_engine.request import Constraint
from octavo_engine.structured.grammar import Grammar

WALKS = 4  # where one gets through, so may an answer: only a form that none gets along is refused
TOKENS = 16  # of each; for most forms a millisecond or two


def rehearse(grammar: Grammar) -> None:
    """Raise FormTooComplex if all walks have met a limit, or FormLost where the grammar engine breaks down.

    The same form meets the same fate each time.
    """
    chance = random.Random(grammar.spec.text)  # noqa: S311 (nothing secret is drawn)
    for _ in range(WALKS - 1):
        try:
            return _walk(grammar.start(), grammar.end_ids, chance)
        except FormTooComplex:
            pass
    return _walk(grammar.start(), grammar.end_ids, chance)


def _walk(constraint: Constraint, end_ids: Sequence[int], chance: random.Random) -> None:
    """Any allowed token after any other, until it may end. Raises what the constraint does."""
    tokens: list[int] = []
    while len(tokens) < TOKENS and (token := _any_of(constraint.allowed(tokens, 0), chance)) not in end_ids:
        tokens.append(token)


def _any_of(bits: bytes, chance: random.Random) -> int:
    """A token of a mask, which allows one at least."""
    place = chance.randrange(len(bits))
    turned = (bits[place:] + bits[:place]).lstrip(b"\0")
    byte = (place + len(bits) - len(turned)) % len(bits)
    return 8 * byte + chance.choice([bit for bit in range(8) if turned[0] >> bit & 1])
