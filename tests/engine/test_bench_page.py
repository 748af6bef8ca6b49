"""The page that `octavo bench --html` writes, as a real browser shows it: wide and narrow, by day and by night."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browser import Browser, Page, Scheme
from octavo_engine.bench.cost import Cost
from octavo_engine.bench.measurement import Measurement
from octavo_engine.bench.outcome import Failure, Outcome
from octavo_engine.bench.page import page as written
from octavo_engine.bench.readings import Reading
from octavo_engine.bench.report import report
from octavo_engine.bench.summary import Objectives, summarize

PICTURES = sorted((Path(__file__).parents[2] / "docs").rglob("*.svg"))
WIDE, NARROW = 1280, 400
SMALLEST = 10
"""Pixels of a line of text, which letters are three quarters of."""

READABLE = 4.5
"""Of contrast, between text and what is behind it: WCAG's level AA."""

SVGS = """[...document.querySelectorAll('svg')].map(svg => {
  const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] };
  return { frame: box(svg),
           texts: [...svg.querySelectorAll('text')].map(text => ({ says: text.textContent, box: box(text) })),
           drawn: [...svg.querySelectorAll('path, circle')].map(box) } })"""
BLOCKS = """[...document.querySelectorAll('h1, p, li, .table, svg, figure')].map(e => {
  const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom, e.tagName] })"""
INKS = """[...document.querySelectorAll('h1, p, li, td, th, svg text')].map(e => {
  const style = getComputedStyle(e); return e instanceof SVGElement ? style.fill : style.color })"""
PAPER = "getComputedStyle(document.body).backgroundColor"

Box = list[float]


def answered(draw: random.Random, sent: float) -> Outcome:
    """One answer, with waits as they are on a busy server."""
    gaps = tuple(draw.lognormvariate(-3.6, 0.5) for _ in range(60))
    first = draw.lognormvariate(-0.9, 0.8)
    return Outcome(
        due=sent,
        sent=sent,
        turn=0,
        first_token=first,
        last_token=first + math.fsum(gaps),
        gaps=gaps,
        wanted_prompt_tokens=512,
        wanted_output_tokens=61,
        prompt_tokens=512,
        cached_tokens=384,
        output_tokens=61,
    )


def failed(failure: Failure, detail: str) -> Outcome:
    return Outcome(
        due=1.0, sent=1.0, turn=0, wanted_prompt_tokens=8, wanted_output_tokens=8, failure=failure, detail=detail
    )


def busy() -> Measurement:
    """A minute with many requests, failures that have much to say, and a server that was looked at."""
    draw = random.Random(1)
    told = "400: " + "this message is as long as a server may make it, and holds_one_word_without_any_blank_in_it " * 3
    outcomes = [answered(draw, draw.uniform(0, 55)) for _ in range(160)]
    outcomes += [
        failed(Failure.REJECTED, told),
        failed(Failure.OVERLOADED, "429: the queue is full | try again <b>later</b>"),
    ]
    looks = (
        Reading(
            at=float(at), running=float(draw.randint(1, 64)), waiting=float(draw.randint(0, 40)), kv_usage=draw.random()
        )
        for at in range(60)
    )
    return measured(tuple(outcomes), tuple(looks), 1.0)


def measured(outcomes: tuple[Outcome, ...], looks: tuple[Reading, ...], seconds: float) -> Measurement:
    return Measurement(
        url="http://assistant.team-one.svc.cluster.local:8000",
        model="organisation/a-model-with-a-long-name-128B-Instruct-v2.5",
        began="2026-01-01T00:00:00+00:00",
        seconds=60.0 * seconds,
        load={"rate": 2.5, "shared_prefix_tokens": 384, "arrivals": "Poisson, 2.5/s"},
        exact=True,
        outcomes=outcomes,
        readings=looks,
        cost=Cost(cpu=0.11, lag_p99=0.0004, lag_max=0.02),
        stopped=False,
    )


