"""Words for prompts of a given length: such that each is one token, if somebody can be asked who counts them.

A prompt made of words that are one token each, at its beginning and after a space, has as many tokens as words, and
what a chat template adds is measured once. So prompts need not be tokenized one by one, and are exact nevertheless.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Count = Callable[[Json], Awaitable[int | None]]  # the tokens of a body of POST /tokenize; None: nobody knows

WORDS = tuple(
    """the of and to in is that it was for on are as with his they at be this from have or by one had not but what all
    were when we there can an your which their said if do will each about how up out them then she many some so these
    would other into has more her two like him see time could no make than first been its who now people my made over
    did down only way find use may water long little very after words called just where most know get through back much
    before go good new write our used me man too any day same right look think also around another came come work three
    word must because does part even place well such here take why things help put years different away again off went
    old number great tell men say small every found still between name should home big give air line set own under read
    last never us left end along while might next sound below saw something thought both few those always looked show
    large often together asked house world going want school until form food keep children feet land side
    without""".split()  # noqa: SIM905 (a list of two hundred lines says no more)
)
REPEATED = 8  # a word is looked at as often as that in one text
AT_ONCE = 16  # questions: a server may be far away
ENOUGH = 96  # different words: prompts differ from their second token on


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`words`, one token each if `exact`; `markup` is what a whole prompt has beside them, by the roles of its
    messages: () is a plain text."""

    words: tuple[str, ...]
    exact: bool
    markup: dict[tuple[str, ...], int]

    def text(self, tokens: int, rng: random.Random) -> str:
        """Random words, as many as `tokens`."""
        return " ".join(rng.choices(self.words, k=max(1, tokens)))

    def beside(self, roles: tuple[str, ...]) -> int:
        """Tokens that are not words: special ones, and those of the chat template."""
        return self.markup.get(roles, 0)


async def learn(count: Count, roles: tuple[tuple[str, ...], ...]) -> Vocabulary:
    """Find words of one token, and what is beside them for each of `roles`; without an answer, take all words."""
    chosen = await _of_one_token(count)
    if len(chosen) < REPEATED:  # nobody counts, or it is a tokenizer of bytes or of another script
        return Vocabulary(WORDS, False, {})
    markup: dict[tuple[str, ...], int] = {}
    for shape in roles:
        whole = await count(_sample(shape, chosen[0]))
        if whole is None:
            return Vocabulary(tuple(chosen), False, {})
        markup[shape] = max(0, whole - max(1, len(shape)))
    return Vocabulary(tuple(chosen), True, markup)


async def _of_one_token(count: Count) -> list[str]:
    """As many as are wanted; none where nobody answers."""
    chosen: list[str] = []
    for start in range(0, len(WORDS), AT_ONCE):
        words = WORDS[start : start + AT_ONCE]
        texts = (" ".join([word] * REPEATED) for word in words)
        counted = await asyncio.gather(*(count({"prompt": text, "add_special_tokens": False}) for text in texts))
        chosen += [word for word, tokens in zip(words, counted, strict=True) if tokens == REPEATED]
        if len(chosen) >= ENOUGH or None in counted:
            break
    return chosen[:ENOUGH]


def _sample(roles: tuple[str, ...], word: str) -> Json:
    """A prompt of one word in each of its messages."""
    if not roles:
        return {"prompt": word, "add_special_tokens": True}
    return {"messages": [{"role": role, "content": word} for role in roles], "add_generation_prompt": True}
