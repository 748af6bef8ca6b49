"""Messages between ranks: what is one, and what ends the talk instead of being misread."""

from __future__ import annotations

import pytest

from octavo_engine.parallel.channel import HEADER, MAX_BYTES, Channel, Kind, Message


def test_what_is_said_is_received_until_the_other_end_is_closed():
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    ours.say({"here": 1})
    ours.send(Kind.STEP, b"\x00\xff")
    ours.close()
    first, second, third = (other.receive() for _ in range(3))
    assert first is not None
    assert first.words == {"here": 1}
    assert second == Message(Kind.STEP, b"\x00\xff")
    assert third is None
    other.close()


@pytest.mark.parametrize(
    "sent",
    [
        HEADER.pack(7, 0),
        HEADER.pack(Kind.STEP, MAX_BYTES + 1),
        *(HEADER.pack(Kind.WORDS, len(body)) + body for body in (b"{", b"\xff", b"[1]", b"[" * 100_000)),
        HEADER.pack(Kind.WORDS, 9) + b"{}",
    ],
)
def test_what_is_no_message_is_the_end_and_raises_nothing(sent: bytes):
    """Who listens to all ranks would end with it, and a start wait for news for ever."""
    ours, theirs = Channel.pair()
    theirs.sendall(sent)
    theirs.close()
    assert ours.receive() is None
    ours.close()
