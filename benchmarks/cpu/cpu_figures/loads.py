"""What is asked of each server. Tokens are counted as vLLM's load client makes its random prompts."""

from __future__ import annotations

import zlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """`prompts` requests, `streams` of them at once, each greedy and never ended by an end token."""

    name: str
    streams: int
    prompts: int
    prompt_tokens: int  # of each request's own, after the shared prefix
    output_tokens: int
    prefix_tokens: int = 0  # shared by all
    rate: float = 0.0  # requests a second, at random times, whatever is under way; 0: `streams` at once

    def seed(self, number: int) -> int:
        """Of the prompts in a round. With one seed, two loads begin alike, and the second finds its prompts cached."""
        return zlib.crc32(f"{self.name}, round {number}".encode())


DECODES = tuple(
    Load(f"{streams} stream{'s' * (streams > 1)}", streams, prompts, 128, 128)
    for streams, prompts in ((1, 4), (8, 16), (32, 64), (64, 128))
)
LONG = Load("16 streams of 512/64", 16, 32, 512, 64)
PROMPT = Load("a prompt of 1,024", 1, 4, 1024, 1)
CONTEXT = Load("32 streams at 1,024", 32, 32, 992, 64)
# The first four find nothing cached, the others the prefix.
PREFIX = Load("a shared prefix of 1,000", 4, 12, 64, 32, prefix_tokens=1000)

FULL = (*DECODES, LONG, PROMPT, PREFIX, CONTEXT)
QUICK = (
    Load(DECODES[0].name, 1, 2, 128, 32),
    Load(DECODES[1].name, 8, 8, 128, 32),
    Load(PROMPT.name, 1, 2, 1024, 1),
    Load(PREFIX.name, 4, 8, 64, 8, prefix_tokens=1000),
)
