"""Two clients ask one server at the same time, each whenever it likes: what the server does, it does to both.

In turns they could not be held against each other. A client that is busy itself makes the server slow, and tells truly
how slow it was; and one that asks again as soon as it was answered comes in at the same moment of a step each time,
which is its own pause and none of the server's. So both ask at random times, and what ours saw counts while the other
asked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from octavo_engine.bench.wire import AGENT

from .agreement import Told
from .answers import Answer, on_the_wire
from .clients import Client
from .loads import Load
from .wire import Exchange, Watcher

START_SECONDS = 30.0  # in which the other client has started; ours is asking by then
LONGER = 1.25  # random times may take longer than they do on average
SETTLE_SECONDS = 0.5


class NotTogether(Exception):
    """The two did not ask at the same time, or one of them tells of other requests than were on the wire."""


def together(load: Load, ours: Client, other: Client, port: int, seed: int) -> tuple[Told, Told]:
    """What both tell of the time in which the other one's requests, but for its first, were asked.

    Raises NotTogether, ClientFailed, NotTheDefinition, and PermissionError where nobody may watch the wire.
    """
    longer = replace(load, seconds=START_SECONDS + LONGER * load.asked / load.rate)
    with Watcher(port) as watcher, ThreadPoolExecutor(1) as thread:
        asking = thread.submit(ours.ask, longer, port, seed)
        theirs = other.ask(load, port, seed + 1)
        mine = asking.result()
        time.sleep(SETTLE_SECONDS)
    return at_once(load, mine, theirs, watcher.exchanges())


def at_once(
    load: Load, mine: Sequence[Answer], theirs: Sequence[Answer], seen: Sequence[Exchange]
) -> tuple[Told, Told]:
    """What was told of that time, out of all that was; each in the order in which it was asked. Raises NotTogether."""
    own = _matched(mine, [each for each in seen if each.agent == AGENT.encode()])
    others = _matched(theirs, [each for each in seen if each.agent != AGENT.encode()])[load.warmup :]
    first, last = others[0][1].asked, others[-1][1].asked
    if not own or own[0][1].asked > first or own[-1][1].asked < last:
        raise NotTogether("octavo bench did not ask all the time in which the other client did")
    counted = [each for each in own if first <= each[1].asked <= last]
    if not counted:
        raise NotTogether("octavo bench asked nothing while the other client did")
    return _told(counted, load), _told(others, load)


Matched = list[tuple[Answer, Exchange]]


def _matched(answers: Sequence[Answer], seen: Sequence[Exchange]) -> Matched:
    if len(answers) != len(seen):
        raise NotTogether(f"a client tells of {len(answers)} answers, {len(seen)} of its requests were on the wire")
    return list(zip(answers, seen, strict=True))


def _told(matched: Matched, load: Load) -> Told:
    return Told([answer for answer, _ in matched], on_the_wire([seen for _, seen in matched], load.output_tokens))
