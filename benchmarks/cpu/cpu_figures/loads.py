"""What is asked of each server. Tokens are counted as vLLM's load client makes its random prompts.

A model that is given random words soon repeats itself, and an answer that does is easily guessed. So there is a load of
real words, too.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Load:
    """`prompts` requests, `streams` of them at once, each greedy and never ended by an end token."""

    name: str
    streams: int
    prompts: int
    prompt_tokens: int  # of each request's own, after the shared prefix; 0 where `texts` has the prompts
    output_tokens: int
    prefix_tokens: int = 0  # shared by all
    rate: float = 0.0  # requests a second, at random times, whatever is under way; 0: `streams` at once
    texts: str = ""  # a file beside this one, a prompt in each line's JSON, instead of random words

    @property
    def path(self) -> Path | None:
        """Of the file of prompts."""
        return Path(__file__).with_name(self.texts) if self.texts else None

    @property
    def key(self) -> dict[str, Any]:
        """All that its figures depend on, the prompts themselves included."""
        return asdict(self) | ({"words": self.path.read_text(encoding="utf-8")} if self.path else {})

    def seed(self, number: int) -> int:
        """Of the prompts in a round. With one seed, two loads begin alike, and the second finds its prompts cached."""
        return zlib.crc32(f"{self.name}, round {number}".encode())


DECODES = tuple(
    Load(f"{streams} stream{'s' * (streams > 1)}", streams, prompts, 128, 128)
    for streams, prompts in ((1, 4), (8, 16), (32, 64), (64, 128))
)
LONG = Load("16 streams of 512/64", 16, 32, 512, 64)
PROMPT = Load("a prompt of 1,024", 1, 4, 1024, 1)
# The first four find nothing cached, the others the prefix.
PREFIX = Load("a shared prefix of 1,000", 4, 12, 64, 32, prefix_tokens=1000)
# Questions, texts to correct and to sum up, JSON and code to write: what assistants are asked.
CHATS = Load("8 streams of chats", 8, 16, 0, 128, texts="chats.jsonl")

FULL = (*DECODES, CHATS, LONG, PROMPT, PREFIX)
QUICK = (
    Load(DECODES[0].name, 1, 2, 128, 32),
    Load(DECODES[1].name, 8, 8, 128, 32),
    Load(CHATS.name, 8, 8, 0, 32, texts=CHATS.texts),
    Load(PROMPT.name, 1, 2, 1024, 1),
    Load(PREFIX.name, 4, 8, 64, 8, prefix_tokens=1000),
)
