"""`octavo explain [ID]`: why a request took as long as it did, or why the queue waits; for a person or as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TextIO

from octavo_engine.config import FlagParser
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.explain.advice import advice, queue_advice
from octavo_engine.explain.fetching import DEFAULT_URL, ManagementPort, NoAnswer, NotKnown
from octavo_engine.explain.report import Style, queue_report, request_report

NAMES = re.compile(r"[A-Za-z0-9_.-]+")
NOT_KNOWN, WRONG, NO_ANSWER = 1, 2, 3


@dataclass(frozen=True, slots=True)
class ExplainSettings:
    """What is asked, of whom, and how it is told."""

    name: str | None
    url: str
    as_json: bool
    limit: int

    @classmethod
    def parse(cls, args: Sequence[str]) -> Self:
        """Read the arguments; raises InvalidConfiguration."""
        parser = FlagParser(
            prog="octavo explain",
            allow_abbrev=False,
            description="Say where a request's time went and what to change; without ID, why the queue waits now.",
        )
        parser.add_argument(
            "name", nargs="?", metavar="ID", help="id of an answer (chatcmpl-..., cmpl-...), or its x-request-id"
        )
        parser.add_argument("--url", default=DEFAULT_URL, help=f"the management port (default: {DEFAULT_URL})")
        parser.add_argument("--json", action="store_true", dest="as_json", help="all that is known, as JSON")
        parser.add_argument("--limit", type=int, default=10, metavar="INT", help="requests listed (default: 10)")
        parsed = parser.parse_args(args)
        if not 1 <= parsed.limit <= 100:
            parser.error(f"--limit is {parsed.limit}; it must be between 1 and 100")
        return cls(parsed.name, parsed.url, parsed.as_json, parsed.limit)


def explain(arguments: Sequence[str], out: TextIO, environment: Mapping[str, str]) -> int:
    """Ask and tell; returns the exit code: 0, 1 for a request that is not known, 2 for a flag, 3 without an answer.

    What goes wrong is told to standard error alone: it is often run inside a server's container, whose last words are
    the server's.
    """
    try:
        settings = ExplainSettings.parse(arguments)
        out.write(_told(settings, ManagementPort(settings.url), style_of(out, environment)))
    except NotKnown:
        _complain("no live or recent request is called that; without an ID some are listed")
        return NOT_KNOWN
    except InvalidConfiguration as error:
        _complain(str(error))
        return WRONG
    except NoAnswer as error:
        _complain(str(error))
        return NO_ANSWER
    return 0


def style_of(out: TextIO, environment: Mapping[str, str]) -> Style:
    """Colours where a person looks at a terminal, unless NO_COLOR asks for none."""
    return Style(colour=out.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb")


def _complain(text: str) -> None:
    print(f"octavo explain: {text}", file=sys.stderr)  # noqa: T201


def _told(settings: ExplainSettings, port: ManagementPort, style: Style) -> str:
    if settings.name is None:
        document = port.json("v1", "requests", query=f"?limit={settings.limit}")
        said = queue_advice(document["queue"])
        return _json(document, said) if settings.as_json else queue_report(document, style)
    if not NAMES.fullmatch(settings.name):
        raise NotKnown("ids have letters, digits, dots, dashes and underscores")
    document = port.json("v1", "requests", settings.name, "timeline")
    return _json(document, advice(document)) if settings.as_json else request_report(document, style)


def _json(document: dict[str, object], said: str) -> str:
    return json.dumps(document | {"advice": said}, indent=2, ensure_ascii=False) + "\n"
