"""One measurement: look at the server, prepare, warm up, send, and keep all that was seen as one plain value."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from octavo_engine.bench.arrivals import ClosedLoop
from octavo_engine.bench.client import Client, NotAnswered, fetch_json
from octavo_engine.bench.conversations import Turn, of_trace, synthetic
from octavo_engine.bench.cost import Cost, Meter
from octavo_engine.bench.counting import by_checkpoint, by_server
from octavo_engine.bench.driver import Bound, Driver
from octavo_engine.bench.outcome import Outcome
from octavo_engine.bench.readings import Looks, Reading
from octavo_engine.bench.settings import BenchSettings
from octavo_engine.bench.vocabulary import Json, Vocabulary, learn
from octavo_engine.bench.wire import Connections

TELL_SECONDS = 0.25
LOOK_SECONDS = 10.0  # that one look at the server's own figures may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All that was seen. `seconds`: from the first request to the last answer."""

    url: str
    model: str
    began: str  # ISO 8601, UTC
    seconds: float
    load: Json  # what was asked for: settings that differ from their defaults
    exact: bool  # whether somebody counted the tokens of prompts before they were sent
    outcomes: tuple[Outcome, ...]
    readings: tuple[Reading, ...]
    cost: Cost
    stopped: bool  # by Ctrl-C, before its end


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a measurement is."""

    seconds: float
    ended: int
    failed: int
    in_flight: int
    bound: Bound

    def __str__(self) -> str:
        of = f"/{self.bound.requests}" if self.bound.requests else ""
        until = f"/{self.bound.seconds:g}" if self.bound.seconds else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.seconds:.0f}{until} s: {self.ended}{of} requests ended, {self.in_flight} in flight{failed}"


Tell = Callable[[Progress], None]


async def measure(settings: BenchSettings, stop: asyncio.Event, tell: Tell) -> Measurement:
    """Measure once; raises NotAnswered where the server does not even say what it serves."""
    config = settings.config
    connections = Connections(settings.target, api_key=config.api_key, seconds=config.timeout)
    try:
        model = config.model or await first_model(connections)
        count = by_checkpoint(config.tokenizer) if config.tokenizer else by_server(connections, model)
        session = Session(settings, connections, model, await learn(count, (_roles(settings),)))
        await session.warm_up(stop)
        return await session.measure(stop, tell)
    finally:
        connections.close()


async def first_model(connections: Connections) -> str:
    """The name that the server lists first; raises NotAnswered."""
    listed = (await fetch_json(connections, "GET", "/v1/models")).get("data")
    first = listed[0] if isinstance(listed, list) and listed else None
    if not isinstance(first, dict) or not isinstance(first.get("id"), str):
        raise NotAnswered("GET /v1/models lists no model: name it by --model")
    return str(first["id"])


def _roles(settings: BenchSettings) -> tuple[str, ...]:
    """Of the first messages of prompts that are made here."""
    endpoint = settings.config.endpoint
    if settings.entries:
        return () if endpoint == "completions" else ("user",)
    return settings.shape.roles(endpoint)


@dataclass(slots=True)
class Session:
    """A server that is known, and what was seen of it."""

    settings: BenchSettings
    connections: Connections
    model: str
    vocabulary: Vocabulary
    outcomes: list[Outcome] = field(default_factory=list)
    made: Iterator[list[Turn]] = field(init=False)
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        config = self.settings.config
        words = random.Random(config.seed)  # noqa: S311 (a load, no secret)
        self.made = synthetic(self.settings.shape, self.vocabulary, config.endpoint, words)
        self.chance = random.Random(config.seed + 1)  # noqa: S311 (arrivals do not depend on how prompts are made)

    async def warm_up(self, stop: asyncio.Event) -> None:
        """Requests that nobody counts: kernels are compiled, shared beginnings are cached, connections are open."""
        if requests := self.settings.config.warmup:
            driver = self._driver(Client(self.connections, lambda _: None), Bound(requests, None))
            await driver.run(ClosedLoop(requests), iter(()), stop)

    async def measure(self, stop: asyncio.Event, tell: Tell) -> Measurement:
        """The measurement itself."""
        settings, meter, began = self.settings, Meter(), datetime.now(UTC)
        client = Client(self.connections, self.outcomes.append)
        if settings.entries:
            once = settings.config.replay
            self.made = of_trace(settings.entries, self.vocabulary, settings.config.endpoint, self.chance, once=once)
        driver = self._driver(client, settings.bound)
        arrivals = settings.arrivals
        offsets = iter(()) if isinstance(arrivals, ClosedLoop) else arrivals.offsets(self.chance)
        client.began = time.monotonic()
        looks = self._looks(client)
        await looks.look()  # before and after: a short measurement has two
        async with _alongside(self._telling(driver, tell), looks.keep_looking(settings.config.metrics_interval)):
            with meter.watching():
                await driver.run(arrivals, offsets, stop)
                seconds = time.monotonic() - client.began
        await looks.look()
        looks.close()
        return self._seen(began, seconds, meter.cost(), looks.readings, stopped=stop.is_set())

    def _driver(self, client: Client, bound: Bound) -> Driver:
        return Driver(
            client=client,
            conversations=self.made,
            endpoint=self.settings.config.endpoint,
            common={"model": self.model} | self.settings.common,
            bound=bound,
            pause=self.settings.config.turn_pause,
        )

    def _seen(
        self, began: datetime, seconds: float, cost: Cost, readings: list[Reading], *, stopped: bool
    ) -> Measurement:
        return Measurement(
            url=self.settings.target.url,
            model=self.model,
            began=began.isoformat(timespec="seconds"),
            seconds=seconds,
            load=self.settings.told(),
            exact=self.vocabulary.exact,
            outcomes=tuple(self.outcomes),
            readings=tuple(readings),
            cost=cost,
            stopped=stopped,
        )

    def _looks(self, client: Client) -> Looks:
        config, target = self.settings.config, self.settings.metrics
        place = None if target is None else Connections(target, api_key=config.api_key, seconds=LOOK_SECONDS)
        return Looks(place, lambda: client.began)

    async def _telling(self, driver: Driver, tell: Tell) -> None:
        failed = seen = 0
        while True:
            failed += sum(not outcome.whole for outcome in self.outcomes[seen:])
            seen = len(self.outcomes)
            now = time.monotonic() - driver.client.began
            tell(Progress(now, seen, failed, driver.in_flight, driver.bound))
            await asyncio.sleep(TELL_SECONDS)


@asynccontextmanager
async def _alongside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """What has no end of its own, until the block has ended."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
