"""What is measured: the load, the times of one answer, and the figures of one run. Times are in seconds."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median


@dataclass(frozen=True)
class Load:
    """`streams` requests that arrive at once, each with a prompt of its own."""

    streams: int
    prompt_tokens: int
    output_tokens: int

    def prompts(self, seed: int) -> list[list[int]]:
        """Random token ids: nothing can be reused between requests, of whatever loads and seeds, and no end token is
        likely. With the seed alone, a larger load would begin with a smaller one's prompts, and find them cached."""
        draw = random.Random(f"{self}, {seed}")  # nothing secret
        return [[draw.randrange(1_000, 40_000) for _ in range(self.prompt_tokens)] for _ in range(self.streams)]


@dataclass(frozen=True)
class Answer:
    """One request as its client saw it. `first` and `last` are when the first and the last token came."""

    sent: float
    first: float
    last: float
    tokens: int

    @property
    def time_to_first_token(self) -> float:
        """Seconds."""
        return self.first - self.sent

    @property
    def time_per_output_token(self) -> float:
        """Mean seconds between tokens after the first."""
        return (self.last - self.first) / max(1, self.tokens - 1)


@dataclass(frozen=True)
class Figures:
    """One run, or the median of several."""

    tokens_per_second: float  # generated, from the first request sent to the last token of all
    time_per_output_token: float
    time_to_first_token: float
    cpu_seconds_per_kilotoken: float  # processor time of the contender's process, all threads; steady on a busy machine

    @classmethod
    def of(cls, answers: Sequence[Answer], load: Load, cpu_seconds: float) -> Figures:
        """Raises if any answer is short: a contender that stops early must not look fast."""
        short = [answer.tokens for answer in answers if answer.tokens != load.output_tokens]
        if short or len(answers) != load.streams:
            raise RuntimeError(
                f"{len(answers)} of {load.streams} answers, some of {short} tokens, not {load.output_tokens}"
            )
        seconds = max(answer.last for answer in answers) - min(answer.sent for answer in answers)
        return cls(
            tokens_per_second=load.streams * load.output_tokens / seconds,
            time_per_output_token=mean(answer.time_per_output_token for answer in answers),
            time_to_first_token=mean(answer.time_to_first_token for answer in answers),
            cpu_seconds_per_kilotoken=cpu_seconds / (load.streams * load.output_tokens) * 1000,
        )

    @classmethod
    def median(cls, runs: Sequence[Figures]) -> Figures:
        """Field by field."""
        rows = [asdict(run) for run in runs]
        return cls(**{name: median(row[name] for row in rows) for name in rows[0]})


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
