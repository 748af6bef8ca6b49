"""A chart's values as a table, read from the comments of its `values.yaml`: one text for both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

BEGIN, END = "<!-- values: generated from values.yaml by `make generate` -->", "<!-- end of values -->"


@dataclass(frozen=True)
class Value:
    """One value: its dotted name, its default as YAML would write it, and what it means."""

    name: str
    default: str
    meaning: str


def read(text: str) -> list[Value]:
    """The values of a `values.yaml`, in its order.

    A key with a comment above it is a value, and what lies below it is its default; a key without one is a group.

    Raises:
        ValueError: a key without a comment holds no group.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_walk(root, text.splitlines(), ""))


def _walk(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[Value]:
    for key, child in node.value:
        name = prefix + key.value
        meaning = _comment_above(lines, key.start_mark.line)
        if meaning:
            yield Value(name, _flow(child), meaning)
        elif isinstance(child, yaml.MappingNode) and child.value:
            yield from _walk(child, lines, f"{name}.")
        else:
            raise ValueError(f"{name} has no comment that says what it means")


def _comment_above(lines: list[str], line: int) -> str:
    indent = len(lines[line]) - len(lines[line].lstrip())
    mark = " " * indent + "# "
    found: list[str] = []
    while line > 0 and lines[line - 1].startswith(mark):
        line -= 1
        found.insert(0, lines[line].removeprefix(mark).strip())
    return " ".join(found)


def _flow(node: yaml.Node) -> str:
    loader = yaml.SafeLoader("")
    value: Any = loader.construct_object(node, deep=True)
    return json.dumps(value) if not isinstance(value, str) else value or '""'


def table(values: list[Value]) -> str:
    """The Markdown table."""
    rows = [f"| `{value.name}` | `{value.default}` | {value.meaning.replace('|', '&#124;')} |" for value in values]
    return "\n".join(["| value | default | |", "|---|---|---|", *rows])


def with_table(readme: str, values: str) -> str:
    """A README with the table of `values` (the text of values.yaml) between its two marks.

    Raises:
        ValueError: the marks are missing.
    """
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the README has no lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{table(read(values))}\n{END}{tail}"
