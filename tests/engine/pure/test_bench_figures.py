"""From what was measured to figures, comparisons and reports."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.bench import document
from octavo_engine.bench.compared import comparison, comparison_document, sweep_table
from octavo_engine.bench.compared_page import compared_page
from octavo_engine.bench.comparison import Verdict, changed, compare, verdict
from octavo_engine.bench.cost import Cost
from octavo_engine.bench.document import Saved
from octavo_engine.bench.measurement import Measurement
from octavo_engine.bench.outcome import Failure, Outcome
from octavo_engine.bench.page import in_flight, page, pictures, tokens_over_time
from octavo_engine.bench.quantiles import Spread, quantile
from octavo_engine.bench.readings import Reading, read
from octavo_engine.bench.report import report, table
from octavo_engine.bench.summary import Objectives, summarize
from octavo_engine.bench.svg import Axis, Series, chart
from octavo_engine.errors import InvalidConfiguration
from told_server import OpenAI

NUMBERS = st.lists(st.floats(0, 1e4), min_size=1, max_size=60)


@given(NUMBERS, st.floats(0, 1))
def test_quantiles_are_numpys(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == pytest.approx(float(np.quantile(values, share)), abs=1e-6)


@given(NUMBERS)
def test_a_spread_is_of_all_values(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread is not None
    expected = [np.mean(values), *np.percentile(values, (50, 90, 99)), np.max(values)]
    assert [spread.mean, spread.p50, spread.p90, spread.p99, spread.max] == pytest.approx(expected, abs=1e-6)
    assert spread.count == len(values)


def test_nothing_has_no_spread() -> None:
    assert Spread.of([]) is None


def answered(sent: float, first: float = 0.1, gaps: tuple[float, ...] = (0.02, 0.04), **other: Any) -> Outcome:
    known: dict[str, Any] = {
        "due": sent, "turn": 0, "last_token": first + sum(gaps), "output_tokens": len(gaps) + 1,
        "wanted_prompt_tokens": 10, "wanted_output_tokens": 3, "prompt_tokens": 10, "cached_tokens": 5,
    }  # fmt: skip
    return Outcome(**(known | {"sent": sent, "first_token": first, "gaps": gaps} | other))


def failed(failure: Failure, detail: str = "") -> Outcome:
    return Outcome(due=1.0, sent=1.0, turn=0, wanted_prompt_tokens=10, wanted_output_tokens=3, failure=failure,
                   detail=detail)  # fmt: skip


def test_a_summary_counts_whole_answers_and_failures_by_kind() -> None:
    outcomes = [
        answered(0.0),
        answered(0.5, first=0.3, gaps=(), prompt_tokens=12, due=0.25),
        failed(Failure.OVERLOADED, "429: full"),
        failed(Failure.OVERLOADED, "429: still full"),
        failed(Failure.INTERRUPTED),
    ]
    summary = summarize(outcomes, 2.0, Objectives(ttft=0.2))
    assert (summary.sent, summary.whole, summary.failed, summary.interrupted) == (5, 2, 2, 1)
    assert summary.failures == {Failure.OVERLOADED: 2}
    assert summary.examples == {Failure.OVERLOADED: "429: full"}
    assert summary.requests_per_second == 1.0
    assert summary.output_tokens_per_second == 2.0
    assert summary.prompt_tokens_per_second == 11.0
    assert summary.ttft is not None
    assert summary.ttft.max == 0.3
    assert summary.itl is not None
    assert summary.itl.count == 2
    assert summary.tpot is not None
    assert summary.tpot.p50 == pytest.approx(0.03)
    assert summary.cached_share == pytest.approx(10 / 22)
    assert summary.exact_prompts == 0.5
    assert summary.late is not None
    assert summary.late.max == 0.25
    assert summary.good_share == 0.25  # of two answers one is in time, and what failed is never good
    assert summary.good_per_second == 0.5


@pytest.mark.parametrize(
    ("objectives", "kept"),
    [
        (Objectives(ttft=0.1), True),
        (Objectives(ttft=0.09), False),
        (Objectives(itl=0.03), True),  # the request's average, though one gap is longer
        (Objectives(itl=0.029), False),
        (Objectives(e2e=0.16), True),
        (Objectives(e2e=0.15), False),
        (Objectives(ttft=0.1, itl=0.01, e2e=0.2), False),
    ],
)
def test_a_good_request_keeps_each_objective(objectives: Objectives, kept: bool) -> None:
    assert objectives.kept_by(answered(0.0, last_token=0.16 - 1e-12)) is kept
    assert not objectives.kept_by(failed(Failure.CUT))
    assert answered(0.0, gaps=(), last_token=0.1).time_per_output_token is None


def test_nothing_measured_is_a_summary_too() -> None:
    summary = summarize([], 0.0, Objectives(ttft=1.0))
    assert (summary.whole, summary.ttft, summary.good_share) == (0, None, None)


# -- the server's own figures ------------------------------------------------------------------------------------------


def test_gauges_are_summed_over_their_labels() -> None:
    assert read(OpenAI.METRICS, 2.0) == Reading(at=2.0, running=3, waiting=3, kv_usage=0.25, preemptions=7)


def test_vllms_names_are_known_and_what_is_no_number_is_left_out() -> None:
    text = 'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3.0 1712\n'
    text += 'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:gpu_cache_usage_perc 0.5\nvllm:num_requests_waiting NaN\n'
    assert read(text, 0.0) == Reading(at=0.0, running=5, kv_usage=0.5)
    assert read("", 1.0) == Reading(at=1.0)


# -- documents and reports ---------------------------------------------------------------------------------------------


def measured(outcomes: list[Outcome], seconds: float = 10.0, **other: Any) -> Measurement:
    known: dict[str, Any] = {
        "url": "http://127.0.0.1:8000", "model": "tiny", "began": "2026-01-01T00:00:00+00:00", "exact": True,
        "load": {"arrivals": "Poisson, 5/s", "rate": 5.0}, "stopped": False, "readings": (),
        "cost": Cost(cpu=0.2, lag_p99=0.001, lag_max=0.002),
    }  # fmt: skip
    return Measurement(**(known | {"seconds": seconds, "outcomes": tuple(outcomes)} | other))


def run(seed: int, *, count: int = 200, gap: float = 0.02, first: float = 0.1) -> list[Outcome]:
    """Answers whose times are log-normal around what is given."""
    rng = random.Random(seed)
    return [
        answered(
            number * 10.0 / count,
            first=first * rng.lognormvariate(0, 0.2),
            gaps=tuple(gap * rng.lognormvariate(0, 0.2) for _ in range(15)),
        )
        for number in range(count)
    ]


def saved(outcomes: list[Outcome], name: str = "a", serve: dict[str, Any] | None = None, **other: Any) -> Saved:
    measurement = measured(outcomes, **other)
    summary = summarize(outcomes, measurement.seconds, Objectives())
    return document.saved(document.write(measurement, summary, serve), name)


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    outcomes = [*run(0, count=4), failed(Failure.CUT, 'it said "no"')]
    measurement = measured(outcomes, readings=(Reading(at=1.0, running=2.0),))
    summary = summarize(outcomes, 10.0, Objectives(ttft=1.0))
    path = tmp_path / "a.json"
    path.write_text(document.render(document.write(measurement, summary, {"max-num-seqs": "64"})), encoding="utf-8")
    back = document.read(str(path))
    assert (back.name, back.model, back.serve, back.failed) == ("a.json", "tiny", {"max-num-seqs": "64"}, 1)
    for before, after in zip(outcomes, back.outcomes, strict=True):
        assert after.gaps == pytest.approx(before.gaps, abs=1e-6)
        assert after.first_token == pytest.approx(before.first_token, abs=1e-6)
        assert (after.failure, after.detail, after.output_tokens) == (
            before.failure,
            before.detail,
            before.output_tokens,
        )
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert whole["summary"]["failures"] == {"connection cut": 1}
    assert whole["readings"][0]["running"] == 2.0
    empty = document.write(measured([]), summarize([], 1.0, Objectives()))
    assert json.loads(document.render(empty))["requests"] == []


@pytest.mark.parametrize(("text", "words"), [("{", "is no JSON"), ("[]", "was not written"), ("{}", "was not written"),
                                             ('{"octavo_bench": 1}', "is damaged")])  # fmt: skip
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidConfiguration, match=words):
        document.read(str(tmp_path / "x.json"))
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        document.read(str(tmp_path / "y.json"))


def test_the_report_says_what_was_measured_and_how_far_to_trust_it() -> None:
    outcomes = [*run(0), failed(Failure.OVERLOADED, "429: full"), failed(Failure.INTERRUPTED)]
    looks = tuple(Reading(at=float(n), running=n, waiting=0.0, kv_usage=0.1 * n, preemptions=n) for n in range(5))
    cost = Cost(cpu=0.95, lag_p99=0.0, lag_max=0.0)
    measurement = measured(outcomes, readings=looks, cost=cost, stopped=True)
    text = report(measurement, summarize(outcomes, 10.0, Objectives(itl=0.02)))
    for words in (
        "# tiny at http://127.0.0.1:8000\n",
        "200 of 202 requests were answered in 10.0 s (stopped), with 10 prompt tokens",
        "| output tokens |    320.0 |",
        "**Goodput: ",
        "of the server, 5 looks",
        "4 requests were preempted",
        "| queue full (429) |        1 | 429: full ",
        "**In doubt:** the client used 95 % of a processor",
        "Under way when it was stopped: 1 requests",
        "50.0 % of the prompt tokens were found",
    ):
        assert words in text
    assert "exactly as long" not in text


def test_the_report_says_when_prompts_were_not_counted() -> None:
    outcomes = [answered(0.0, prompt_tokens=11)]
    text = report(measured(outcomes, exact=False), summarize(outcomes, 1.0, Objectives()))
    assert "0 % of the prompts were exactly as long as asked for: the server has no /tokenize" in text
    uncounted = [answered(0.0, prompt_tokens=None, cached_tokens=None)]
    assert "does not count tokens" in report(measured(uncounted), summarize(uncounted, 1.0, Objectives()))


def test_a_server_that_refuses_a_field_of_ours_is_told_apart() -> None:
    outcomes = [failed(Failure.REJECTED, "400: Unrecognized request argument supplied: ignore_eos")]
    text = report(measured(outcomes), summarize(outcomes, 1.0, Objectives()))
    assert "ask with --no-ignore-eos" in text
    others = [failed(Failure.REJECTED, "400: no such model")]
    assert "ignore" not in report(measured(others), summarize(others, 1.0, Objectives()))


def test_a_report_of_nothing_is_one() -> None:
    text = report(measured([]), summarize([], 1.0, Objectives()))
    assert "0 of 0 requests" in text
    assert text.count("–") == 20


def test_tables_are_aligned() -> None:
    assert table(("a", "bb"), [("long", "1")]).splitlines() == ["| a    | bb |", "| ---- | -: |", "| long |  1 |"]


class _Page(HTMLParser):
    """What a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_page_needs_nothing_else_and_shows_names_as_text() -> None:
    looks = tuple(Reading(at=float(n), running=n, waiting=0.0, kv_usage=0.1 * n) for n in range(5))
    outcomes = run(0)
    measurement = measured(outcomes, model="<script>&", readings=looks)
    summary = summarize(outcomes, 10.0, Objectives(ttft=0.1))
    seen = _Page()
    text = page(measurement, summary, report(measurement, summary), Objectives(ttft=0.1))
    seen.feed(text)
    assert seen.tags.count("svg") == 8
    assert not {"script", "link", "img", "iframe"} & set(seen.tags)
    assert seen.references == []
    assert "url(" not in text
    assert "@import" not in text


