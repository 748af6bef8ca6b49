"""Octavo, or any server of the OpenAI API, under locust: users who ask, read answers as they stream, think, ask again.

    locust -f benchmarks/locustfile.py --host http://127.0.0.1:8000 --headless --users 20 --run-time 2m

Beside locust's own row (a request from sending to its end) there are two more: the time to the first token, and the
time for each token after it. What fails shows under the request with the server's own words. `octavo bench` measures
finer (each gap between tokens, goodput, noise); locust has its page and its distributed workers, and is there already
in many places.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from locust import HttpUser, between, events, task
from locust.argument_parser import LocustArgumentParser

CHAT = "/v1/chat/completions"
FIRST, EACH = "time to first token", "time per output token"
WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "his", "they",
         "at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but")  # fmt: skip


@dataclass(frozen=True)
class Streamed:
    """What a stream was: seconds, and tokens by the server's account, or chunks with text without one."""

    first: float | None
    last: float | None
    tokens: int
    error: str | None

    @property
    def each(self) -> float | None:
        """Seconds for each token after the first."""
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)


def read(lines: Iterable[bytes], clock: Any = time.perf_counter) -> Streamed:
    """Read server-sent events to their end. Times are of `clock`, as each line came."""
    arrivals: list[float] = []
    tokens, error, ended = None, None, False
    for payload in (line[5:].strip() for line in lines if line.startswith(b"data:")):
        if payload == b"[DONE]":
            ended = True
            continue
        chunk = json.loads(payload)
        if not isinstance(chunk, dict):
            raise ValueError("an event is no JSON object")
        error = error or (chunk.get("error") and json.dumps(chunk["error"]))
        tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
        if any(choice.get("delta", {}).get("content") for choice in chunk.get("choices") or ()):
            arrivals.append(clock())
    first, last = (arrivals[0], arrivals[-1]) if arrivals else (None, None)
    problem = error or (None if ended else "the stream has no [DONE]") or (None if arrivals else "no token")
    return Streamed(first, last, len(arrivals) if tokens is None else tokens, problem)


def flags(parser: LocustArgumentParser) -> None:
    """What is asked; each may also come from the environment, as locust has it."""
    parser.add_argument("--model", env_var="OCTAVO_MODEL", default="", help="default: the first that the server lists")
    parser.add_argument("--prompt-words", env_var="OCTAVO_PROMPT_WORDS", type=int, default=200)
    parser.add_argument("--system-words", env_var="OCTAVO_SYSTEM_WORDS", type=int, default=0, help="the same for all")
    parser.add_argument("--max-tokens", env_var="OCTAVO_MAX_TOKENS", type=int, default=128)
    parser.add_argument("--think-seconds", env_var="OCTAVO_THINK_SECONDS", type=float, default=1.0)
    parser.add_argument("--api-key", env_var="OCTAVO_API_KEY", default="", is_secret=True, help="bearer token")


events.init_command_line_parser.add_listener(flags)


class Asker(HttpUser):
    """One user."""

    def wait_time(self) -> float:
        """Thinking takes half as long to half as long again."""
        think = self.environment.parsed_options.think_seconds
        return float(between(think / 2, think * 1.5)(self))

    def on_start(self) -> None:
        """What stays the same for all of its requests."""
        options = self.environment.parsed_options
        if options.api_key:
            self.client.headers["Authorization"] = f"Bearer {options.api_key}"
        self.model = options.model or self.client.get("/v1/models").json()["data"][0]["id"]
        self.system = list(words(options.system_words, random.Random(0)))

    @task
    def ask(self) -> None:
        """One request, read as it streams."""
        options = self.environment.parsed_options
        messages = [{"role": "user", "content": " ".join(words(options.prompt_words, random.Random()))}]
        if self.system:
            messages.insert(0, {"role": "system", "content": " ".join(self.system)})
        body = {"model": self.model, "messages": messages, "max_tokens": options.max_tokens, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip
        sent = time.perf_counter()
        with self.client.post(CHAT, json=body, stream=True, catch_response=True) as response:
            if response.status_code != 200:
                response.failure(f"{response.status_code}: {response.text[:200]}")
                return
            try:
                streamed = read(response.iter_lines(chunk_size=None))
            except (OSError, ValueError) as error:  # what requests raises is an OSError
                response.failure(f"the stream was cut: {error}")
                return
            if streamed.error is not None:
                response.failure(streamed.error)
                return
            response.request_meta["response_time"] = 1e3 * (time.perf_counter() - sent)  # locust stops at the headers
            response.success()
        self._tell(FIRST, None if streamed.first is None else streamed.first - sent, streamed.tokens)
        self._tell(EACH, streamed.each, streamed.tokens)

    def _tell(self, name: str, seconds: float | None, tokens: int) -> None:
        if seconds is not None:
            self.environment.events.request.fire(
                request_type="SSE", name=name, response_time=1e3 * seconds, response_length=tokens, exception=None,
                context={},
            )  # fmt: skip


def words(count: int, chance: random.Random) -> Iterator[str]:
    """So many, at random: about a token each."""
    return iter(chance.choices(WORDS, k=count))
