"""What a load test asks, and when: arrivals, lengths, traces, words, conversations."""

from __future__ import annotations

import random
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.bench.arrivals import ClosedLoop, OpenLoop, Ramp, Replay, Steady
from octavo_engine.bench.conversations import Dialogue, Endpoint, Shape, of_trace, synthetic
from octavo_engine.bench.lengths import Lengths
from octavo_engine.bench.traces import Entry, read_trace
from octavo_engine.bench.vocabulary import WORDS, Json, Vocabulary, learn
from octavo_engine.errors import InvalidConfiguration

RATES = st.floats(0.1, 1_000)


def times(arrivals: OpenLoop, count: int, seed: int = 0) -> list[float]:
    return list(islice(arrivals.offsets(random.Random(seed)), count))


@given(RATES, st.floats(0.1, 20), st.integers(0, 2**32))
def test_steady_arrivals_rise_and_come_at_their_rate(rate: float, burstiness: float, seed: int) -> None:
    count = 2_000
    at = times(Steady(rate, burstiness), count, seed)
    assert all(before <= after for before, after in pairwise([0.0, *at]))
    error = 1 / (burstiness * count) ** 0.5  # of the mean of so many gaps, as a share
    assert at[-1] / count == pytest.approx(1 / rate, rel=7 * error)
    assert at == times(Steady(rate, burstiness), count, seed)


def test_burstiness_is_the_spread_of_the_gaps() -> None:
    for burstiness in (0.25, 1.0, 4.0):
        gaps = np.diff(times(Steady(10, burstiness), 20_000))
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


@given(st.floats(0, 100), st.floats(0.1, 100), st.floats(1, 100), st.floats(0, 1.5))
def test_a_ramp_is_the_inverse_of_its_rates_integral(first: float, last: float, seconds: float, share: float) -> None:
    def expected(at: float) -> float:
        inside = min(at, seconds)
        return first * inside + (last - first) * inside**2 / (2 * seconds) + last * (at - inside)

    ramp = Ramp(first, last, seconds)
    wanted = share * expected(seconds)
    assert expected(ramp.when(wanted)) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def test_a_ramp_ends_at_its_last_rate() -> None:
    ramp = Ramp.parse("0:50:20")
    at = np.array(times(ramp, 2_000))
    assert np.all(np.diff(at) >= 0)
    early, late = np.sum(at < 10), np.sum((at >= 10) & (at < 20))
    assert early == pytest.approx(125, abs=60)  # a quarter of the area
    assert late == pytest.approx(375, abs=100)
    assert np.mean(np.diff(at[at > 20])) == pytest.approx(1 / 50, rel=0.15)


@pytest.mark.parametrize("text", ["", "1", "1:2", "1:0:5", "-1:2:5", "1:2:0", "a:b:c", "1:inf:5", "1:2:nan"])
def test_a_ramp_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="--ramp is"):
        Ramp.parse(text)


def test_arrivals_say_what_they_are() -> None:
    told = map(str, (ClosedLoop(8), Steady(2.5), Steady(2, 0.5), Ramp(1, 20, 60), Replay((0.0, 1.0), 2.0)))
    assert list(told) == [
        "closed loop, 8 at once",
        "Poisson, 2.5/s",
        "gamma (burstiness 0.5), 2/s",
        "ramp from 1/s to 20/s in 60 s",
        "2 arrivals of a trace, 2 times as fast",
    ]
    assert times(Replay((0.0, 1.0, 3.0), 2.0), 9) == [0.0, 0.5, 1.5]


# -- lengths -----------------------------------------------------------------------------------------------------------


def drawn(text: str, count: int = 4_000) -> list[int]:
    rng, lengths = random.Random(1), Lengths.parse(text, "--input-tokens")
    return [lengths.draw(rng) for _ in range(count)]