def test_each_picture_is_well_formed_and_shows_its_figures() -> None:
    outcomes = run(0)
    drawings = list(pictures(measured(outcomes), summarize(outcomes, 10.0, Objectives()), Objectives(ttft=0.1)))
    assert len(drawings) == 6
    for drawing in drawings:
        tree = ElementTree.fromstring(drawing)  # noqa: S314 (made here)
        assert tree.find(".//path") is not None or tree.find(".//circle") is not None
        assert "nan" not in drawing
    assert ">objective<" in drawings[0]
    nothing = list(pictures(measured([]), summarize([], 1.0, Objectives()), Objectives(ttft=0.1)))
    assert all("nothing was measured" in drawing for drawing in (nothing[0], nothing[3], nothing[5]))


@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e7)), max_size=30), st.booleans())
def test_a_chart_of_any_numbers_stays_within_its_frame(points: list[tuple[float, float]], log: bool) -> None:
    drawing = chart("a < b", "x", "y", [Series("one", sorted(points), "marks"), Series("two", points)], log_x=log)
    tree = ElementTree.fromstring(drawing)  # noqa: S314 (made here)
    for circle in tree.iter("circle"):
        assert 65 <= float(circle.attrib["cx"]) <= 510
        assert 29 <= float(circle.attrib["cy"]) <= 201


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0, 7, False), (4600, 4900, True), (0, 0.003, False), (3, 40_000, True), (0.2, 0.9, True)]
)
def test_ticks_are_round_and_enough(low: float, high: float, log: bool) -> None:
    ticks = Axis(low, high, 0, 100, log).ticks()
    assert 2 <= len(ticks) <= 12
    assert all(low - 1e-9 <= tick <= high * (1 + 1e-6) for tick in ticks)


