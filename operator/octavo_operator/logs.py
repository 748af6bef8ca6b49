"""Log lines: JSON for machines, plain for people. No line ever holds a header, a token or a Secret's value."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_about: ContextVar[Mapping[str, object]] = ContextVar("about", default={})  # noqa: B039 - never changed in place

# Nothing of ours writes credentials; words of other libraries and servers pass through here as well.
_CREDENTIALS = re.compile(r"(?<=Bearer )\S{8,}|\beyJ[-\w]{8,}\.[-\w]+\.[-\w]+|(?<=://)[^/\s@:]+:[^/\s@]+(?=@)")


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Adds fields to every JSON line that is written within the block, by whichever module."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def redacted(text: str) -> str:
    """The text without anything that looks like a credential."""
    return _CREDENTIALS.sub("[redacted]", text)


class JsonFormatter(logging.Formatter):
    """One JSON object a line. `extra={"fields": {...}}` adds fields to one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
            **_about.get(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


class PlainFormatter(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of one record."""
        return redacted(super().format(record))


def configure(level: str, style: str) -> None:
    """Sends every logger's lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    plain = PlainFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if style == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # kopf tells of each watched object at info; our own lines say what was done about it.
    for chatty in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    # It warns that it has no signals, which it shall not have: it runs in a thread.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
