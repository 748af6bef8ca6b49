"""What a model's text says: calls in three formats and thoughts, the same however the text is cut into pieces."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.server.tools import Formats, Reading
from octavo_engine.server.tools.formats import FORMATS

BY_NAME = {form.name: form for form in FORMATS}
NAMES = ("get_weather", "f", "search.web")


@dataclass
class Heard:
    """Everything that was said, joined."""

    content: str = ""
    reasoning: str = ""
    names: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    arguments: dict[int, str] = field(default_factory=lambda: defaultdict(str))

    @property
    def calls(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(self.arguments[index])) for index, name in enumerate(self.names)]


def heard(pieces: Iterable[str], form: str | None = None, **options: Any) -> Heard:
    reading = Reading(format=form and BY_NAME[form], names=frozenset(NAMES), **options)  # type: ignore[arg-type]
    reader, all_said = reading.reader("answer-0"), Heard()
    listed = list(pieces)
    for number, piece in enumerate(listed):
        said = reader.push(piece, last=number == len(listed) - 1)
        all_said.content += said.content
        all_said.reasoning += said.reasoning
        for call in said.calls:
            if call.name is not None:
                assert call.index == len(all_said.names), "calls begin in order"
                all_said.names.append(call.name)
                all_said.ids.append(call.id or "")
            all_said.arguments[call.index] += call.arguments
    assert reader.called == bool(all_said.names)
    return all_said


PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<[{"), max_size=12)
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)
INDENTS = st.sampled_from([None, None, 2])


def hermes(calls: list[tuple[str, Any]], indent: int | None) -> str:
    written = (json.dumps({"name": name, "arguments": given}, indent=indent) for name, given in calls)
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)


def llama3(calls: list[tuple[str, Any]], indent: int | None) -> str:
    return "; ".join(json.dumps({"name": name, "parameters": given}, indent=indent) for name, given in calls)


def mistral(calls: list[tuple[str, Any]], indent: int | None) -> str:
    return "[TOOL_CALLS]" + json.dumps([{"name": name, "arguments": given} for name, given in calls], indent=indent)


def newer_mistral(calls: list[tuple[str, Any]], indent: int | None) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given, indent=indent)}" for name, given in calls)


WRITERS = {"hermes": hermes, "llama3": llama3, "mistral": mistral, "newer mistral": newer_mistral}


@pytest.mark.parametrize("writer", WRITERS)
@given(CALLS, INDENTS, PLAIN)
def test_calls_are_read_as_they_were_written(writer: str, calls: list[tuple[str, Any]], indent, before: str) -> None:
    before = "" if writer == "llama3" else before
    found = heard([f"{before}\n{WRITERS[writer](calls, indent)}\n"], writer.removeprefix("newer "))
    assert found.calls == calls
    assert found.content == before.rstrip()
    assert len(set(found.ids)) == len(calls)


FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool_", "[TOOL_CALLS]", "[TOOL", "[ARGS]", "<|python_tag|>"),
        *("<think>", "</think>", '{"name": "g"}', '{"name": 5}', '{"name": "f", "parameters": {}}'),
        *('{"name": "f", "arguments": {"a": "}\\"{"}}', '{"arguments": {"b": [1]}, "name": "f"}'),
        *('{"name": "f", "arguments": "{\\"c\\": 1}"}', '{"type": 1, "name": "f"}'),
        *("f", "{", "}", "[", "]", '"', ",", ":", ";", "\\", " ", "\n", "1", '{"name": "f", "arguments": null}'),
    ]
)
TEXTS = st.lists(FRAGMENTS | PLAIN, max_size=10).map("".join)
FORMS = st.sampled_from([None, *BY_NAME])
THINKING = st.sampled_from([None, False, True])


@given(TEXTS, FORMS, THINKING, st.data())
def test_it_does_not_matter_where_a_stream_is_cut(text: str, form, thinking, data) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]
    whole = heard([text], form, thinking=thinking)
    assert heard(pieces, form, thinking=thinking) == whole
    assert heard(list(text) or [""], form, thinking=thinking) == whole


@given(TEXTS, FORMS)
def test_what_is_no_call_stays_the_text_it_is(text: str, form) -> None:
    found = heard([text], form)
    if not found.names:
        assert found.content == text


@pytest.mark.parametrize(
    ("form", "text", "content", "arguments"),
    [
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", ['{"a": 1}']),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", ['{"a": 1}']),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", ["{}"]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call> Done.', " Done.", ["{}"]),
        ("hermes", 'Well.\n<tool_call>{"name": "f", "arguments": {"a": 1}}}\n</tool_call>', "Well.", ['{"a": 1}']),
        ("hermes", '<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>', "<tool_call>", ["{}"]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ', "", ['{"a": ']),
        ("hermes", '<tool_call>\n{"name": "f', '<tool_call>\n{"name": "f', []),
        ("hermes", "1 < 2 <tool", "1 < 2 <tool", []),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", ['{"a": 1}']),
        ("llama3", '{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}', []),
        ("llama3", '{"type": "function", "name": "f", "parameters": {}}', "", ["{}"]),
        ("llama3", 'Look: {"name": "f", "parameters": {}}', 'Look: {"name": "f", "parameters": {}}', []),
        ("llama3", '{"name": "f", "parameters": {}} Done.', " Done.", ["{}"]),
        ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
        ("mistral", '[TOOL_CALLS] f {"a": 1}', "", ['{"a": 1}']),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123[ARGS]{"a": 1}', "", ['{"a": 1}']),
        ("mistral", '[TOOL_CALLS] no call at all {"a": 1}', '[TOOL_CALLS] no call at all {"a": 1}', []),
    ],
)
def test_what_models_do(form: str, text: str, content: str, arguments: list[str]) -> None:
    found = heard([text], form)
    assert (found.content, list(found.arguments.values())) == (content, arguments)


def test_arguments_go_out_while_they_come() -> None:
    reader = Reading(format=BY_NAME["hermes"]).reader("x")
    assert reader.push('<tool_call>{"name": "f", "argu').calls == ()
    (begun,) = reader.push('ments": {"ci').calls
    assert (begun.index, begun.name, begun.arguments) == (0, "f", '{"ci')
    (more,) = reader.push('ty": "Pa').calls
    assert more == (0, None, None, 'ty": "Pa')


def test_one_call_at_most() -> None:
    text = hermes([("f", {"a": 1}), ("f", {"a": 2})], None)
    assert heard([text], "hermes", most_calls=1).calls == [("f", {"a": 1})]
    assert heard(list(text), "hermes", most_calls=1).calls == [("f", {"a": 1})]


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, "Hm.", "Yes."),
        ("Hm. 1 < 2\n</think>\nYes.", True, "Hm. 1 < 2", "Yes."),
        ("\n <think>\n\n</think>\n\nYes.", False, "", "Yes."),
        ("Yes, <think> is a tag.", False, "", "Yes, <think> is a tag."),
        (" <thin", False, "", " <thin"),
        ("<think>For ever </thi", False, "For ever </thi", ""),
        ("", True, "", ""),
    ],
)
def test_thoughts(text: str, inside: bool, reasoning: str, content: str) -> None:
    found = heard([text], thinking=inside)
    assert (found.reasoning, found.content) == (reasoning, content)


def test_a_call_after_a_thought_and_none_within() -> None:
    call = hermes([("f", {})], None)
    found = heard([f"<think>{call}</think>\n{call}"], "hermes", thinking=False)
    assert found.reasoning == call
    assert (found.names, found.content) == (["f"], "")


@pytest.mark.parametrize(
    ("template", "tools", "thinks"),
    [
        ("{{ '<tool_call>' }} {{ '</think>' }}", "hermes", True),
        ("[TOOL_CALLS] {{ tools }}", "mistral", False),
        ("{{ '<|python_tag|>' }}", "llama3", False),
        ("{{ '<tool_call><function=f>' }}", None, False),
        ("<tool_call>{{ name }}<arg_key>", None, False),
        ("{{ messages[0].content }}", None, False),
        (None, None, False),
    ],
)
def test_a_template_shows_its_formats(template: str | None, tools: str | None, thinks: bool) -> None:
    formats = Formats.of(template)
    assert (formats.tools and formats.tools.name, formats.thinks) == (tools, thinks)
    assert Formats.of(template, "none", "none") == Formats()
    chosen = Formats.of(template, "mistral", "think")
    assert (chosen.tools, chosen.thinks) == (BY_NAME["mistral"], True)


def test_ids_are_what_templates_want() -> None:
    assert all(len(name) == 9 and name.isalnum() for name in heard([mistral([("f", {})], None)], "mistral").ids)
    assert all(name.startswith("call_") for name in heard([hermes([("f", {})], None)], "hermes").ids)