def test_tokens_over_time_are_all_tokens() -> None:
    outcomes = run(0)
    points = tokens_over_time(outcomes, 10.0)
    width = points[1][0]
    assert math.fsum(value for _, value in points) * width == pytest.approx(200 * 16)


def test_in_flight_ends_at_none() -> None:
    points = in_flight([answered(0.0, last_token=2.0), answered(1.0, last_token=0.5), failed(Failure.REFUSED)])
    assert max(count for _, count in points) == 2
    assert points[-1] == (2.0, 0.0)


# -- comparisons -------------------------------------------------------------------------------------------------------


def verdicts(before: Saved, after: Saved) -> dict[str, Verdict]:
    return {difference.name: difference.verdict for difference in compare(before, after)}


def test_two_runs_of_the_same_differ_by_noise() -> None:
    """Of many pairs hardly a figure is called real: at 99 %, some of a few hundred may be."""
    called = [found for seed in range(8) for found in verdicts(saved(run(2 * seed)), saved(run(2 * seed + 1))).values()]
    assert sum(found is not Verdict.NOISE for found in called) <= len(called) // 20


def test_what_became_faster_is_found_and_only_that() -> None:
    before, after = saved(run(1)), saved(run(2, gap=0.018))
    found = verdicts(before, after)
    assert found["inter-token latency, P50"] is Verdict.BETTER
    assert found["end to end, P50"] is Verdict.BETTER
    assert found["time to first token, P50"] is Verdict.NOISE
    assert verdicts(after, before)["inter-token latency, P99"] is Verdict.WORSE
    (itl,) = (item for item in compare(before, after) if item.name == "inter-token latency, P50")
    assert itl.change == pytest.approx(-0.1, abs=0.02)
    assert itl.low < itl.change < itl.high < 0


