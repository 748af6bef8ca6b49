"""What holds for every constraint that is asked about guesses."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress

from octavo_engine.request import Constraint
from octavo_engine.structured.matching import FormLost
from small_vocabulary import VOCABULARY, ids_in


def assert_guesses_change_nothing(start: Callable[[], Constraint], answer: Sequence[int], seed: int) -> None:
    """A branch tells of guesses what would be told if they were said, and who says none of them is told what it was."""
    asked, chance = start(), random.Random(seed)

    def told(tokens: Sequence[int]) -> bytes:
        return start().allowed(tokens, 0)

    for place in range(len(answer) + 1):
        said = list(answer[:place])
        if chance.random() < 0.5:  # else it learns of them by being asked what is forced
            assert asked.allowed(said, 0) == told(said)
        known = list(said)
        for token in asked.forced(said, 0):
            assert token in ids_in(told(known))
            known.append(token)
        assert asked.allowed(said, 0) == told(said)
        right, wrong = asked.branch(), asked.branch()
        for more in range(1, min(4, len(answer) - place) + 1):
            assert right.allowed(answer[: place + more], 0) == told(answer[: place + more])
        with suppress(FormLost):  # none that the form allows, perhaps
            wrong.allowed([*said, chance.randrange(VOCABULARY.vocab_size)], 0)
        assert asked.allowed(said, 0) == told(said)
