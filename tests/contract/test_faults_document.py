"""The table of faults names tests, and each is there: a row without one would be a promise that nobody keeps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from documents import ROOT

pytestmark = pytest.mark.contract

DOCUMENT = ROOT / "docs" / "FAULTS.md"
HERE = "tests/contract/test_faults_document.py"
NAMED = re.compile(r"`([\w/]+\.py)?::(\w+)`")


def rows(text: str) -> list[list[str]]:
    """The cells of all tables, without their heads."""
    lines = [line.strip().strip("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [row for row in cells if row[-1] not in ("shown by", "---|---|---")]


def named(cell: str) -> Iterator[tuple[str, str]]:
    """Files and names of tests; without a file it is that of the one before."""
    file = ""
    for found in NAMED.finditer(cell):
        file = found[1] or file
        yield file, found[2]


@cache
def known_in(file: str) -> set[str]:
    """The functions and classes of tests that a file has, and what it assigns to a name, as hypothesis' machines."""
    path = ROOT / file
    if not path.is_file():
        return set()
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if name.lower().startswith("test")}


def faults(text: str) -> list[str]:
    """Rows that name no test, and tests that are not there."""
    found = [f"no test: {row[0]}" for row in rows(text) if len(row) != 3 or not list(named(row[2]))]
    return found + [
        f"{file}::{name}" for row in rows(text) for file, name in named(row[-1]) if name not in known_in(file)
    ]


def test_every_row_names_tests_that_are_there() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert len(rows(text)) > 30
    assert not faults(text)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| a | b | nothing |", "no test: a"),
        (f"| a | b | `{HERE}::test_gone` |", f"{HERE}::test_gone"),
        ("| a | b | `tests/gone.py::test_rows` |", "tests/gone.py::test_rows"),
        (f"| a | b | `{HERE}::rows` |", f"{HERE}::rows"),
        (f"| a | b | `{HERE}::test_a_row_without_its_test_is_found`, `::tests_in_vain` |", f"{HERE}::tests_in_vain"),
    ],
)
def test_a_row_without_its_test_is_found(row: str, fault: str) -> None:
    assert faults(f"| what | then | shown by |\n|---|---|---|\n{row}\n") == [fault]