def test_more_tokens_a_second_are_better() -> None:
    found = verdicts(saved(run(1, count=200)), saved(run(1, count=300)))
    assert found["output tokens"] is Verdict.BETTER
    assert found["requests"] is Verdict.BETTER


def test_a_disturbance_that_many_requests_share_is_no_difference() -> None:
    """A fifth of one run was slow, all at once: were requests independent, the change would look certain."""
    disturbed = run(2)
    for number in range(80, 120):
        item = disturbed[number]
        disturbed[number] = replace(item, first_token=(item.first_token or 0) * 3)
    assert verdicts(saved(run(1)), saved(disturbed))["time to first token, P90"] is Verdict.NOISE


def test_of_few_requests_nothing_is_said() -> None:
    assert set(verdicts(saved(run(1, count=9)), saved(run(2, count=9, gap=0.1))).values()) == {Verdict.TOO_FEW}
    assert compare(saved([]), saved(run(1))) == []


@pytest.mark.parametrize(
    ("low", "high", "more", "expected"),
    [(-0.1, 0.1, True, Verdict.NOISE), (0.1, 0.2, True, Verdict.BETTER), (0.1, 0.2, False, Verdict.WORSE),
     (-0.2, -0.1, True, Verdict.WORSE), (-0.2, -0.1, False, Verdict.BETTER)],
)  # fmt: skip
def test_a_verdict_is_where_the_interval_lies(low: float, high: float, more: bool, expected: Verdict) -> None:
    assert verdict(low, high, more_is_better=more) is expected