def test_lengths_are_as_they_are_described() -> None:
    assert set(drawn("7", 5)) == {7}
    assert set(drawn("uniform:3-6")) == {3, 4, 5, 6}
    skewed = drawn("lognormal:400:0.8:4000")
    assert np.median(skewed) == pytest.approx(400, rel=0.06)
    assert np.std(np.log([length for length in skewed if length < 4000])) == pytest.approx(0.8, rel=0.06)
    assert max(skewed) == 4000
    assert min(drawn("lognormal:2:3")) == 1
    assert set(drawn("lognormal:9:0", 5)) == {9}
    assert str(Lengths.parse("lognormal:400:0.8:4000", "")) == "log-normal, median 400, sigma 0.8, at most 4,000"


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "x", ":", "uniform", "uniform:5", "uniform:9-3", "uniform:0-3", "lognormal:5",
             "lognormal:0:1", "lognormal:5:-1", "lognormal:5:nan", "lognormal:9:1:5", "lognormal:5:1:9:9", "9" * 11],
)  # fmt: skip
def test_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="--input-tokens is"):
        Lengths.parse(text, "--input-tokens")


# -- traces ------------------------------------------------------------------------------------------------------------


def trace(folder: Path, name: str, text: str) -> tuple[Entry, ...]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_trace(str(path))


def test_the_public_conversation_trace_is_read(tmp_path: Path) -> None:
    rows = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,0\n"
    )
    assert trace(tmp_path, "a.csv", "\ufeff" + rows) == (
        Entry(4808, 10, 0.0),
        Entry(3180, 1, pytest.approx(0.052, abs=1e-5)),
    )


def test_json_lines_may_have_times_in_milliseconds_or_text(tmp_path: Path) -> None:
    mooncake = '{"timestamp": 2000, "input_length": 5, "output_length": 6, "hash_ids": [1]}\n\n'
    mooncake += '{"timestamp": 500, "input_length": 7, "output_length": 8, "hash_ids": [1]}\n'
    assert trace(tmp_path, "a.jsonl", mooncake) == (Entry(7, 8, 0.0), Entry(5, 6, 1.5))
    messages = ({"role": "user", "content": "hi"},)
    texts = '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}\n{"prompt": "yes"}\n'
    assert trace(tmp_path, "b.jsonl", texts) == (
        Entry(1, 9, messages=messages),
        Entry(1, 128, text="yes"),
    )


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "a,b\n1,2\n", "line 2 says nothing of its prompt"),
        ("a.csv", "", "holds no request"),
        ("a.csv", "ContextTokens\nmany\n", "line 2: could not convert"),
        ("a.csv", "ContextTokens\n-4\n", "line 2: contexttokens is -4"),
        ("a.csv", "ContextTokens\nnan\n", "line 2: contexttokens is nan"),
        ("a.csv", "ContextTokens,time\n4,soon\n", "line 2: Invalid isoformat"),
        ("a.jsonl", "[1]\n", "line 1 is no JSON object"),
        ("a.jsonl", '{"messages": [{"role": "user"}]}\n', "a message has a role and a content"),
        ("a.jsonl", '{"messages": "hi"}\n', "messages is no list"),
    ],
)
def test_a_trace_that_is_none_is_refused_with_its_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        trace(tmp_path, name, text)


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="No such file"):
        read_trace(str(tmp_path / "none.csv"))


# -- words and conversations -------------------------------------------------------------------------------------------


async def count(body: Json) -> int | None:
    """A tokenizer that halves long words; its template takes 3 tokens a message and 2 at the end."""
    texts = [message["content"] for message in body["messages"]] if "messages" in body else [body["prompt"]]
    words = sum(1 + (len(word) > 5) for text in texts for word in text.split())
    return words + (3 * len(texts) + 2 if "messages" in body else bool(body["add_special_tokens"]))


