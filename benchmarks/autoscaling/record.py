"""Records a load from a running engine: users who read, think and ask again, more of them and then fewer.

Writes a trace that `serving_simulation` replays: when each request came, how long its prompt was, how long the model's
answer turned out. Users wait for their answers, so the arrivals are what a real engine's speed made of them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

QUESTIONS = (
    "What is the capital of France?",
    "Explain in three sentences how a bicycle stays upright.",
    "Write a short poem about the sea in autumn.",
    "List five things to pack for a week in the mountains, each with a reason.",
    "Summarise in a few words: the kettle boils, the tea is poured, the guests arrive and talk until midnight.",
    "Give me a recipe for pancakes with quantities and steps.",
    "Why is the sky blue?",
    "Translate into French: good morning, how did you sleep?",
)
THINKING_SECONDS = 6.0


@dataclass
class Recording:
    """What was asked so far."""

    began: float = field(default_factory=time.monotonic)
    rows: list[tuple[float, int, int]] = field(default_factory=list)
    refused: int = 0

    @property
    def now(self) -> float:
        """Seconds since the begin."""
        return time.monotonic() - self.began


async def user(client: httpx.AsyncClient, model: str, recording: Recording, until: float, rng: random.Random) -> None:
    """One user's conversation after another; each turn carries what was said before."""
    messages: list[dict[str, str]] = []
    while recording.now < until:
        await asyncio.sleep(rng.expovariate(1 / THINKING_SECONDS))
        if len(messages) > 2 * rng.randint(1, 4):
            messages = []
        messages.append({"role": "user", "content": rng.choice(QUESTIONS)})
        came = recording.now
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": 160,
            "temperature": 0.8,
            "seed": rng.randrange(10**6),
        }
        reply = await client.post("/v1/chat/completions", json=body)
        if reply.status_code != httpx.codes.OK:
            recording.refused += 1
            messages.pop()
            continue
        answer = reply.json()
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        recording.rows.append((came, answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]))


async def record(url: str, model: str, seconds: float, most: int) -> Recording:
    """Users join during the first half, one after the other, and leave in the second."""
    recording, rng = Recording(), random.Random(7)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client, asyncio.TaskGroup() as users:
        for number in range(most):
            joined, left = seconds / 2 * number / most, seconds * (1 - number / most / 2)
            await asyncio.sleep(max(0.0, joined - recording.now))
            users.create_task(user(client, model, recording, left, random.Random(rng.random())))
    return recording


def main() -> int:
    """The command; see `--help`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=float, default=360.0)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    recording = asyncio.run(record(options.url, options.model, options.seconds, options.users))
    lines = [f"{came:.2f},{prompt},{output}" for came, prompt, output in sorted(recording.rows)]
    remark = f"# {len(lines)} requests of up to {options.users} users to {options.model}, {recording.refused} refused."
    options.output.write_text("\n".join((remark, "seconds,prompt_tokens,output_tokens", *lines)) + "\n")
    print(remark)
    return 0


if __name__ == "__main__":
    sys.exit(main())
