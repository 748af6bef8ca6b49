"""What `make bench-rag` asks, of whom, and what it makes of the answers: all but the measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from boards.asking import Line, Span
from cpu_figures.results import Kept
from octavo_engine.bench.cost import Cost
from octavo_engine.bench.measurement import Measurement
from octavo_engine.bench.outcome import Failure, Outcome
from octavo_engine.bench.readings import Reading
from octavo_engine.bench.settings import BenchSettings
from octavo_engine.config import ServeSettings
from rag_case import board, load, picture, serving, table, words
from rag_case.gains import gains
from rag_case.load import WAYS, Load, Way

LOAD = Load(rate=0.5, count=50)
TOLD = board.Told(
    {str(question): 0.5 for question in board.FIGURES},
    {str(question): [(0.0, 0.5), (2.0, 0.75)] for question in board.CURVES},
)
CELL = serving.Cell(
    first_tokens=(1.0, 2.0, 3.0),
    gaps=(0.02, 0.03, 0.04),
    prompt_tokens=4_800,
    cached_tokens=2_976,
    waiting=(0.0, 2.0),
    lag=0.001,
    board=TOLD,
)


def slower(cell: serving.Cell, times: float) -> serving.Cell:
    """The same load with all times longer."""
    return replace(
        cell,
        first_tokens=tuple(times * value for value in cell.first_tokens),
        gaps=tuple(times * value for value in cell.gaps),
        board=replace(cell.board, figures=dict.fromkeys(cell.board.figures, times * 0.5)),
    )


CELLS = {way: slower(CELL, 1.0 + number) for number, way in enumerate(WAYS)}


def outcome(**changes: Any) -> Outcome:
    facts: dict[str, Any] = {"due": 0.0, "sent": 0.0, "turn": 0, "wanted_prompt_tokens": 8, "wanted_output_tokens": 3}
    return Outcome(**facts | changes)


def measurement(began: str, *outcomes: Outcome, waiting: Sequence[float] = ()) -> Measurement:
    return Measurement(
        url="http://127.0.0.1:1",
        model="m",
        began=began,
        seconds=10.0,
        load={},
        exact=True,
        outcomes=outcomes,
        readings=tuple(Reading(at=0.0, waiting=value) for value in waiting),
        cost=Cost(cpu=0.1, lag_p99=0.002, lag_max=0.1),
        stopped=False,
    )


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.key)
def test_a_server_understands_how_it_is_started(way: Way) -> None:
    command = serving.place(Path("model"), way, threads=2).recipe.command
    engine = ServeSettings.parse(command[command.index("serve") + 1 :]).engine
    assert (engine.enable_prefix_caching, engine.enable_chunked_prefill) == (way.caching, way.chunking)
    assert engine.max_num_batched_tokens == engine.max_model_len == load.WINDOW


def test_the_client_understands_what_it_is_to_ask() -> None:
    questions = BenchSettings.parse(LOAD.questions("http://127.0.0.1:1", "http://127.0.0.1:2"), {})
    beside = BenchSettings.parse(LOAD.beside("http://127.0.0.1:1"), {})
    cold = BenchSettings.parse(load.cold("http://127.0.0.1:1"), {})
    assert questions.shape == cold.shape, "the rate is made from questions like those that come"
    assert questions.shape.shared_prefix == 1_000
    assert len({settings.config.seed for settings in (questions, beside, cold)}) == 3
    longest = questions.shape.shared_prefix + questions.shape.prompt.high + questions.shape.output.high
    assert longest < load.WINDOW - 100, "the chat template's tokens come on top"


def test_the_rate_follows_the_machine() -> None:
    assert Load.of(1.25, 60) == Load(rate=0.48, count=60)
    assert Load.of(2.5, 60).rate == Load.of(1.25, 60).rate / 2


def test_each_question_is_a_line_of_the_board_in_the_repository() -> None:
    for question, target in board.targets().items():
        assert "$__rate_interval" in target["expr"], question
        assert "$service" in target["expr"], question


def test_the_board_is_asked_for_the_whole_time_and_for_what_happened_in_it() -> None:
    asked: list[tuple[str, Span]] = []

    def prometheus(target: board.Target, variables: Mapping[str, str], span: Span) -> list[Line]:
        asked.append((variables["__rate_interval"], span))
        return [] if "prefix_cache" in target["expr"] else [Line("x", {}, ((span.start, 1.0), (span.end, 2.0)))]

    told = board.told(prometheus, "cached-chunks", 1_000.0, 1_110.0)
    assert told.figures[str(board.FIRST["P50"])] == 2.0
    assert told.figures[str(board.HITS)] is None, "no series, no figure"
    assert told.curves[str(board.BETWEEN["P99"])] == [(0.0, 1.0), (110.0, 2.0)]
    assert ("110s", Span(1_110.0, 1_110.0, 1.0)) in asked
    assert ("20s", Span(1_000.0, 1_110.0, 2.0)) in asked


def test_prometheus_gives_the_labels_that_the_board_chooses_by() -> None:
    (job,) = board.configuration("cached-chunks", 8001)["scrape_configs"]
    (static,) = job["static_configs"]
    assert static["targets"] == ["127.0.0.1:8001"]
    assert static["labels"].keys() == {"namespace", "inferenceservice", "pod"}


def test_a_cell_holds_what_both_saw_from_the_first_question_on() -> None:
    asked = (
        outcome(first_token=1.0, prompt_tokens=1_600, cached_tokens=992, output_tokens=3),
        outcome(first_token=2.0, prompt_tokens=1_600, cached_tokens=992, output_tokens=3),
    )
    read = (
        outcome(sent=0.5, first_token=0.25, gaps=(0.5, 1.0, 0.25), output_tokens=4),
        outcome(sent=2.0, first_token=0.5, gaps=(0.125,), failure=Failure.INTERRUPTED),
    )
    made = serving.cell(
        measurement("2026-01-01T00:00:02+00:00", *asked, waiting=(0.0, 3.0)),
        measurement("2026-01-01T00:00:00+00:00", *read),
        TOLD,
    )
    assert made.first_tokens == (1.0, 2.0)
    assert made.gaps == (1.0, 0.25, 0.125), "those that ended within two seconds came before the questions"
    assert made.cached_share == 0.62
    assert made.waiting == (0.0, 3.0)


def test_a_request_that_failed_is_an_error() -> None:
    whole, failed = outcome(first_token=1.0), outcome(failure=Failure.OVERLOADED, detail="429: full")
    began = "2026-01-01T00:00:00+00:00"
    for questions, others in (((whole, failed), (whole,)), ((whole,), (failed,))):
        with pytest.raises(serving.NotAnswered, match="429: full"):
            serving.cell(measurement(began, *questions), measurement(began, *others), TOLD)


def test_a_cell_is_kept_as_it_was(tmp_path: Path) -> None:
    kept, key = Kept(tmp_path), {"what": "cached-chunks"}
    kept.keep(key, asdict(CELL))
    assert serving.Cell.read(kept.find(key) or {}) == CELL


def test_gains_are_of_one_setting_each_beside_the_default() -> None:
    found = gains(CELLS)
    assert [(gain.on, gain.off) for gain in found[:2]] == [(2.0, 4.0), (pytest.approx(2.8), pytest.approx(5.6))]
    assert all(gain.off == pytest.approx(gain.on * (2 if gain.setting == "prefix caching" else 3)) for gain in found)
    assert all(gain.visible for gain in found)
    level = gains(dict.fromkeys(WAYS, CELL))
    assert not any(gain.visible for gain in level)
    assert all("NOT VISIBLY LOWER" in str(gain) for gain in level)


@pytest.mark.parametrize(
    ("document", "said", "name"),
    [("rag.md", "50 questions come at random times, 0.50 a second", "no cache, whole prompts"),
     ("rag.ja.md", "50 件の質問を平均毎秒 0.50 件、", "キャッシュなし・分割なし")],
)  # fmt: skip
def test_a_table_has_all_ways_in_the_documents_language(document: str, said: str, name: str) -> None:
    machine = {"cpu": "a processor", "threads": 2}
    text = table.block(words.of(document), machine, LOAD, CELLS)
    assert said in text
    assert "{" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows[:6]}) == 1, "each row has as many cells as the head"
    assert len({row.count("|") for row in rows[6:]}) == 1
    assert [row.startswith(f"| {name} |") for row in rows].count(True) == 2
    assert f"| {name} | 8,000 | 11,200 | 11,920 | 120 | 159 | 160 | 62% | 2 |" in rows


def test_the_picture_is_drawn_alike_from_like_figures(tmp_path: Path) -> None:
    for file in ("a.svg", "b.svg"):
        picture.draw(CELLS, tmp_path / file)
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert drawn == (tmp_path / "b.svg").read_text(encoding="utf-8")
    assert all(table.name(words.ENGLISH, way) in drawn for way in WAYS)
    assert "Inter-token latency, P99" in drawn


def test_bars_on_a_logarithmic_scale_begin_below_the_lowest() -> None:
    low, high = picture.made(CELLS).axes[1].get_ylim()
    assert 0 < low < 30
    assert high > 160
