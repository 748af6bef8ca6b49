"""What is asked: conversations of one or more turns, whose prompts may begin alike. Pure, and the same for a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Literal

from octavo_engine.bench.client import Question
from octavo_engine.bench.lengths import Lengths
from octavo_engine.bench.traces import Entry
from octavo_engine.bench.vocabulary import Vocabulary

Json = dict[str, Any]
Endpoint = Literal["chat", "completions"]
PATHS: Mapping[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user says. `prompt_tokens`: of the whole prompt, where that is known before: for synthetic first turns."""

    messages: tuple[Mapping[str, str], ...]
    prompt_tokens: int | None
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How conversations are made: lengths in tokens. The shared prefix comes before the prompt's own tokens."""

    prompt: Lengths
    output: Lengths
    shared_prefix: int = 0
    prefixes: int = 1
    turns: int = 1

    def roles(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Of the first prompt's messages."""
        if endpoint == "completions":
            return ()
        return ("system", "user") if self.shared_prefix else ("user",)


def synthetic(shape: Shape, vocabulary: Vocabulary, endpoint: Endpoint, rng: random.Random) -> Iterator[list[Turn]]:
    """Conversations of random words, without end."""
    prefixes = [vocabulary.text(shape.shared_prefix, rng) for _ in range(shape.prefixes if shape.shared_prefix else 0)]
    beside = vocabulary.beside(shape.roles(endpoint))
    while True:
        turns = []
        for number in range(shape.turns):
            length = shape.prompt.draw(rng)
            own = max(1, length - (beside if number == 0 else 0))
            opening = [rng.choice(prefixes)] if prefixes and number == 0 else []
            messages = [{"role": "system", "content": text} for text in opening]
            messages.append({"role": "user", "content": vocabulary.text(own, rng)})
            wanted = max(length, beside + 1) + shape.shared_prefix if number == 0 else None
            turns.append(Turn(tuple(messages), wanted, shape.output.draw(rng)))
        yield turns


def of_trace(
    entries: Sequence[Entry], vocabulary: Vocabulary, endpoint: Endpoint, rng: random.Random, *, once: bool
) -> Iterator[list[Turn]]:
    """The trace's conversations, in order; from the beginning again unless `once`."""
    beside = vocabulary.beside(() if endpoint == "completions" else ("user",))
    for entry in entries if once else cycle(entries):
        messages = entry.messages
        if entry.text is not None:
            messages = ({"role": "user", "content": entry.text},)
        known = bool(messages)
        if not known:
            own = vocabulary.text(max(1, entry.prompt_tokens - beside), rng)
            messages = ({"role": "user", "content": own},)
        yield [Turn(messages, None if known else max(entry.prompt_tokens, beside + 1), entry.output_tokens)]


@dataclass(slots=True)
class Dialogue:
    """A conversation as it goes on: what was said, by both."""

    turns: Sequence[Turn]
    said: list[Mapping[str, str]] = field(default_factory=list)

    def questions(self, endpoint: Endpoint, common: Json) -> Iterator[Question]:
        """One for each turn; `heard` is to be called before the next is taken."""
        for number, turn in enumerate(self.turns):
            self.said += turn.messages
            limit = {"max_tokens": turn.output_tokens}
            yield Question(
                path=PATHS[endpoint],
                body=common | limit | self._prompt(endpoint),
                turn=number,
                prompt_tokens=turn.prompt_tokens,
                output_tokens=turn.output_tokens,
                keep_text=number + 1 < len(self.turns),
            )

    def heard(self, text: str) -> None:
        """The answer, which belongs to the next prompt."""
        self.said.append({"role": "assistant", "content": text})

    def _prompt(self, endpoint: Endpoint) -> Json:
        if endpoint == "chat":
            return {"messages": list(self.said)}
        return {"prompt": " ".join(message["content"] for message in self.said)}
