"""What a real Prometheus answers to a board's queries: HTTP at one end, lines with names at the other."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIMEOUT = 10.0


@dataclass(frozen=True)
class Span:
    """A stretch of time: Unix seconds, and seconds from point to point."""

    start: float
    end: float
    step: float


@dataclass(frozen=True)
class Line:
    """One series as it is drawn: its name, its labels, and its points as Unix seconds and value."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


def filled(expr: str, variables: Mapping[str, str]) -> str:
    """A query with the board's variables replaced, the longest names first, as `$pod` may begin another's name.

    Raises:
        ValueError: a variable has no value.
    """
    for name in sorted(variables, key=len, reverse=True):
        expr = expr.replace(f"${name}", variables[name])
    if left := re.search(r"\$\w+", expr):
        raise ValueError(f"{left[0]} has no value: give it with --set {left[0][1:]}=VALUE")
    return expr


def named(legend: str, labels: Mapping[str, str]) -> str:
    """A series' name by the target's legend, `{{label}}` replaced; without a legend, the labels' values."""
    if not legend:
        return " ".join(value for label, value in sorted(labels.items()) if label != "__name__")
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend).strip()


def lines(answer: Mapping[str, Any], legend: str) -> list[Line]:
    """The series of an answer of `/api/v1/query` or `query_range`; points that are no numbers are left out."""
    found = []
    for item in answer["data"]["result"]:
        pairs = item["values"] if "values" in item else [item["value"]]
        points = tuple((float(at), float(value)) for at, value in pairs if value not in ("NaN", "+Inf", "-Inf"))
        found.append(Line(named(legend, item["metric"]), item["metric"], points))
    return found


def ask(prometheus: str, target: Mapping[str, Any], variables: Mapping[str, str], span: Span) -> list[Line]:
    """What a target of a panel shows: over the span, or, where it asks for the moment, at its end.

    Raises:
        urllib.error.URLError: Prometheus is not there, or refuses the query.
    """
    expr = filled(target["expr"], variables)
    if target.get("instant"):
        path, query = "query", {"query": expr, "time": f"{span.end:.3f}"}
    else:
        over = {"start": f"{span.start:.3f}", "end": f"{span.end:.3f}", "step": f"{span.step:g}"}
        path, query = "query_range", {"query": expr} | over
    address = f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(address, timeout=_TIMEOUT) as response:
        return lines(json.load(response), target.get("legendFormat", ""))
