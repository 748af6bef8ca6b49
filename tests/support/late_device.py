"""A device that computes steps in the order of their launch and tells their tokens late: what is known is what it read.

It keeps a cache as a real one does, a token id for each slot, and each next token is a checksum of what a request's
block table leads to. A block that was given away too early, a token that went to the wrong row or a step that read what
was not written yet gives another answer than `answer` says.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo_engine.batch import Batch, Read, Slice
from octavo_engine.prompt_reading import HiddenSum, PromptLogprobs, PromptReading
from octavo_engine.request import PROMISED, Request, Sampled

TOKENS = 12  # ids from 0
EOS = 0


def following(tokens: Sequence[int]) -> int:
    """The token after these."""
    return zlib.crc32(bytes(tokens)) % TOKENS


def answer(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """All that a request that began with `prompt` knows at its end."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens and (len(tokens) == len(prompt) or tokens[-1] != EOS):
        tokens.append(following(tokens))
    return tokens


def told_of(prompt: Sequence[int]) -> list[int]:
    """What is read at each position of a prompt."""
    return [following(prompt[: place + 1]) for place in range(len(prompt))]


@dataclass
class Late:
    """A launched step, whose outcomes may be asked for once, and in order."""

    device: LateDevice
    outcomes: list[Sampled]
    read: list[PromptReading] = field(default_factory=list)

    def wait(self) -> list[Sampled]:
        assert self.device.flying.pop(0) is self
        return self.outcomes

    def readings(self) -> list[PromptReading]:
        return self.read


@dataclass
class LateDevice:
    """`most` steps were in flight at the same time. Of prompts it reads what `told_of` says."""

    block_size: int
    memory: dict[int, int] = field(default_factory=dict)
    chosen: dict[Request, int] = field(default_factory=dict)
    flying: list[Late] = field(default_factory=list)
    most: int = 0
    positions: dict[Request, list[int]] = field(default_factory=dict)  # that were read of each prompt, as they came

    def launch(self, batch: Batch) -> Late:
        for piece in batch.slices:
            self._write(piece)
        self.chosen = {piece.request: following(self._read(piece)) for piece in batch.sampling}
        read = [self._reading(read) for read in batch.reading]
        late = Late(self, [Sampled(token) for token in self.chosen.values()], read)
        self.flying.append(late)
        self.most = max(self.most, len(self.flying))
        return late

    def _write(self, piece: Slice) -> None:
        request = piece.request
        for place in range(piece.start, piece.stop):
            token = request.tokens[place]
            self.memory[self._slot(request, place)] = self.chosen[request] if token == PROMISED else token

    def _read(self, piece: Slice) -> list[int]:
        return [self.memory[self._slot(piece.request, place)] for place in range(piece.stop)]

    def _reading(self, read: Read) -> PromptReading:
        """Of each position the token after it, as a log-probability, or all of them as hidden states of one number."""
        request, positions = read.request, range(read.start, read.stop)
        self.positions.setdefault(request, []).extend(positions)
        told = [following(self._read(Slice(request, 0, place + 1, False))) for place in positions]
        if read.scores:
            return PromptLogprobs(0, array("f", told), array("i", told), array("f"), array("i"))
        return HiddenSum(array("d", [sum(told)]))

    def _slot(self, request: Request, place: int) -> int:
        return request.blocks[place // self.block_size] * self.block_size + place % self.block_size
