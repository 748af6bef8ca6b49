"""Dashboards and rules are what the code says, and every query of theirs names series and labels that are exported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from promql_parser import AggregateExpr, Call, MatchOp, MatrixSelector, VectorSelector

from boards.__main__ import BOARDS as WRITTEN
from boards.__main__ import FOLDER, RULES, outdated
from boards.symptoms import SYMPTOMS
from octavo_engine.diagnosis.findings import Limiter
from prometheus_series import TARGET_LABELS, Series, engine_series, operator_series

pytestmark = pytest.mark.contract

CHECKOUT = Path(__file__).parents[2]
BOARDS = sorted(FOLDER.glob("*.json"))
VARIABLES = {"$__rate_interval": "5m", "$percentile": "0.99"}  # those that stand outside of strings
THE_FOUR = ["Time to first token", "Inter-token latency", "Throughput", "Queue depth"]
ONE_SERVICE = ["datasource", "namespace", "service", "pod"]
CHOSEN = {
    "service.json": [*ONE_SERVICE, "percentile"],
    "what-is-wrong.json": ONE_SERVICE,
    "fleet.json": ["datasource", "namespace", "service"],
    "operator.json": ["datasource", "pod"],
}
UNITLESS = ("table", "text")


def load(path: Path) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return board


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions(board: dict[str, Any]) -> Iterator[str]:
    """Every PromQL of a board: the panels' and what stands inside the variables' `label_values(...)`."""
    for panel in panels(board):
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (annotation["expr"] for annotation in board["annotations"]["list"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert found, variable["query"]
            yield f"group by ({found[2]}) ({found[1]})"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / RULES).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def parse(expr: str) -> promql_parser.Expr:
    for variable, value in VARIABLES.items():
        expr = expr.replace(variable, value)
    parsed: promql_parser.Expr = promql_parser.parse(expr)
    return parsed


def nodes(tree: promql_parser.Expr) -> list[Any]:
    found: list[Any] = []
    promql_parser.walk(tree, found.append)
    return found


def selectors(tree: promql_parser.Expr) -> list[VectorSelector]:
    flat = (node.vector_selector if isinstance(node, MatrixSelector) else node for node in nodes(tree))
    return [node for node in flat if isinstance(node, VectorSelector)]


def recorded_series() -> dict[str, Series]:
    """What the recording rules add: by the labels that they group by."""
    found = {}
    for rule in rules():
        if "record" in rule:
            groups = [node for node in nodes(parse(rule["expr"])) if isinstance(node, AggregateExpr) and node.modifier]
            labels = {label for node in groups for label in node.modifier.labels} - {"le"}
            found[rule["record"]] = Series("gauge", {label: set() for label in labels})
    return found


FOREIGN = {"DCGM_FI_DEV_GPU_UTIL": Series("gauge", {})}
"""Of exporters that are none of ours: boards show them where they run."""
EXPORTED = engine_series() | operator_series()
SERIES = EXPORTED | recorded_series() | FOREIGN
QUERIES = [(path.name, expr) for path in BOARDS for expr in expressions(load(path))]
QUERIES += [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]


def series_of(selector: VectorSelector) -> Series:
    assert selector.name in SERIES, f"nobody exports {selector.name}"
    return SERIES[selector.name]


def problems(expr: str) -> list[str]:
    """What is wrong with a query, in words; raises on a syntax error."""
    tree = parse(expr)
    found = [f"no series {each.name}" for each in selectors(tree) if each.name not in SERIES]
    if found:
        return found
    for selector in selectors(tree):
        found += matcher_problems(selector, SERIES[str(selector.name)])
    for node in nodes(tree):
        if isinstance(node, AggregateExpr) and node.modifier:
            known = TARGET_LABELS.union(*(SERIES[str(each.name)].labels for each in selectors(node.expr)))
            found += [f"no label {label} to group by" for label in node.modifier.labels if label not in known]
        if isinstance(node, Call):
            found += call_problems(node)
    return found


def matcher_problems(selector: VectorSelector, series: Series) -> Iterator[str]:
    for matcher in selector.matchers.matchers:
        if matcher.name not in TARGET_LABELS | set(series.labels):
            yield f"{selector.name} has no label {matcher.name}"
        elif matcher.name in TARGET_LABELS:
            continue
        elif matcher.op == MatchOp.Equal and matcher.value not in series.labels[matcher.name]:
            yield f"{selector.name} never has {matcher.name}={matcher.value}"
        elif matcher.op == MatchOp.Re:
            yield from pattern_problems(selector, matcher.name, matcher.value, series.labels[matcher.name])


def pattern_problems(selector: VectorSelector, label: str, pattern: str, values: set[str]) -> Iterator[str]:
    """Each alternative must be some series' value, but for the other spelling of a histogram's bound."""
    alternatives = [pattern] if label == "le" else pattern.split("|")
    for alternative in alternatives:
        if not any(re.fullmatch(alternative, value) for value in values):
            yield f"{selector.name} never has {label}=~{alternative}"


def call_problems(call: Call) -> Iterator[str]:
    counted = [series_of(each).type for each in selectors(call)]
    if call.func.name in ("rate", "increase") and not set(counted) <= {"counter", "histogram"}:
        yield f"{call.func.name} of a gauge"
    if call.func.name == "histogram_quantile" and not all(
        str(each.name).endswith("_bucket") for each in selectors(call)
    ):
        yield "histogram_quantile of something without buckets"


def test_files_are_what_the_code_says() -> None:
    assert outdated() == [], "run `make generate`"


def test_the_folder_holds_every_board_and_no_other() -> None:
    assert {path.name for path in BOARDS} == set(WRITTEN) == set(CHOSEN)


@pytest.mark.parametrize(("name", "expr"), QUERIES)
def test_every_query_names_what_is_exported(name: str, expr: str) -> None:
    assert problems(expr) == []


@pytest.mark.parametrize(
    ("expr", "problem"),
    [
        ("sum(octavo_nonsense)", "no series octavo_nonsense"),
        ('octavo_requests_waiting{why="new"}', "octavo_requests_waiting has no label why"),
        ('octavo_requests_waiting{reason="boredom"}', "octavo_requests_waiting never has reason=boredom"),
        ('octavo_requests_waiting{reason=~"new|boredom"}', "octavo_requests_waiting never has reason=~boredom"),
        (
            'octavo_time_to_first_token_seconds_bucket{le=~"4|4[.]0"}',
            "octavo_time_to_first_token_seconds_bucket never has le=~4|4[.]0",
        ),
        ("sum by (kind) (octavo_requests_waiting)", "no label kind to group by"),
        ("rate(octavo_requests_running[5m])", "rate of a gauge"),
        ("histogram_quantile(0.5, octavo_requests_running)", "histogram_quantile of something without buckets"),
    ],
)
def test_the_check_finds_faults(expr: str, problem: str) -> None:
    assert problems(expr) == [problem]


def test_every_recorded_series_is_shown() -> None:
    shown = {str(each.name) for _, expr in QUERIES for each in selectors(parse(expr))}
    assert recorded_series().keys() <= shown


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_boards_can_be_linked_to_and_read(path: Path) -> None:
    board = load(path)
    assert re.fullmatch(r"octavo-[a-z-]+", board["uid"])
    assert [variable["name"] for variable in board["templating"]["list"]] == CHOSEN[path.name]
    titles = [panel["title"] for panel in panels(board) if panel["type"] != "table"]
    assert len(titles) == len(set(titles))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels(board):
        assert panel["description"], panel["title"]
        assert panel["options"], panel["title"]
        assert panel["datasource"]["uid"] == "$datasource"
        assert panel["type"] in UNITLESS or panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["type"] == "text" or panel["targets"], panel["title"]


def test_uids_differ_and_boards_link_to_each_other() -> None:
    boards = [load(path) for path in BOARDS]
    assert len({board["uid"] for board in boards}) == len(boards)
    for board in boards:
        (link,) = board["links"]
        assert link["type"] == "dashboards"
        assert set(link["tags"]) <= set(board["tags"])
        assert link["keepTime"]


def test_links_to_a_service_lead_to_the_service_board() -> None:
    known = {load(path)["uid"] for path in BOARDS}
    addressed = set(re.findall(r'"url": "/d/([a-z-]+)\?', (FOLDER / "fleet.json").read_text(encoding="utf-8")))
    assert addressed == {"octavo-service"} <= known


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_panels_lie_on_the_grid_without_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in load(path)["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }  # fmt: skip
        assert all(0 <= x < 24 for x, _ in cells), panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_service_board_begins_with_the_four_metrics() -> None:
    board = load(FOLDER / "service.json")
    first = panels(board)[:4]
    assert [panel["title"] for panel in first] == THE_FOUR
    for panel in first[:2]:
        assert [target["legendFormat"] for target in panel["targets"]] == ["P50", "P90", "P99"]


def test_each_symptom_has_its_cause_beside_its_evidence() -> None:
    board = load(FOLDER / "what-is-wrong.json")
    rows = [index for index, panel in enumerate(board["panels"]) if panel["type"] == "row"]
    assert len(rows) == len(SYMPTOMS)
    for row in rows:
        words, *evidence = board["panels"][row + 1 : row + 4]
        assert words["type"] == "text"
        assert all(part in words["options"]["content"] for part in ("**Likely**", "**Change one thing**"))
        assert [panel["type"] for panel in evidence] == ["timeseries"] * 2
        assert len({panel["gridPos"]["y"] for panel in (words, *evidence)}) == 1


def test_whatever_limits_an_engine_has_its_row() -> None:
    """What `octavo doctor` can say, what its page lists and what the board shows are the same words."""
    told = re.findall(r"^\| `(\w+)` \|", (CHECKOUT / "docs/PLANNING.md").read_text(encoding="utf-8"), re.MULTILINE)
    board = load(FOLDER / "what-is-wrong.json")
    shown = [panel["options"]["content"] for panel in panels(board) if panel["type"] == "text"]
    named = {name for words in shown for name in re.findall(r"`(\w+)`", words.partition("`octavo doctor` calls it")[2])}
    assert named == {limiter.value for limiter in Limiter} == set(told)


def test_a_row_shows_what_the_finding_rests_on() -> None:
    """The series that `octavo doctor` reads for a finding, where there is one, are among the row's."""
    reads = {
        "queue": "octavo_requests_waiting",
        "kv": "octavo_kv_cache_usage_ratio",
        "cpu": "octavo_cpu_periods_total",
        "http": "octavo_step_thread_wait_seconds_total",
        "prefix": "octavo_prefix_cache_tokens_total",
        "prompts": "octavo_request_prompt_tokens_bucket",
        "batch": "octavo_inter_token_latency_seconds_bucket",
        "memory": "octavo_roofline_ratio",
        "compute": "octavo_roofline_ratio",
        "overhead": "octavo_roofline_ratio",
        "load": "octavo_step_seconds_sum",
    }
    shown: dict[str, set[str]] = {name: set() for name in reads}
    for symptom in SYMPTOMS:
        targets = (target for panel in symptom.evidence() for target in panel.build().targets)
        names = {str(each.name) for target in targets for each in selectors(parse(str(target.expr)))}
        for limiter in symptom.limiters:
            shown[limiter] |= names
    assert {name for name, needed in reads.items() if needed not in shown[name]} == set()
