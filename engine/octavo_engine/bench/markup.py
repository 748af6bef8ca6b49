"""The Markdown of `report` as HTML: paragraphs, tables, lists and what is bold, which is all it has. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

CELLS = re.compile(r"(?<!\\)\|")
BOLD = re.compile(r"\*\*(.+?)\*\*")


def as_html(text: str) -> str:
    """All blocks, in their order; nothing that a server or a user wrote becomes markup."""
    return "\n".join(_block(block.split("\n")) for block in text.strip().split("\n\n") if block)


def _block(lines: Sequence[str]) -> str:
    if lines[0].startswith("|"):
        return _table(lines)
    if lines[0].startswith("- "):
        items = (f"<li>{_inline(line.removeprefix('- '))}</li>" for line in lines)
        return f"<ul>{''.join(items)}</ul>"
    return f"<p>{'<br/>'.join(map(_inline, lines))}</p>"


def _table(lines: Sequence[str]) -> str:
    """In a box of its own, which scrolls where it is wider than the page. The second line says which columns hold
    figures; a row begins with its name."""
    head, rule, *rows = (_cells(line) for line in lines)
    figures = [cell.endswith(":") for cell in rule]
    parts = [_row(head, figures, "th"), *(_row(row, figures, "td") for row in rows)]
    return f'<div class="table"><table>{"".join(parts)}</table></div>'


def _cells(line: str) -> list[str]:
    return [cell.strip().replace(r"\|", "|") for cell in CELLS.split(line)[1:-1]]


def _row(cells: Sequence[str], figures: Sequence[bool], tag: str) -> str:
    parts = []
    for number, (cell, figure) in enumerate(zip(cells, figures, strict=True)):
        name, kind = tag if number else "th", ' class="figure"' if figure else ""
        parts.append(f"<{name}{kind}>{_inline(cell)}</{name}>")
    return f"<tr>{''.join(parts)}</tr>"


def _inline(text: str) -> str:
    return BOLD.sub(r"<strong>\1</strong>", html.escape(text))
