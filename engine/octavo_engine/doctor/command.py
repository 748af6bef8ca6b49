"""`octavo doctor`: looks at a running engine for some seconds, and says what limits it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Self, TextIO

from octavo_engine.config import FlagParser
from octavo_engine.diagnosis.diagnose import diagnose
from octavo_engine.diagnosis.facts import Facts, between
from octavo_engine.diagnosis.findings import Finding
from octavo_engine.diagnosis.latency import INTER_TOKEN_SECONDS
from octavo_engine.diagnosis.scrape import NotAnEngine, Scrape
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.explain.fetching import DEFAULT_URL, ManagementPort, NoAnswer, NotKnown

LOOKS = 11  # over the whole time
CANNOT_WORK, NO_ANSWER = 2, 3


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """Who is asked, for how long, and how it is told."""

    url: str
    seconds: float
    inter_token_seconds: float
    as_json: bool

    @classmethod
    def parse(cls, args: Sequence[str]) -> Self:
        """Read the arguments; raises InvalidConfiguration."""
        parser = FlagParser(
            prog="octavo doctor", allow_abbrev=False, description="Name what limits a running engine, and why."
        )
        parser.add_argument("place", nargs="?", metavar="URL", help=f"the management port (default: {DEFAULT_URL})")
        parser.add_argument("--url", default=DEFAULT_URL, help="the same, as a flag")
        parser.add_argument(
            "--seconds", type=float, default=5.0, metavar="FLOAT", help="how long to look, under load (default: 5)"
        )
        parser.add_argument(
            "--inter-token-seconds",
            type=float,
            default=INTER_TOKEN_SECONDS,
            metavar="FLOAT",
            help=f"what 99 of 100 gaps between tokens should keep (default: {INTER_TOKEN_SECONDS})",
        )
        parser.add_argument("--json", action="store_true", dest="as_json", help="facts and findings as JSON")
        parsed = parser.parse_args(args)
        if not 0.1 <= parsed.seconds <= 600:
            parser.error(f"--seconds is {parsed.seconds}; it must be between 0.1 and 600")
        if not parsed.inter_token_seconds > 0:
            parser.error(f"--inter-token-seconds is {parsed.inter_token_seconds}; it must be above 0")
        return cls(parsed.place or parsed.url, parsed.seconds, parsed.inter_token_seconds, parsed.as_json)


def doctor(arguments: Sequence[str], out: TextIO, sleep: Callable[[float], object] = time.sleep) -> int:
    """Look and tell; returns the exit code: 0, 2 for wrong flags, 3 without an engine's answer."""
    try:
        settings = DoctorSettings.parse(arguments)
        port = ManagementPort(settings.url)
        facts = between(look(port, settings.seconds, sleep))
    except InvalidConfiguration as error:
        print(error, file=sys.stderr)  # noqa: T201
        return CANNOT_WORK
    except (NoAnswer, NotKnown, NotAnEngine) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return NO_ANSWER
    found = diagnose(facts, settings.inter_token_seconds)
    print(as_document(facts, found) if settings.as_json else report(facts, found), file=out)
    return 0


def look(port: ManagementPort, seconds: float, sleep: Callable[[float], object]) -> list[Scrape]:
    """Scrapes over that time, evenly."""
    scrapes: list[Scrape] = []
    for number in range(LOOKS):
        if number:
            sleep(seconds / (LOOKS - 1))
        scrapes.append(Scrape.read(port.text("metrics"), time.monotonic()))
    return scrapes


def report(facts: Facts, findings: Sequence[Finding]) -> str:
    """For a person: the limiter, why, what to change, and what should come of it; then what else was seen."""
    waiting = ", ".join(f"{number:.1f} {reason}" for reason, number in facts.waiting.items() if number) or "none"
    lines = [
        f"in {facts.seconds:.1f} s: {facts.generated / facts.seconds:,.0f} tokens/s, {facts.running:.1f} running,"
        f" waiting: {waiting}; steps took {100 * facts.busy:.0f} % of the time,"
        f" {100 * facts.kv_usage:.0f} % of the KV blocks are held"
    ]
    for number, finding in enumerate(findings):
        head = "it is limited by" if number == 0 else "then by"
        lines.append(f"{head} {finding.limiter}: {finding.evidence}\n  {finding.advice}\n  expected: {finding.effect}")
    return "\n".join(lines)


def as_document(facts: Facts, findings: Sequence[Finding]) -> str:
    """For a script."""
    return json.dumps(
        {
            "limiter": findings[0].limiter.value,
            "findings": [asdict(finding) for finding in findings],
            "facts": asdict(facts) | {"busy": facts.busy},
        },
        indent=2,
    )
