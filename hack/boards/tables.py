"""A table panel's answers as headings and rows, by the panel's own transformations. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from boards.asking import Line

Panel = Mapping[str, Any]


def tabulated(
    panel: Panel, found: Sequence[Line], shown: Callable[[float, str], str]
) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: labels that are not hidden, then the figures of those with the same labels.

    Args:
        found: what all targets of the panel were answered; a figure's line is named by its heading.
        shown: a value with its unit.
    """
    organized = next(item["options"] for item in panel["transformations"] if item["id"] == "organize")
    hidden, figures = organized["excludeByName"], list(organized.get("renameByName", {}).values())
    rows: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for line in found:
        if line.points:
            kept = tuple(sorted((label, text) for label, text in line.labels.items() if label not in hidden))
            row = rows.setdefault(kept, dict(kept))
            if line.name in figures:
                row[line.name] = shown(line.points[-1][1], _unit(panel, line.name))
    labels = dict.fromkeys(label for kept in rows for label, _ in kept)
    headings = [*labels, *(figure for figure in figures if any(figure in row for row in rows.values()))]
    return headings, [[row.get(heading, "") for heading in headings] for row in rows.values()]


def _unit(panel: Panel, heading: str) -> str:
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == heading:
            return next((item["value"] for item in override["properties"] if item["id"] == "unit"), "short")
    return "short"
