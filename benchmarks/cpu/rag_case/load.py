"""What is asked, and the four ways in which it is served. Pure.

Questions begin with one system prompt, go on with a context of their own, and get a short answer: what a retrieval
pipeline sends. Beside them others read long answers, one after another: who waits for a token while a prompt is
computed is seen there.
"""

from __future__ import annotations

from dataclasses import dataclass

SYSTEM_TOKENS = 1_000
CONTEXT_TOKENS = "uniform:400-800"
ANSWER_TOKENS = 48
OTHERS, OTHERS_PROMPT, OTHERS_ANSWER = 16, 48, 1_000
WINDOW = 4_096
"""A request's tokens at most, and a step's: without chunks a step must hold the longest prompt whole."""

BUSY = 0.6
"""The share of the machine that the questions' prompts would take, computed whole: much, and no overload."""

COLD_PROMPTS = 4
WARM_UPS = 2
"""Questions that come before the first one counted: from then on the system prompt is cached, where anything is."""

FOREVER = 36_000
"""Seconds. The others read until the questions are answered."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the server is started."""

    caching: bool
    chunking: bool

    @property
    def key(self) -> str:
        """In files, and as Prometheus' labels."""
        return f"{'cached' if self.caching else 'computed'}-{'chunks' if self.chunking else 'whole'}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Of `octavo serve`."""
        switches = (("enable-prefix-caching", self.caching), ("enable-chunked-prefill", self.chunking))
        return tuple(f"--{name}" if on else f"--no-{name}" for name, on in switches)


WAYS = (Way(True, True), Way(False, True), Way(True, False), Way(False, False))
"""The default first."""

COLDEST = Way(False, False)
"""Where a prompt alone takes as long as its products do."""


@dataclass(frozen=True, slots=True)
class Load:
    """So many questions at random times, `rate` a second on average, while `others` read."""

    rate: float
    count: int
    others: int = OTHERS

    @classmethod
    def of(cls, cold_seconds: float, count: int) -> Load:
        """One that suits a machine on which the first token of a cold prompt takes so long."""
        return cls(round(BUSY / cold_seconds, 3), count)

    def questions(self, url: str, management: str) -> list[str]:
        """Arguments of `octavo bench` for those who ask."""
        return [
            *(f"--url={url}", f"--metrics-url={management}"),
            *(f"--rate={self.rate}", f"--requests={self.count}", f"--warmup={WARM_UPS}"),
            *_shape(),
            "--seed=1",
        ]

    def beside(self, url: str) -> list[str]:
        """The same for those who read."""
        return [
            *(f"--url={url}", f"--concurrency={self.others}", f"--seconds={FOREVER}", "--warmup=0"),
            *(f"--input-tokens={OTHERS_PROMPT}", f"--output-tokens={OTHERS_ANSWER}", "--seed=2"),
        ]


def cold(url: str) -> list[str]:
    """The same for a few questions, each alone, to a server that caches nothing."""
    return [f"--url={url}", "--concurrency=1", f"--requests={COLD_PROMPTS}", "--warmup=1", *_shape(), "--seed=3"]


def _shape() -> tuple[str, ...]:
    return (
        f"--shared-prefix-tokens={SYSTEM_TOKENS}",
        f"--input-tokens={CONTEXT_TOKENS}",
        f"--output-tokens={ANSWER_TOKENS}",
    )
