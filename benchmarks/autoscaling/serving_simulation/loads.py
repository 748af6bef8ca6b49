"""Loads as lists of requests: Poisson arrivals at a rate that changes in time, lengths with long tails."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .requests import Request

Rate = Callable[[float], float]
"""Requests per second at a time."""


@dataclass(frozen=True)
class Lengths:
    """Mean tokens of prompts and answers; each is log-normal with the given spread (sigma), within a factor of 8."""

    prompt: float = 250.0
    output: float = 300.0
    spread: float = 0.7

    def draw(self, rng: random.Random) -> tuple[int, int]:
        """One request's lengths."""
        return self._one(rng, self.prompt), self._one(rng, self.output)

    def _one(self, rng: random.Random, mean: float) -> int:
        value = rng.lognormvariate(math.log(mean) - self.spread**2 / 2, self.spread)
        return max(1, round(min(max(value, mean / 8), mean * 8)))


def arrivals(rate: Rate, seconds: float, lengths: Lengths, seed: int) -> list[Request]:
    """A Poisson process by thinning. The rate is looked at every half second to find its highest."""
    rng = random.Random(seed)
    highest = max(rate(step / 2) for step in range(int(seconds * 2) + 1))
    made, now = [], 0.0
    while (now := now + rng.expovariate(highest)) < seconds:
        if rng.random() * highest <= rate(now):
            made.append(Request(now, *lengths.draw(rng)))
    return made


def recorded(path: Path) -> list[Request]:
    """A trace: `seconds,prompt_tokens,output_tokens` a line, under a header; lines with # are remarks."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return [Request(float(row["seconds"]), int(row["prompt_tokens"]), int(row["output_tokens"])) for row in rows]


def repeated(requests: list[Request], every: float, times: int) -> list[Request]:
    """The same requests again and again, `every` so many seconds."""
    return [Request(one.arrival + every * n, one.prompt, one.output) for n in range(times) for one in requests]


def step(low: float, high: float, start: float, end: float) -> Rate:
    """Low, then high from `start` to `end`, then low again."""
    return lambda now: high if start <= now < end else low


def spikes(low: float, high: float, starts: tuple[float, ...], seconds: float) -> Rate:
    """Short bursts."""
    return lambda now: high if any(start <= now < start + seconds for start in starts) else low


def sawtooth(low: float, high: float, period: float) -> Rate:
    """A steady climb and a sudden end, again and again."""
    return lambda now: low + (high - low) * (now % period) / period


def day(low: float, high: float, period: float, lunch: float = 0.25) -> Rate:
    """A day from midnight to midnight: quiet, a morning's climb, a dip at noon, an evening that ebbs away."""

    def rate(now: float) -> float:
        hour = 24 * (now % period) / period
        shape = math.exp(-(((hour - 10.5) / 2.5) ** 2)) + math.exp(-(((hour - 15.5) / 3) ** 2))
        return low + (high - low) * min(1.0, max(0.0, shape - lunch * math.exp(-(((hour - 13) / 0.8) ** 2))))

    return rate
