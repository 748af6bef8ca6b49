"""From deltas to bytes: chunks that are put together say what chunks written field by field do, readers are woken when
there is something for them, and the source of a stream is closed whatever becomes of its client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo_engine.errors import EngineDead
from octavo_engine.mailbox import Mailbox
from octavo_engine.output import Delta
from octavo_engine.request import FinishReason, Sampled, TokenLogprob
from octavo_engine.server.answers import ChatForm, CompletionForm, Writer
from octavo_engine.server.chunks import Chunks
from octavo_engine.server.event_stream import EventStream, one_line

MODEL = 'a "model"\nwith é and 日本'


class Letters:
    """Spells token n as the n-th letter."""

    special_ids: frozenset[int] = frozenset()
    strips_first_space = False

    def token_bytes(self, index: int) -> bytes:
        return bytes([97 + index % 26])

    def whole_text(self, index: int) -> str:
        return self.token_bytes(index).decode()


def chunks(form: type[ChatForm] | type[CompletionForm], common: dict[str, Any], *, logprobs: bool = False) -> Chunks:
    made: Any = form(Letters(), logprobs=logprobs)  # type: ignore[arg-type]
    return Chunks(Writer(id="x", model=MODEL, form=made, created=1), common)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
ENDS = st.sampled_from([None, None, None, FinishReason.STOP, FinishReason.LENGTH])
DELTAS = st.builds(Delta, TEXTS, st.sampled_from([(), (Sampled(3, TokenLogprob(3, -0.5), ()),)]), ENDS, st.none())


@given(
    st.sampled_from([ChatForm, CompletionForm]),
    st.lists(st.tuples(st.integers(0, 3), DELTAS), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_a_chunk_put_together_is_the_chunk_written_out(form, deltas, usage, logprobs):
    common = {"usage": None} if usage else {}
    fast, plain = chunks(form, common, logprobs=logprobs), chunks(form, common, logprobs=logprobs)
    for index, delta in deltas:
        assert fast.piece(index, delta) == plain.whole(index, delta)


@given(TEXTS)
@example("\x85\u2028\u2029")
def test_json_is_one_line_to_all_who_read_lines_and_says_the_same(text):
    written = one_line(json.dumps({"text": text}, ensure_ascii=False))
    assert len(written.splitlines()) == 1
    assert json.loads(written) == {"text": text}


@pytest.mark.parametrize("form", [ChatForm, CompletionForm])
def test_several_pieces_are_events_of_their_own_and_what_says_nothing_is_left_out(form):
    made = chunks(form, {})
    sent = made.pieces([(0, Delta("a ", (Sampled(1),))), (1, Delta("")), (0, Delta("", (), FinishReason.STOP))])
    events = [json.loads(each.removeprefix("data: ")) for each in sent.decode().split("\n\n")[:-1]]
    assert [event["choices"][0]["index"] for event in events] == [0, 0]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, "stop"]
    assert {event["model"] for event in events} == {MODEL}


async def test_a_late_reader_takes_all_at_once_in_order():
    box = Mailbox()
    deltas = [Delta(str(number)) for number in range(3)]
    for number, delta in enumerate(deltas):
        box.put(number, delta)
    assert await box.take() == list(enumerate(deltas))
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    box.put(7, deltas[0])
    box.put(8, deltas[1])
    assert await reader == [(7, deltas[0]), (8, deltas[1])]


@pytest.mark.parametrize("end", [Delta("", (), FinishReason.LENGTH), EngineDead("lost")])
async def test_who_wants_the_whole_is_woken_at_an_end_only(end):
    box = Mailbox(only_ends=True)
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    for _ in range(5):
        box.put(0, Delta("x"))
        await asyncio.sleep(0)
        assert not reader.done()
    box.put(0, end)
    assert len(await reader) == 6


async def test_a_reader_that_left_does_not_hold_what_comes():
    box = Mailbox()
    reader = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    reader.cancel()
    box.put(0, Delta("a"))
    assert await box.take() == [(0, Delta("a"))]


class Sent(list[dict[str, Any]]):
    """An ASGI client that is lost when it has got `reads` messages."""

    def __init__(self, reads: int) -> None:
        super().__init__()
        self._reads = reads

    async def __call__(self, message: dict[str, Any]) -> None:
        if len(self) == self._reads:
            raise ConnectionResetError
        self.append(message)


async def pieces(closed: list[str]) -> AsyncGenerator[bytes, None]:
    try:
        for number in range(4):
            await asyncio.sleep(0)
            yield b"%d" % number
    finally:
        closed.append("closed")


async def stream(client: Sent, closed: list[str]) -> None:
    events = pieces(closed)
    await EventStream(await anext(events), events)({}, None, client)  # type: ignore[arg-type]


async def test_a_stream_is_sent_whole_and_its_source_is_closed():
    client, closed = Sent(reads=99), []
    await stream(client, closed)
    assert closed == ["closed"]
    assert [message.get("body") for message in client] == [None, b"0", b"1", b"2", b"3", b""]
    assert [message["more_body"] for message in client[1:]] == [True] * 4 + [False]


async def test_the_source_of_a_stream_that_cannot_be_sent_is_closed():
    client, closed = Sent(reads=3), []
    with pytest.raises(ConnectionResetError):
        await stream(client, closed)
    assert closed == ["closed"]
    assert len(client) == 3
