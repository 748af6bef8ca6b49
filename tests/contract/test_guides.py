"""The guides: each in English and Japanese, the same in both, and true to boards, fields and the index."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import yaml

from documents import ROOT, Block, Page, page, pages

pytestmark = pytest.mark.contract

FOLDER = ROOT / "docs" / "guides"
NAMES = sorted(path.name.removesuffix(".md") for path in FOLDER.glob("*.md") if not path.name.endswith(".ja.md"))
PAIRS = pytest.mark.parametrize("name", [*(f"docs/guides/{name}" for name in NAMES), "README"])
GUIDES = [each for each in pages() if each.path.parent == FOLDER]
GENERATED = re.compile(r"<!-- (?P<name>[\w-]+): begin -->.*<!-- (?P=name): end -->", re.DOTALL)
FIGURE = re.compile(r"\d[\d.,]*\d")
CAMEL = re.compile(r"[a-z]+[A-Z][A-Za-z]*")
OF_PROMETHEUS = {"Targets"}
EXPECTED = {"quick-start", "defaults-first", "tuning", "rag", "load-test", "roofline"}


def both(name: str) -> tuple[Page, Page]:
    """A page and its Japanese twin."""
    return page(f"{name}.md"), page(f"{name}.ja.md")


def written(each: Page) -> Page:
    """Without what a program wrote into it."""
    return Page(each.path, GENERATED.sub("", each.text))


def figures(each: Page) -> set[str]:
    """Numbers of two digits or more, in text and tables; commas and dots at the end belong to the sentence."""
    return {found for text in each.prose for found in FIGURE.findall(text)}


def without_comments(block: Block) -> tuple[str, str]:
    """Comments of a shell are translated; nothing else in code is."""
    return block.language, re.sub(r"[ ]*(?:^|(?<=\s))# .*", "", block.text) if block.language == "sh" else block.text


def test_all_are_there_in_both_languages() -> None:
    assert set(NAMES) >= EXPECTED
    files = {f"docs/guides/{name}{tail}" for name in NAMES for tail in (".md", ".ja.md")}
    assert {each.name for each in GUIDES} == files


@PAIRS
def test_each_begins_with_a_link_to_the_other(name: str) -> None:
    own = name.rpartition("/")[2]
    for each, other in zip(both(name), (f"{own}.ja.md", f"{own}.md"), strict=True):
        assert each.links[0] == other
        assert f"]({other})" in "\n".join(each.text.splitlines()[:4])


@pytest.mark.parametrize("name", NAMES)
def test_both_languages_say_the_same(name: str) -> None:
    """As far as a program can see: sections, code, figures, and what is linked and named."""
    english, japanese = (written(each) for each in both(f"docs/guides/{name}"))
    assert [level for level, _ in english.headings] == [level for level, _ in japanese.headings]
    assert list(map(without_comments, english.blocks)) == list(map(without_comments, japanese.blocks))
    assert set(english.spans) == set(japanese.spans)
    assert set(english.emphasized) == set(japanese.emphasized)
    links = [Counter(link.replace(".ja.md", ".md") for link in each.links) for each in (english, japanese)]
    assert links[0] == links[1]
    assert figures(english) == figures(japanese)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_program_wrote_is_in_both(name: str) -> None:
    """Its words are of each language; rows and figures are the same."""
    english, japanese = (list(GENERATED.finditer(each.text)) for each in both(f"docs/guides/{name}"))
    assert [found["name"] for found in english] == [found["name"] for found in japanese]
    for one, other in zip(english, japanese, strict=True):
        assert one[0].count("\n|") == other[0].count("\n|")
        assert figures(Page(FOLDER / "x.md", one[0])) == figures(Page(FOLDER / "x.md", other[0]))


@pytest.mark.parametrize("each", pages(), ids=lambda each: each.name)
def test_no_asterisk_is_left_over(each: Page) -> None:
    """Beside Japanese letters a bold text that ends with a full stop is none, by the rules of CommonMark."""
    assert [text for text in each.prose if "**" in text] == []


def titles() -> Iterator[str]:
    """What boards, their rows and their panels are called."""
    for path in (ROOT / "dashboards").glob("*.json"):
        board: dict[str, Any] = json.loads(path.read_text("utf-8"))
        yield board["title"].removeprefix("Octavo / ")
        yield from (panel["title"] for panel in board["panels"])


@pytest.mark.parametrize("each", GUIDES, ids=lambda each: each.name)
def test_what_is_in_italics_is_on_a_board(each: Page) -> None:
    assert set(each.emphasized) - set(titles()) == set()


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "runbooks").glob("Octavo*.md")), ids=lambda path: path.stem)
def test_a_runbook_looks_at_what_is_on_a_board(path: Any) -> None:
    looked_at = path.read_text("utf-8").partition("## Look at\n")[2].partition("\n## ")[0]
    assert looked_at, "a runbook says where to look"
    assert set(Page(path, looked_at).emphasized) - set(titles()) <= OF_PROMETHEUS


def fields(schema: dict[str, Any]) -> Iterator[str]:
    """The names of all fields below a schema."""
    for name, inner in schema.get("properties", {}).items():
        yield name
        yield from fields(inner)
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        yield from fields(inner) if isinstance(inner, dict) else ()


@cache
def known_fields() -> set[str]:
    (path,) = (ROOT / "crds").glob("*.yaml")
    definition = yaml.safe_load(path.read_text("utf-8"))
    schemas = [version["schema"]["openAPIV3Schema"] for version in definition["spec"]["versions"]]
    return {name for schema in schemas for name in fields(schema)}


@pytest.mark.parametrize("each", GUIDES, ids=lambda each: each.name)
def test_fields_are_those_of_the_resource(each: Page) -> None:
    named = {span for text in each.spans for span in re.split(r"[.: ]", text) if CAMEL.fullmatch(span)}
    assert named - known_fields() == set()


def test_the_index_names_every_page_of_its_folder_once() -> None:
    linked = Counter(link for link in page("docs/README.md").links if "#" not in link)
    own = {each.name.removeprefix("docs/") for each in pages() if each.name.startswith("docs/")}
    own -= {"README.md"} | {name for name in own if name.startswith("runbooks/") and name != "runbooks/README.md"}
    assert {name: linked[name] for name in own} == dict.fromkeys(own, 1)


def test_the_first_page_leads_to_guides_and_index() -> None:
    for name, tail in (("README.md", ".md"), ("README.ja.md", ".ja.md")):
        linked = set(page(name).links)
        assert {"docs/README.md", *(f"docs/guides/{guide}{tail}" for guide in NAMES)} <= linked
        typed = {command for block in page(name).blocks for command in block.commands}
        assert {("make", "demo"), ("make", "test")} <= typed


def test_a_difference_between_languages_is_found() -> None:
    one, other = (Page(ROOT / "x.md", text) for text in ("It took 1,024 ms.\n", "1,025 ms でした。\n"))
    assert figures(one) != figures(other)
    blocks = [Block("sh", f"make demo    # {words}\n") for words in ("a comment", "注釈")]
    assert without_comments(blocks[0]) == without_comments(blocks[1]) != without_comments(Block("sh", "make test\n"))
    assert Page(ROOT / "x.md", "**終わり。**次\n").prose == ["**終わり。**次"]


def test_no_two_guides_share_a_title() -> None:
    """So that the index and a browser's tabs tell them apart."""
    heads = sorted(each.headings[0][1] for each in GUIDES)
    assert all(one != other for one, other in pairwise(heads))


def test_copied_figures_are_those_of_their_page() -> None:
    copied = page("docs/guides/defaults-first.md").text.partition("| streams |")[2].partition("\n\n")[0]
    rows = figures(Page(ROOT / "x.md", f"| streams |{copied}\n"))
    assert len(rows) >= 9
    assert rows - figures(page("benchmarks/README.md")) == set(), "copy them anew"
