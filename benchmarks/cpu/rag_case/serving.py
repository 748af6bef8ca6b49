"""One server, in one of the four ways: started, watched by Prometheus, asked, ended. What was seen is one `Cell`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Self
from urllib.parse import urlsplit

from cpu_figures.servers import Recipe, Server, octavo
from octavo_engine.bench.measurement import Measurement, Progress, measure
from octavo_engine.bench.outcome import Failure, Outcome
from octavo_engine.bench.settings import BenchSettings

from . import board
from .load import COLDEST, WINDOW, Load, Way, cold

POOL_BYTES = 1 << 30


class NotAnswered(Exception):
    """A request failed: figures of the others would flatter the server."""


@dataclass(frozen=True, slots=True)
class Place:
    """How a server is run, and where it is."""

    recipe: Recipe
    management_port: int

    @property
    def url(self) -> str:
        """Of the API."""
        return f"http://127.0.0.1:{self.recipe.port}"

    @property
    def management(self) -> str:
        """Of the management port."""
        return f"http://127.0.0.1:{self.management_port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One way under the load, as the client saw it and as the board tells it. Times are in seconds."""

    first_tokens: tuple[float, ...]  # of the questions, in the order in which they were answered
    gaps: tuple[float, ...]  # between two tokens of one of the others' answers
    prompt_tokens: int  # of all questions
    cached_tokens: int  # of these, found in the prefix cache
    waiting: tuple[float, ...]  # requests in the server's queue, at each look
    lag: float  # of the client's own loop, P99
    board: board.Told

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `asdict`, out of JSON."""
        lists = {name: tuple(value[name]) for name in ("first_tokens", "gaps", "waiting")}
        curves = {name: [(x, y) for x, y in points] for name, points in value["board"]["curves"].items()}
        return cls(**{**value, **lists, "board": board.Told(value["board"]["figures"], curves)})

    @property
    def cached_share(self) -> float:
        """Of the questions' prompt tokens."""
        return self.cached_tokens / self.prompt_tokens


def place(model: Path, way: Way, threads: int) -> Place:
    """A server that is not running yet, on ports that are free now."""
    flags = ("--max-model-len", WINDOW, "--max-num-batched-tokens", WINDOW, *way.flags)
    recipe = octavo(model, threads, *flags, name=way.key, pool_bytes=POOL_BYTES)
    management = urlsplit(recipe.ready_url).port
    assert management is not None, "its own port"
    return Place(recipe, management)


def cold_seconds(model: Path, threads: int) -> float:
    """The first token of a question, of which nothing is cached, by a server that does nothing else."""
    here = place(model, COLDEST, threads)
    with Server(here.recipe):
        seen = asyncio.run(measure(BenchSettings.parse(cold(here.url), {}), asyncio.Event(), _silent))
    return median(_first_tokens(seen))


def serve(model: Path, way: Way, load: Load, threads: int) -> Cell:
    """Start, ask, end; raises NotAnswered, and RuntimeError where the server does not start."""
    here = place(model, way, threads)
    with Server(here.recipe), board.watching(way.key, here.management_port) as prometheus:
        questions, others = asyncio.run(_asked(load, here))
        ended = time.time()
        time.sleep(board.SCRAPE_SECONDS + 0.5)  # what came last is in the next scrape
        told = board.told(prometheus, way.key, _began(questions), ended + board.SCRAPE_SECONDS)
    return cell(questions, others, told)


async def _asked(load: Load, here: Place) -> tuple[Measurement, Measurement]:
    """The questions, and the others until these are answered."""
    answered = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        beside = group.create_task(measure(BenchSettings.parse(load.beside(here.url), {}), answered, _silent))
        settings = BenchSettings.parse(load.questions(here.url, here.management), {})
        questions = await measure(settings, asyncio.Event(), _silent)
        answered.set()
    return questions, beside.result()


def cell(questions: Measurement, others: Measurement, told: board.Told) -> Cell:
    """What is kept of both; raises NotAnswered."""
    _refuse_failures(others.outcomes)
    return Cell(
        first_tokens=tuple(_first_tokens(questions)),
        gaps=tuple(gaps_after(others.outcomes, _began(questions) - _began(others))),
        prompt_tokens=sum(outcome.prompt_tokens or 0 for outcome in questions.outcomes),
        cached_tokens=sum(outcome.cached_tokens or 0 for outcome in questions.outcomes),
        waiting=tuple(reading.waiting for reading in questions.readings if reading.waiting is not None),
        lag=max(questions.cost.lag_p99, others.cost.lag_p99),
        board=told,
    )


def gaps_after(outcomes: Iterable[Outcome], begin: float) -> Iterator[float]:
    """Gaps that ended after `begin`, in seconds from the first request. Answers that were cut short at the end have
    gaps like all others."""
    for outcome in outcomes:
        at = outcome.sent + (outcome.first_token or 0.0)
        for gap in outcome.gaps:
            at += gap
            if at > begin:
                yield round(gap, 6)


def _first_tokens(seen: Measurement) -> list[float]:
    _refuse_failures(seen.outcomes)
    return [round(outcome.first_token, 6) for outcome in seen.outcomes if outcome.first_token is not None]


def _refuse_failures(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.failure not in (None, Failure.INTERRUPTED):
            raise NotAnswered(f"{outcome.failure}: {outcome.detail}")


def _began(seen: Measurement) -> float:
    """Unix seconds, to the second."""
    return datetime.fromisoformat(seen.began).timestamp()


def _silent(_: Progress) -> None:
    """Nobody looks at single requests."""
