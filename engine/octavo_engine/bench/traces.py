"""Traces of real traffic: lengths, arrivals and, where they have it, text. Reads files; what a row means is pure.

CSV with a head, or one JSON object a line. The names are those of the public traces: `TIMESTAMP`, `ContextTokens` and
`GeneratedTokens` of Azure's conversation and code traces, `timestamp`, `input_length` and `output_length` of
Mooncake's, and what people write by hand. Upper and lower case are alike, and `_` is nothing.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from octavo_engine.errors import InvalidConfiguration

Row = Mapping[str, Any]
PROMPTS = ("contexttokens", "inputlength", "inputtokens", "prompttokens", "requesttokens")
OUTPUTS = ("generatedtokens", "outputlength", "outputtokens", "completiontokens", "responsetokens", "maxtokens")
TIMES = ("timestamp", "arrival", "arrivaltime", "time")
MOONCAKE = "hashids"  # whose times are milliseconds; all others' are seconds, or dates
DEFAULT_OUTPUT = 128


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of a trace. `text` stands for `prompt_tokens` where it is known; `at` is in seconds."""

    prompt_tokens: int
    output_tokens: int
    at: float | None = None
    messages: tuple[Mapping[str, str], ...] = ()
    text: str | None = None


def read_trace(path: str) -> tuple[Entry, ...]:
    """All entries, by time from the first if each has one; raises InvalidConfiguration naming the line."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            rows: Iterable[tuple[int, Row]] = _json_lines(file) if _is_json(path) else _csv_lines(file)
            entries = [_entry(row, f"--trace: {path}, line {number}") for number, row in rows]
    except OSError as error:
        raise InvalidConfiguration(f"--trace: {path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidConfiguration(f"--trace: {path} is neither CSV nor JSON lines: {error}") from error
    if not entries:
        raise InvalidConfiguration(f"--trace: {path} holds no request")
    return tuple(_from_zero(entries))


def _is_json(path: str) -> bool:
    return Path(path).suffix.lower() in (".jsonl", ".json", ".ndjson")


def _csv_lines(lines: Iterable[str]) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(lines)
    for row in reader:
        yield reader.line_num, {_plain(name): value for name, value in row.items() if name}


def _json_lines(lines: Iterable[str]) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise InvalidConfiguration(f"--trace: line {number} is no JSON object")
        yield number, {_plain(name): value for name, value in document.items()}


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "")


def _entry(row: Row, where: str) -> Entry:
    """What a row says; raises InvalidConfiguration."""
    try:
        messages, text = _messages(row), row.get("prompt")
        prompt = _number(row, PROMPTS)
        output = _number(row, OUTPUTS)
        at = _time(row)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidConfiguration(f"{where}: {error}") from error
    known = (isinstance(text, str) and bool(text)) or bool(messages)
    if prompt is None and not known:
        raise InvalidConfiguration(f"{where} says nothing of its prompt; a trace has ContextTokens, or messages")
    return Entry(
        prompt_tokens=max(1, prompt or 0),
        output_tokens=DEFAULT_OUTPUT if output is None else max(1, output),  # some answers of real traces are empty
        at=at,
        messages=messages,
        text=text if isinstance(text, str) and text else None,
    )


def _number(row: Row, names: Iterable[str]) -> int | None:
    for name in names:
        if row.get(name) not in (None, ""):
            value = float(row[name])
            if not 0 <= value <= 10_000_000:
                raise ValueError(f"{name} is {row[name]}")
            return int(value)
    return None


def _time(row: Row) -> float | None:
    for name in TIMES:
        value = row.get(name)
        if value in (None, ""):
            continue
        try:
            seconds = float(value)
        except (TypeError, ValueError):
            when = datetime.fromisoformat(str(value).strip())
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        if not math.isfinite(seconds):
            raise ValueError(f"{name} is {value}")
        return seconds / 1000 if MOONCAKE in row else seconds
    return None


def _messages(row: Row) -> tuple[Mapping[str, str], ...]:
    found = row.get("messages") or ()
    if not isinstance(found, list | tuple):
        raise ValueError("messages is no list")
    for message in found:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise ValueError("a message has a role and a content, both text")
    return tuple({"role": message["role"], "content": message["content"]} for message in found)


def _from_zero(entries: list[Entry]) -> Iterator[Entry]:
    times = [entry.at for entry in entries if entry.at is not None]
    if len(times) < len(entries):
        return (replace(entry, at=None) for entry in entries)
    first = min(times)
    return (replace(entry, at=at - first) for at, entry in sorted(zip(times, entries, strict=True), key=lambda p: p[0]))
