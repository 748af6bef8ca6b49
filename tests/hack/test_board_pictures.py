"""Boards drawn without Grafana: variables filled in, series named by their legends, each panel in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from boards.asking import Line, Span, filled, lines, named
from boards.pictures import COLUMNS, draw, shown
from boards.tables import tabulated

BOARDS = sorted((Path(__file__).resolve().parents[2] / "dashboards").glob("*.json"))


def test_every_variable_is_replaced() -> None:
    expr = 'rate(x{namespace="$namespace",pod=~"$pod"}[$__rate_interval])'
    values = {"namespace": "team", "pod": ".*", "__rate_interval": "1m"}
    assert filled(expr, values) == 'rate(x{namespace="team",pod=~".*"}[1m])'


def test_a_name_that_begins_another_is_not_taken_for_it() -> None:
    assert filled("$pods $pod", {"pod": "a", "pods": "b"}) == "b a"


def test_a_variable_without_a_value_is_named() -> None:
    with pytest.raises(ValueError, match="--set service="):
        filled('x{a="$service"}', {"namespace": "team"})


def test_a_series_is_named_by_its_legend() -> None:
    labels = {"__name__": "x", "pod": "assistant-1", "kind": "decode"}
    assert named("P99 {{kind}} {{gone}}", labels) == "P99 decode"
    assert named("", labels) == "decode assistant-1"


def test_answers_over_time_and_of_the_moment_are_read_alike() -> None:
    over_time = {"data": {"result": [{"metric": {"pod": "a"}, "values": [[1, "2"], [2, "NaN"], [3, "4.5"]]}]}}
    moment = {"data": {"result": [{"metric": {"pod": "a"}, "value": [3, "4.5"]}]}}
    assert lines(over_time, "{{pod}}") == [Line("a", {"pod": "a"}, ((1.0, 2.0), (3.0, 4.5)))]
    assert lines(moment, "{{pod}}") == [Line("a", {"pod": "a"}, ((3.0, 4.5),))]


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.25, "percentunit", "25%"),
        (0.02, "s", "20 ms"),
        (2.0, "s", "2 s"),
        (12_000, "suffix: tok/s", "12k tok/s"),
        (2_000, "suffix: tok/s", "2k tok/s"),
        (3, "short", "3"),
    ],
)
def test_values_are_short(value: float, unit: str, words: str) -> None:
    assert shown(value, unit) == words


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_panel_is_drawn_where_it_stands(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    asked = []

    def answers(panel: dict) -> list[Line]:
        asked.append(panel["title"])
        return [Line("series", {}, ((0.0, 1.0), (60.0, 2.0)))]

    figure = draw(board, answers, Span(0.0, 120.0, 60.0))
    assert len(figure.axes) == len(board["panels"])
    assert len(asked) == sum(panel["type"] not in ("row", "text") for panel in board["panels"])
    for axes, panel in zip(figure.axes, board["panels"], strict=True):
        place, box = panel["gridPos"], axes.get_position()
        assert place["x"] / COLUMNS <= box.x0 < box.x1 <= (place["x"] + place["w"]) / COLUMNS
        assert 0 <= box.y0 < box.y1 <= 1
        assert panel["title"] in {axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)}
        if panel["type"] == "timeseries":
            assert list(axes.lines[0].get_xdata()) == [-2.0, -1.0]
            assert list(axes.lines[0].get_ydata()) == [1.0, 2.0]
            assert axes.get_xlim() == (-2.0, 0.0)
            bottom, top = axes.get_ylim()
            assert bottom < 0.0
            assert top > 2.0


def table(board: str, title: str) -> dict[str, Any]:
    path = next(path for path in BOARDS if path.stem == board)
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    found: dict[str, Any] = next(panel for panel in panels if panel["type"] == "table" and panel["title"] == title)
    return found


def test_figures_of_one_service_are_one_row() -> None:
    one, two = ({"namespace": "team", "inferenceservice": name} for name in ("a", "b"))
    answers = [
        Line("ready", one, ((0.0, 2.0),)),
        Line("ready", two, ((0.0, 1.0),)),
        Line("first token P99", one, ((0.0, 0.5),)),
        Line("KV use", two, ((0.0, 0.25),)),
    ]
    headings, rows = tabulated(table("fleet", "Services"), answers, shown)
    assert headings == ["inferenceservice", "namespace", "ready", "first token P99", "KV use"]
    assert rows == [["a", "team", "2", "500 ms", ""], ["b", "team", "1", "", "25%"]]


def test_a_table_that_is_too_wide_is_turned() -> None:
    """An engine has a dozen labels, and half of the board for them."""
    panel, texts = table("service", "Engine"), {f"label_{number:02}": str(number) for number in range(12)}
    board = {"panels": [panel | {"gridPos": panel["gridPos"] | {"y": 0}}]}
    (axes,) = draw(board, lambda _: [Line("", texts, ((0.0, 1.0),))], Span(0.0, 120.0, 60.0)).axes
    cells = axes.tables[0].get_celld()
    assert len(cells) == 24
    assert [cells[11, column].get_text().get_text() for column in (0, 1)] == ["label_11", "11"]


def test_a_table_of_labels_shows_those_that_grafana_would() -> None:
    labels = {"__name__": "x", "job": "octavo", "type": "Ready", "status": "True", "reason": "Serving"}
    headings, rows = tabulated(table("service", "Conditions"), [Line("", labels, ((0.0, 1.0),))], shown)
    assert (headings, rows) == (["reason", "status", "type"], [["Serving", "True", "Ready"]])
