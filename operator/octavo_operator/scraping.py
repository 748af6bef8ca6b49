"""Asks pods for their load, or how far they are with fetching a model. No exception leaves this module.

Every load is a `Load` or a reason in words.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable
from typing import Any

import aiohttp

from octavo_operator import names
from octavo_operator.autoscaling import Load
from octavo_operator.checkpoint import Progress, read_progress
from octavo_operator.observed import Pod
from octavo_operator.words import plain

MAX_BYTES = 65_536
_MAX_COUNT = 1 << 53
_LIMITER_BYTES, _SENTENCE_BYTES = 32, 600
_PLAIN = {"Accept": "application/json", "Accept-Encoding": "identity"}
_FULL_REASONS = ("kv_full", "batch_full")

Answer = Load | str
"""A load, or why there is none."""


class Scraper:
    """Fetches `/load` from the management port of pods, all at once.

    Args:
        timeout: seconds one pod has, connection and body together.
    """

    def __init__(self, session: aiohttp.ClientSession, timeout: float, port: int = names.MANAGEMENT_PORT) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._port = port

    async def loads(self, pods: Iterable[Pod]) -> dict[str, Answer]:
        """The answer of each pod, by pod name."""
        asked = list(pods)
        answers = await asyncio.gather(*(self._ask(pod) for pod in asked))
        return {pod.name: answer for pod, answer in zip(asked, answers, strict=True)}

    async def progress(self, pods: Iterable[Pod]) -> list[Progress]:
        """How far the fetch in each pod is; of those that tell."""
        answers = await asyncio.gather(*(self._fetch(pod, "progress") for pod in pods))
        read = [read_progress(answer) for answer in answers if isinstance(answer, bytes)]
        return [progress for progress in read if progress]

    async def _ask(self, pod: Pod) -> Answer:
        answer = await self._fetch(pod, "load")
        return parse_load(answer, pod.name) if isinstance(answer, bytes) else answer

    async def _fetch(self, pod: Pod, page: str) -> bytes | str:
        """The body of a page, or in words why there is none."""
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        try:
            # A redirect could lead anywhere; a large body, or a small one that unpacks to a large one, could fill the
            # memory.
            async with self._session.get(
                f"http://{host}:{self._port}/{page}", timeout=self._timeout, allow_redirects=False, headers=_PLAIN
            ) as response:
                if response.status != 200:
                    return f"{pod.name} answered {response.status}"
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    return f"{pod.name} answered in a coding that was not asked for"
                body = await _bounded_body(response.content)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return f"{pod.name} gave no answer ({type(error).__name__})"
        return f"{pod.name} answered more than {MAX_BYTES} bytes" if body is None else body


async def _bounded_body(content: aiohttp.StreamReader) -> bytes | None:
    body = b""
    async for chunk in content.iter_chunked(MAX_BYTES):
        body += chunk
        if len(body) > MAX_BYTES:
            return None
    return body


def parse_load(body: bytes, pod: str) -> Answer:
    """Reads the JSON of `/load`; anything missing, negative or not finite makes the whole answer no data."""
    try:
        document = json.loads(body)
        waiting = {str(reason): _count(value) for reason, value in document["waiting"].items()}
        startup = document["startup_seconds"]
        limiter, limited = _limit(document.get("limited_by"))
        return Load(
            waiting=sum(waiting.values()),
            waiting_full=sum(waiting.get(reason, 0) for reason in _FULL_REASONS),
            running=_count(document["running"]),
            max_num_seqs=max(1, _count(document["max_num_seqs"])),
            arrivals_total=_count(document["arrivals_total"]),
            completions_total=_count(document["completions_total"]),
            oldest_wait_seconds=_number(document["oldest_wait_seconds"]),
            kv_usage=_number(document["kv_cache_usage_ratio"]),
            startup_seconds=None if startup is None else _number(startup),
            limiter=limiter,
            limited=limited,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{pod} answered something that is not a load ({type(error).__name__}: {str(error)[:80]})"


def _limit(said: Any) -> tuple[str, str]:
    """What an engine says of its limit, word and sentence; empty where it says none: a load is a load without."""
    if not isinstance(said, dict) or not all(isinstance(said.get(part), str) for part in ("limiter", "message")):
        return "", ""
    return plain(said["limiter"], _LIMITER_BYTES), plain(said["message"], _SENTENCE_BYTES)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
        raise ValueError("not a count")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError("not a finite number of at least zero")
    return float(value)
