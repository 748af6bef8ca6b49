"""`octavo top`: the four numbers that matter, live in a terminal, with the last minute of each as a line of blocks.

Below them, what limits the engine now: the first of the sentences that `octavo doctor` would say.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TextIO, TypeVar

from octavo_engine.config import FlagParser
from octavo_engine.diagnosis.scrape import Between, NotAnEngine, Scrape
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.explain.board import Board
from octavo_engine.explain.command import NO_ANSWER, WRONG, style_of
from octavo_engine.explain.fetching import DEFAULT_URL, ManagementPort, NoAnswer, NotKnown
from octavo_engine.explain.replicas import ClusterUnreachable, Replicas
from octavo_engine.explain.together import load_of_all, looks_of_all

T = TypeVar("T")

CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class TopSettings:
    """Whom to ask and how often, in seconds; `once`: print what one interval saw, and end.

    With a `service`, its replicas are asked instead of `url`, through kubectl with the options `kubectl`.
    """

    url: str
    interval: float
    once: bool
    service: str | None = None
    kubectl: tuple[str, ...] = ()

    @classmethod
    def parse(cls, args: Sequence[str]) -> Self:
        """Read the arguments; raises InvalidConfiguration."""
        parser = FlagParser(
            prog="octavo top",
            allow_abbrev=False,
            description="Show time to first token, inter-token latency, throughput and queue of a running server.",
        )
        parser.add_argument("place", nargs="?", metavar="URL", help=f"the management port (default: {DEFAULT_URL})")
        parser.add_argument("--url", default=DEFAULT_URL, help="the same, as a flag")
        parser.add_argument(
            "--service", metavar="NAME", help="all ready replicas of an InferenceService instead, through kubectl"
        )
        parser.add_argument(
            "--namespace", "-n", metavar="NAME", help="of the service; default: that of kubectl's context"
        )
        parser.add_argument("--context", metavar="NAME", help="kubectl's context; default: the present one")
        parser.add_argument(
            "--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (default: 2)"
        )
        parser.add_argument("--once", action="store_true", help="print what one interval saw, and end")
        parsed = parser.parse_args(args)
        if not 0.1 <= parsed.interval <= 3600:
            parser.error(f"--interval is {parsed.interval}; it must be between 0.1 and 3600")
        where = {"--namespace": parsed.namespace, "--context": parsed.context}
        if parsed.service is None and (given := [name for name, value in where.items() if value]):
            parser.error(f"{given[0]} says where a service is: name it by --service")
        options = tuple(f"{name}={value}" for name, value in where.items() if value)
        return cls(parsed.place or parsed.url, parsed.interval, parsed.once, parsed.service, options)


def top(
    arguments: Sequence[str],
    out: TextIO,
    environment: Mapping[str, str],
    rest: Callable[[float], object] = time.sleep,
) -> int:
    """Look again and again until interrupted; returns the exit code, as `octavo explain` does."""
    try:
        settings = TopSettings.parse(arguments)
        _look(settings, out, Board(style_of(out, environment)), rest)
    except KeyboardInterrupt:
        return 0
    except InvalidConfiguration as error:
        print(f"octavo top: {error}", file=sys.stderr)  # noqa: T201
        return WRONG
    except (NoAnswer, NotAnEngine, NotKnown, ClusterUnreachable) as error:
        print(f"octavo top: {error}", file=sys.stderr)  # noqa: T201
        return NO_ANSWER
    return 0


def _look(settings: TopSettings, out: TextIO, board: Board, rest: Callable[[float], object]) -> None:
    if settings.service is None:
        alone = {"": ManagementPort(settings.url)}
        _watch(settings, out, board, rest, lambda: alone)
        return
    with Replicas(settings.service, settings.kubectl) as replicas:
        _watch(settings, out, board, rest, replicas.refresh)


def _watch(
    settings: TopSettings,
    out: TextIO,
    board: Board,
    rest: Callable[[float], object],
    ports: Callable[[], Mapping[str, ManagementPort]],
) -> None:
    before = _scrapes(ports())
    while True:
        rest(settings.interval)
        now = ports()
        after = _scrapes(now)
        seen = looks_of_all(before, after)
        if seen is not None:  # else every replica is new
            each = {pod: Between(before[pod], after[pod]) for pod in after if pod in before}
            page = board.page(seen, load_of_all(_loads(now)), each if settings.service is not None else None)
            out.write(CLEAR + page if out.isatty() and not settings.once else page)
            out.flush()
            if settings.once:
                return
        before = after


def _scrapes(ports: Mapping[str, ManagementPort]) -> dict[str, Scrape]:
    """What each says; one that has gone meanwhile is left out, as long as another answers."""
    return _of_each(ports, lambda port: Scrape.read(port.text("metrics"), time.monotonic()))


def _loads(ports: Mapping[str, ManagementPort]) -> list[dict[str, Any]]:
    return list(_of_each(ports, lambda port: port.json("load")).values())


def _of_each(ports: Mapping[str, ManagementPort], ask: Callable[[ManagementPort], T]) -> dict[str, T]:
    answers: dict[str, T] = {}
    failure: NoAnswer | None = None
    for pod, port in ports.items():
        try:
            answers[pod] = ask(port)
        except NoAnswer as error:
            failure = error
    if not answers and failure is not None:
        raise failure
    return answers