def test_a_comparison_names_what_was_changed() -> None:
    before = saved(run(1), "a.json", {"max-num-seqs": "64"})
    after = saved(run(2, gap=0.01), "b.json", {"max-num-seqs": "128"})
    text = comparison(before, after)
    assert "- max-num-seqs: 64 → 128" in text
    assert "more than one setting" not in text
    assert "better" in text
    other = saved(run(2), "b.json", {"max-num-seqs": "128"}, model="other", load={"arrivals": "x"})
    assert changed(before, other).keys() == {"max-num-seqs", "rate", "model"}
    assert "more than one setting" in comparison(before, other)
    told = comparison_document(before, after)
    assert told["changed"] == {"max-num-seqs": ["64", "128"]}
    assert json.loads(json.dumps(told))["differences"][0]["verdict"]
    assert "measure longer" in comparison(saved(run(1, count=3)), saved(run(2, count=3)))
    assert "- no setting" in comparison(before, before)


def test_a_page_shows_both_measurements_in_each_picture() -> None:
    before, after = saved(run(1), "<a>.json"), saved(run(2, gap=0.01), "b.json")
    text = compared_page(before, after, comparison(before, after))
    assert "<h1>&lt;a&gt;.json → b.json</h1>" in text
    assert "<td>better</td>" in text
    drawings = [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", text)]  # noqa: S314 (made here)
    assert [drawing.findtext("text") for drawing in drawings] == [
        "Time to first token",
        "Inter-token latency",
        "End to end",
        "Time to first token, as sent",
    ]
    for drawing in drawings:
        assert {"before", "after"} <= {each.text for each in drawing.iter("text")}
        inks = {each.get("stroke") or each.get("fill") for each in drawing.iter() if each.tag in ("path", "circle")}
        assert len(inks - {"none"}) == 2
    assert compared_page(saved([]), saved([]), "").count("nothing was measured") == 4


def test_a_sweep_is_one_row_for_each_value() -> None:
    rows = sweep_table(
        "max-num-seqs", ("64", "128"), [saved(run(1)), saved(run(2, gap=0.01))], Objectives()
    ).splitlines()
    assert rows[2].startswith("| 64 ")
    assert rows[2].rstrip(" |").endswith("–")
    assert "ITL P50 -50 %" in rows[3].replace("-49 %", "-50 %").replace("-51 %", "-50 %")
    assert sweep_table("x", ("1",), [saved([])], Objectives()).count("–") >= 5
