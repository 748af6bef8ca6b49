"""The client's side: one streamed answer, and a bounded burst of load through one pooled client."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from openai import APIError, AsyncOpenAI, OpenAI

MODEL = "smollm2"
CLIENTS = 24
BURST_SECONDS = 240.0
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Client:
    """Where the service listens."""

    base_url: str

    def plain(self) -> OpenAI:
        """The official client."""
        return OpenAI(base_url=self.base_url, api_key="none", max_retries=3)

    def pooled(self) -> AsyncOpenAI:
        """The official asynchronous client, whose connections are kept and shared by all of the burst."""
        return AsyncOpenAI(base_url=self.base_url, api_key="none", max_retries=6, timeout=120.0)


def stream(client: Client, question: str) -> str:
    """Ask, print the answer as it comes, and how long its first token took."""
    began, first, answer = time.monotonic(), 0.0, ""
    with client.plain() as openai:
        chunks = openai.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            stream=True,
            temperature=0,
            max_tokens=48,
        )
        for chunk in chunks:
            text = (chunk.choices[0].delta.content or "") if chunk.choices else ""
            first = first or (time.monotonic() - began if text else 0.0)
            answer += text
            sys.stdout.write(text)
            sys.stdout.flush()
    print(f"\n(first token after {first * 1000:.0f} ms, all after {(time.monotonic() - began) * 1000:.0f} ms)")
    return answer


@dataclass
class Outcome:
    """What became of the burst's requests."""

    done: int = 0
    failed: int = 0
    tokens: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def summary(self) -> str:
        """One line."""
        seconds = time.monotonic() - self.began
        return (
            f"{self.done} answers and {self.tokens} tokens in {seconds:.0f} s from {CLIENTS} clients over one pool,"
            f" {self.failed} failed"
        )


async def burst(client: Client, until: Callable[[], bool]) -> Outcome:
    """Keep CLIENTS requests in flight until `until` holds, for at most BURST_SECONDS."""
    outcome, stop = Outcome(), asyncio.Event()
    async with client.pooled() as openai:
        workers = [asyncio.create_task(_worker(openai, outcome, stop, number)) for number in range(CLIENTS)]
        await _watch(until, stop)
        await asyncio.gather(*workers)
    return outcome


async def _watch(until: Callable[[], bool], stop: asyncio.Event) -> None:
    deadline = time.monotonic() + BURST_SECONDS
    try:
        while time.monotonic() < deadline and not await asyncio.to_thread(until):
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        stop.set()


async def _worker(openai: AsyncOpenAI, outcome: Outcome, stop: asyncio.Event, number: int) -> None:
    """Ask one question after the other."""
    turn = 0
    while not stop.is_set():
        turn += 1
        question = f"Tell me fact number {turn} about the number {number}."
        await _count(outcome, lambda text=question: _ask(openai, text))  # type: ignore[misc]


async def _ask(openai: AsyncOpenAI, question: str) -> int:
    answer = await openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], max_tokens=64
    )
    return answer.usage.completion_tokens if answer.usage else 0


async def _count(outcome: Outcome, ask: Callable[[], Awaitable[int]]) -> None:
    try:
        tokens = await ask()
    except APIError as error:
        outcome.failed += 1
        print(f"a request failed: {error}", file=sys.stderr)
    else:
        outcome.done += 1
        outcome.tokens += tokens
