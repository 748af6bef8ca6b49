"""The report's Markdown as HTML."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.bench.markup import as_html
from octavo_engine.bench.report import table

TEXT = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="\\*"), min_size=1, max_size=12)


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<body>{as_html(text)}</body>")  # noqa: S314 (made here)


def test_paragraphs_keep_their_lines_and_what_is_bold() -> None:
    assert as_html("one\ntwo **three** four\n\nfive\n") == "<p>one<br/>two <strong>three</strong> four</p>\n<p>five</p>"


def test_lists_have_their_notes() -> None:
    assert [item.text for item in parsed("- one\n- two - three").iter("li")] == ["one", "two - three"]


def test_a_row_begins_with_its_name_and_figures_stand_right() -> None:
    rows = [*parsed(table(("ms", "P50"), [("first token", "12.5")])).iter("tr")]
    assert [[(cell.tag, cell.get("class"), cell.text) for cell in row] for row in rows] == [
        [("th", None, "ms"), ("th", "figure", "P50")],
        [("th", None, "first token"), ("td", "figure", "12.5")],
    ]


@given(st.lists(st.lists(TEXT, min_size=2, max_size=2), min_size=1, max_size=4))
def test_cells_hold_whatever_they_are_told(rows: list[list[str]]) -> None:
    """Bars, quotes, tags: what a server says is text."""
    cells = [cell for row in rows for cell in row]
    shown = ["".join(cell.itertext()) for cell in parsed(table(("a", "b"), rows)).iter() if cell.tag in ("th", "td")]
    assert shown[2:] == cells
