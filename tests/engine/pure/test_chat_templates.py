"""Chat templates end, in time and in size, and are given what they take."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from octavo_engine.errors import CheckpointInvalid, RequestError
from octavo_engine.tokenizer.bounded_jinja import BoundedSandbox, Budget, TookTooLong
from octavo_engine.tokenizer.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "Hello"}]
TURNS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def rendered(source: str, messages: Any = HELLO, **options: Any) -> str:
    return ChatTemplate(source, {}).render(messages, **({"add_generation_prompt": False} | options))


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% set r = range(99999) %}{% for a in r recursive %}{{ loop(r) }}{% endfor %}",
    ],
)
def test_what_does_not_end_is_ended(source: str) -> None:
    template = ChatTemplate(source, {}, max_seconds=0.05)
    with pytest.raises(RequestError, match=r"takes too long|cannot render") as caught:
        template.render(HELLO, add_generation_prompt=False)
    assert caught.value.param == "messages"


def test_a_budget_is_looked_at_now_and_then() -> None:
    ticks = count()
    budget = Budget(3, clock=lambda: next(ticks))
    for _ in range(64 * 4 - 1):
        budget.spend()
    with pytest.raises(TookTooLong):
        budget.spend()


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(40) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        "{% set ns = namespace(t='xxxxxxxx') %}{% for i in range(40) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
        "{% set ns = namespace(n=7) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    ],
)
def test_no_value_fills_the_memory(source: str) -> None:
    with pytest.raises(RequestError, match="cannot render"):
        rendered(source)


def test_loops_and_sums_are_what_they_were() -> None:
    turn = "{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.nextitem is defined }} "
    loop = "{% for x in messages %}" + turn + "{% endfor %}"
    assert rendered(loop, [1, 2]) == "1/2FalseTrue 2/2TrueFalse "
    assert rendered("{% for k, v in messages[0].items() if v %}{{ k ~ '=' + v }};{% else %}none{% endfor %}") == (
        "role=user;content=Hello;"
    )
    ends = "{% for x in nobody %}{% else %}none{% endfor %}"
    assert rendered(ends + "{{ 3 * 4 }}{{ 2 ** 8 }}{{ '-' * 3 }}") == "none12256---"
    plain, bounded = BoundedSandbox.__mro__[1](), BoundedSandbox()
    source = "{% for a in x %}{% for b in a recursive %}{{ b }}{% if loop.first %}!{% endif %}{% endfor %}{% endfor %}"
    given: dict[str, Any] = {"x": ["ab", "", "cde"]}
    watched = bounded.from_string(source).render(**given, **{Budget.NAME: Budget(10)})
    assert watched == plain.from_string(source).render(**given) == "a!bc!de"


def test_names_that_a_client_may_set() -> None:
    read = "{{ tools }}{{ messages }}{{ strftime_now('%Y') }}{{ range(2) }}"
    source = "{{ bos_token }}{% if enable_thinking %}" + read + "{% endif %}"
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.variables == {"enable_thinking"}
    assert template.takes_tools
    assert not ChatTemplate(TURNS, {}).takes_tools
    given = {"enable_thinking": True, "bos_token": "mine"}
    assert template.render([], add_generation_prompt=False, variables=given).startswith("<s>None[]")


def test_tools_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"é": None}}}]
    source = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    written = '{"type": "function", "function": {"name": "f", "parameters": {"é": null}}}'
    assert rendered(source, tools=tools) == written
    assert rendered(source) == ""
    assert rendered("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}") == '{"a":2,"b":1}'


@pytest.mark.parametrize("text", ["", "The answer is", "It goes on \n ", "[end] [end]"])
def test_a_message_is_continued_where_its_text_ends(text: str) -> None:
    messages = [*HELLO, {"role": "assistant", "content": text}]
    template = ChatTemplate(TURNS, {})
    assert template.render_open(messages) == f"[user]Hello[end][assistant]{text.lstrip()}"


def test_a_message_that_is_not_shown_cannot_be_continued() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    with pytest.raises(RequestError) as caught:
        template.render_open([*HELLO, {"role": "assistant", "content": "x"}])
    assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize("source", ["{% for %}", "{{ x | nothing_of_the_kind }}"])
def test_a_template_that_is_none(source: str) -> None:
    with pytest.raises(CheckpointInvalid, match="not valid Jinja"):
        ChatTemplate(source, {})
