"""Every page: its links lead somewhere, others link to it, and the commands and flags in it are understood."""

from __future__ import annotations

from pathlib import Path

import promql_parser
import pytest
from promql_parser import MatrixSelector, VectorSelector

import named_commands
from documents import ROOT, Block, Page, page, pages
from named_commands import Misspelled
from prometheus_series import TARGET_LABELS, engine_series, operator_series

pytestmark = pytest.mark.contract

FIRST = "README.md"
ELSEWHERE = ("http://", "https://", "mailto:")
PAGES = pytest.mark.parametrize("each", pages(), ids=lambda each: each.name)


def target(source: Page, link: str) -> tuple[Path, str]:
    """The file that a link of a page leads to, and the place in it."""
    path, _, anchor = link.partition("#")
    return ((source.path.parent / path).resolve() if path else source.path), anchor


def faults(source: Page) -> list[str]:
    """Links that lead nowhere."""
    found = []
    for link in source.links:
        if link.startswith(ELSEWHERE):
            continue
        path, anchor = target(source, link)
        if path != source.path and not (path.is_relative_to(ROOT) and path.exists()):
            found.append(f"{link}: there is no such file")
        elif anchor and path.suffix == ".md" and anchor not in anchors(source, path):
            found.append(f"{link}: the page has no such heading")
    return found


def anchors(source: Page, path: Path) -> set[str]:
    """Those of the page at that path, which may be the one that links."""
    return (source if path == source.path else page(str(path.relative_to(ROOT)))).anchors


def misspelled(source: Page) -> list[str]:
    """Commands that would not be understood, with the reason."""
    found = []
    for block in source.blocks:
        for command in block.commands:
            try:
                named_commands.check(command)
            except Misspelled as problem:
                found.append(f"{' '.join(command)}: {problem}")
    return found


def made(text: str) -> Page:
    """A page of this text, as if it lay beside README.md."""
    return Page(ROOT / "MADE_UP.md", text)


@PAGES
def test_links_lead_somewhere(each: Page) -> None:
    assert faults(each) == []


def test_every_page_is_reached_from_the_first() -> None:
    reached, ahead = set[str](), [FIRST]
    while ahead:
        name = ahead.pop()
        reached.add(name)
        leads = {target(page(name), link)[0] for link in page(name).links if not link.startswith(ELSEWHERE)}
        ahead += [each.name for each in pages() if each.path in leads and each.name not in reached]
    assert {each.name for each in pages()} - reached == set()


@PAGES
def test_commands_are_understood(each: Page) -> None:
    assert misspelled(each) == []


@PAGES
def test_flags_exist(each: Page) -> None:
    assert each.flags - named_commands.known_flags() == set()


def test_queries_name_what_is_exported() -> None:
    series = engine_series() | operator_series()
    blocks = [block for each in pages() for block in each.blocks if block.language == "promql"]
    expressions = [line for block in blocks for line in block.text.splitlines() if not line.startswith("#")]
    assert len(expressions) >= 4
    for expression in expressions:
        assert selectors(expression), expression
        for selector in selectors(expression):
            assert selector.name in series, expression
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels <= TARGET_LABELS | set(series[str(selector.name)].labels), expression


def selectors(expression: str) -> list[VectorSelector]:
    """What a query reads; raises where it is none."""
    nodes = list[object]()
    promql_parser.walk(promql_parser.parse(expression), nodes.append)
    flat = (node.vector_selector if isinstance(node, MatrixSelector) else node for node in nodes)
    return [node for node in flat if isinstance(node, VectorSelector)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](docs/NOTHING.md)", "docs/NOTHING.md: there is no such file"),
        ("[a](../outside.md)", "../outside.md: there is no such file"),
        ("[a](docs/METRICS.md#nonsense)", "docs/METRICS.md#nonsense: the page has no such heading"),
        ("![a](docs/nothing.svg)", "docs/nothing.svg: there is no such file"),
        ("# A & B\n\n# `x` / A\n\n[a](#a-b)", "#a-b: the page has no such heading"),
    ],
)
def test_a_broken_link_is_found(text: str, fault: str) -> None:
    assert faults(made(text)) == [fault]


def test_good_links_and_links_in_code_pass() -> None:
    text = "# A & B\n\n# A & B\n\n[a](#a--b) [b](#a--b-1) [c](docs/METRICS.md#all-others) `[d](nothing)`\n"
    assert faults(made(text)) == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("octavo serv m", "no command"),
        ("octavo serve m --max-num-seq 4", "--max-num-seq"),
        ("octavo serve m --max-num-seqs=none", "max-num-seqs"),
        ("octavo bench --rate 1 --concurrency 2", "exclude each other"),
        ("octavo bench --sweep max-num-seq=1,2 -- m", "max-num-seq"),
        ("octavo bench --compare one.json", "two files"),
        ("octavo doctor --second 3", "--second"),
        ("octavo plan m --device A11", "A11"),
        ("kubectl exec deploy/assistant -- octavo top --one", "--one"),
        ("docker run --rm -p 8000:8000 octavo-engine serve m --hosts x", "--hosts"),
        ("make benches", "no target"),
        ("sleep 1 && make benches | cat", "no target"),
        ("hack/nothing up", "there is no hack/nothing"),
        ("kubectl apply -f examples/nothing.yaml", "there is no examples/nothing.yaml"),
        ("kubectl octavo talk assistant", "talk"),
        ("helm upgrade x charts/octavo-operator --set engineImages=x", "no value"),
        ("A=1 .venv/bin/python benchmarks/nothing.py", "there is no benchmarks/nothing.py"),
        ("python -m boards.nothing", "no module"),
        ("locust -f benchmarks/locustfile.py --user 3", "--user"),
        ("k6 run -e RATES=5 benchmarks/k6.js", "reads no RATES"),
    ],
)
def test_a_wrong_command_is_found(command: str, reason: str) -> None:
    (problem,) = misspelled(made(f"```sh\n{command}    # a comment\n```\n"))
    assert reason in problem


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a b | c > d; e", [("a", "b"), ("c",), ("e",)]),
        ("X=1 a \\\n  --b 'c d' # e\n", [("a", "--b", "c d")]),
        ("a '{\n  \"b\": 1}' c\nd", [("a", '{\n  "b": 1}', "c"), ("d",)]),
        ("for x in a b; do\n  c $x\ndone", [("for", "x", "in", "a", "b"), ("c", "$x"), ("done",)]),
        ("A=$(b c)", [("b", "c")]),
    ],
)
def test_commands_of_a_shell(text: str, commands: list[tuple[str, ...]]) -> None:
    assert Block("sh", text).commands == commands


def test_what_was_printed_is_no_command() -> None:
    assert Block("", "$ a \\\n    b\nmake nothing\n$ c\n").commands == [("a", "b"), ("c",)]