async def test_words_are_those_of_one_token_and_what_is_beside_them_is_known() -> None:
    vocabulary = await learn(count, (("system", "user"), ("user",), ()))
    assert vocabulary.exact
    assert len(vocabulary.words) > 50
    assert max(map(len, vocabulary.words)) == 5
    assert vocabulary.markup == {("system", "user"): 8, ("user",): 5, (): 1}
    assert len(set(WORDS)) == len(WORDS)


async def test_who_cannot_count_gets_words_and_no_promise() -> None:
    async def nobody(body: Json) -> int | None:
        return None

    async def of_bytes(body: Json) -> int | None:
        return 1_000

    async def of_words_alone(body: Json) -> int | None:
        return None if "messages" in body else await count(body)

    for counter in (nobody, of_bytes):
        vocabulary = await learn(counter, (("user",),))
        assert (vocabulary.words, vocabulary.exact, vocabulary.beside(("user",))) == (WORDS, False, 0)
    assert not (await learn(of_words_alone, (("user",),))).exact


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("shared", [0, 40])
async def test_prompts_are_as_long_as_wanted_and_begin_alike(endpoint: str, shared: int) -> None:
    shape = Shape(prompt=Lengths.parse("uniform:1-60", ""), output=Lengths(5, 5), shared_prefix=shared, prefixes=2)
    kind: Endpoint = "chat" if endpoint == "chat" else "completions"
    vocabulary = await learn(count, (shape.roles(kind),))
    made = list(islice(synthetic(shape, vocabulary, kind, random.Random(3)), 40))
    prefixes = set()
    for turns in made:
        (question,) = Dialogue(turns).questions(kind, {"model": "m"})
        body = question.body if "messages" in question.body else question.body | {"add_special_tokens": True}
        assert await count(body) == question.prompt_tokens
        assert question.body["max_tokens"] == 5
        assert not question.keep_text
        prefixes.add(turns[0].messages[0]["content"] if shared else "")
    assert len(prefixes) == (2 if shared else 1)
    again = list(islice(synthetic(shape, vocabulary, kind, random.Random(3)), 40))
    assert again == made


def test_a_conversation_holds_all_that_was_said() -> None:
    vocabulary = Vocabulary(("a",), True, {("system", "user"): 4})
    shape = Shape(prompt=Lengths(6, 6), output=Lengths(1, 1), shared_prefix=3, turns=2)
    turns = next(synthetic(shape, vocabulary, "chat", random.Random(0)))
    dialogue = Dialogue(turns)
    questions = dialogue.questions("chat", {})
    first = next(questions)
    assert first.keep_text
    assert first.prompt_tokens == 9
    assert first.body["messages"] == [{"role": "system", "content": "a a a"}, {"role": "user", "content": "a a"}]
    dialogue.heard("yes")
    second = next(questions)
    assert (second.turn, second.prompt_tokens, second.keep_text) == (1, None, False)
    assert [message["role"] for message in second.body["messages"]] == ["system", "user", "assistant", "user"]
    assert second.body["messages"][2]["content"] == "yes"
    assert len(first.body["messages"]) == 2  # what was sent stays what it was
    plain = Dialogue(turns)
    asked = plain.questions("completions", {})
    next(asked)
    plain.heard("yes")
    assert next(asked).body["prompt"] == "a a a a a yes a a a a a a"


def test_a_trace_is_asked_in_order_with_its_own_words_where_it_has_some() -> None:
    entries = (Entry(4, 9), Entry(1, 3, text="why"), Entry(1, 2, messages=({"role": "user", "content": "hi"},)))
    vocabulary = Vocabulary(("a",), True, {("user",): 2})
    turns = [turn for (turn,) in of_trace(entries, vocabulary, "chat", random.Random(0), once=True)]
    assert [(turn.messages[0]["content"], turn.prompt_tokens, turn.output_tokens) for turn in turns] == [
        ("a a", 4, 9),
        ("why", None, 3),
        ("hi", None, 2),
    ]
    again = of_trace(entries, vocabulary, "chat", random.Random(0), once=False)
    assert len(list(islice(again, 7))) == 7