def write(measurement: Measurement, place: Path) -> Path:
    objectives = Objectives(ttft=0.5, e2e=3.0)
    summary = summarize(measurement.outcomes, measurement.seconds, objectives)
    place.write_text(written(measurement, summary, report(measurement, summary), objectives), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with Browser() as browser:
        yield browser.page()


@pytest.fixture(scope="module")
def busy_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(busy(), tmp_path_factory.mktemp("pages") / "busy.html")


@pytest.fixture(
    params=[(WIDE, "light"), (WIDE, "dark"), (NARROW, "light"), (NARROW, "dark")], ids=lambda it: f"{it[0]}-{it[1]}"
)
def shown(request: pytest.FixtureRequest, tab: Page, busy_page: Path) -> tuple[Page, int, Scheme]:
    width, scheme = request.param
    tab.open(busy_page, width=width, scheme=scheme)
    return tab, width, scheme


def test_it_fetches_nothing_and_complains_of_nothing(shown: tuple[Page, int, Scheme], busy_page: Path) -> None:
    page, _, _ = shown
    page.ask("1")  # what was on its way is there
    assert page.fetched == [busy_page.as_uri()]
    assert page.complaints == []


def test_it_is_no_wider_than_the_window_and_nothing_lies_on_anything(shown: tuple[Page, int, Scheme]) -> None:
    page, width, _ = shown
    assert page.ask("document.documentElement.scrollWidth") == width
    blocks = page.ask(BLOCKS)
    assert len(blocks) > 12
    for left, _, right, _, name in blocks:
        assert 0 <= left < right <= width, name
    for one, other in combinations(blocks, 2):
        assert not overlap(one[:4], other[:4], 1.0), (one, other)


def test_pictures_are_drawn_and_their_words_are_whole_and_apart(shown: tuple[Page, int, Scheme]) -> None:
    page, _, _ = shown
    pictures = page.ask(SVGS)
    assert len(pictures) == 8
    for picture in pictures:
        frame, texts = picture["frame"], picture["texts"]
        assert frame[2] - frame[0] > 300
        assert frame[3] - frame[1] > 130
        assert any(box[2] > box[0] and box[3] > box[1] for box in picture["drawn"]), texts[0]["says"]
        for text in texts:
            assert within(text["box"], frame), text
            assert len(text["says"]) < 3 or height(text["box"]) >= SMALLEST, text
        for one, other in combinations(texts, 2):
            assert not overlap(shrunk(one["box"]), shrunk(other["box"]), 0.5), (one, other)


def test_words_can_be_read(shown: tuple[Page, int, Scheme]) -> None:
    page, _, scheme = shown
    paper = colour(page.ask(PAPER))
    assert (luminance(paper) > 0.5) == (scheme == "light")
    for ink in set(page.ask(INKS)):
        assert contrast(colour(ink), paper) >= READABLE, ink


def test_the_curves_are_on_the_picture(shown: tuple[Page, int, Scheme]) -> None:
    page, width, _ = shown
    image = Image.open(io.BytesIO(page.picture())).convert("RGB")
    assert image.width == width
    for picture in page.ask(SVGS):
        pixels: Any = image.crop(tuple(map(round, picture["frame"]))).get_flattened_data()
        assert sum(max(pixel) - min(pixel) > 60 for pixel in pixels) > 50, picture["texts"][0]["says"]


def test_what_a_server_said_is_text(tab: Page, busy_page: Path) -> None:
    tab.open(busy_page, width=WIDE, scheme="light")
    assert "429: the queue is full | try again <b>later</b>" in tab.ask("document.body.innerText")
    assert tab.ask("document.querySelectorAll('b').length") == 0


def test_a_page_of_nothing_says_so(tab: Page, tmp_path: Path) -> None:
    tab.open(write(measured((), (), 0.0), tmp_path / "nothing.html"), width=NARROW, scheme="light")
    assert tab.ask("document.body.innerText").count("nothing was measured") >= 4
    assert tab.ask("document.documentElement.scrollWidth") == NARROW
    assert tab.complaints == []


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_no_word_of_the_documentations_pictures_is_cut(tab: Page, path: Path) -> None:
    """matplotlib places words by its own font's widths; a browser writes them in another."""
    tab.open(path, width=WIDE, height=1_600, scheme="light")
    (picture,) = tab.ask(SVGS)
    assert len(picture["texts"]) > 5
    assert [text for text in picture["texts"] if not within(text["box"], picture["frame"])] == []
    assert tab.complaints == []


def within(box: Box, frame: Box) -> bool:
    return frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]


def height(box: Box) -> float:
    """Of a line of text that may stand upright."""
    return min(box[2] - box[0], box[3] - box[1])


def overlap(one: Box, other: Box, least: float) -> bool:
    """Whether two boxes have more than `least` pixels in common, both ways."""
    across, down = (min(one[at + 2], other[at + 2]) - max(one[at], other[at]) for at in (0, 1))
    return across > least and down > least


def shrunk(box: Box) -> Box:
    """A line's box without the room above and below its letters."""
    spare = 0.2 * (box[3] - box[1])
    return [box[0], box[1] + spare, box[2], box[3] - spare]


def colour(css: str) -> list[float]:
    """Of `rgb(1, 2, 3)`, as shares."""
    return [float(part) / 255 for part in css.partition("(")[2].rstrip(")").split(",")[:3]]


def luminance(rgb: list[float]) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
