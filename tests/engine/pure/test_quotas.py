"""What keys may take: a request reserves all or nothing, and gives back what it did not use, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from octavo_engine.errors import RateLimited
from octavo_engine.request import EventKind, FinishReason, RejectReason, Request, SamplingParams
from octavo_engine.server.exchange import Exchange
from octavo_engine.server.key_file import MAX_KEYS, Key, KeyLimits, bare_key
from octavo_engine.server.quotas import Quotas, Visit
from octavo_engine.server.replies import refusal_of


class World:
    """Quotas, their clock, and what was refused."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rejected: list[RejectReason] = []
        self.quotas = Quotas(on_reject=self.rejected.append, clock=lambda: self.now)

    def come(self, key: Key | None, *, prompt: int = 10, most: int = 10, copies: int = 1) -> tuple[Visit, Exchange]:
        """A request that was let in; raises RateLimited."""
        visit, exchange = self.quotas.visit(key), exchange_of(prompt, most, copies)
        with self.left_if_refused(visit):
            visit.begin()
            visit.reserve(exchange)
        return visit, exchange

    def spend(self, key: Key | None, tokens: int) -> Visit:
        """One whose tokens no request computes, as /tokenize's; it has not ended. Raises RateLimited."""
        visit = self.quotas.visit(key)
        with self.left_if_refused(visit):
            visit.begin()
            visit.spend(tokens)
        return visit

    @staticmethod
    @contextmanager
    def left_if_refused(visit: Visit) -> Iterator[None]:
        try:
            yield
        except RateLimited:
            visit.end()
            raise


def exchange_of(prompt: int, most: int, copies: int) -> Exchange:
    made = Exchange(method="POST", path="/", client="", headers=Headers(), x_request_id="x", began=0.0)
    made.copies = copies
    made.requests = [
        Request(id=f"r-{n}", tokens=[1] * prompt, params=SamplingParams(max_tokens=most), arrival=0.0)
        for n in range(copies)
    ]
    return made


def say(exchange: Exchange, tokens: int) -> None:
    """Each of its requests was admitted and has said so much."""
    for request in exchange.requests:
        request.note(1.0, EventKind.ADMITTED)
        request.tokens += [2] * tokens
        request.finish_reason = FinishReason.STOP


@pytest.fixture
def world() -> World:
    return World()


def key(name: str = "team", **limits: int) -> Key:
    return Key(digest=bare_key(name, KeyLimits()).digest, name=name, limits=KeyLimits(**limits))


def test_what_was_not_used_comes_back_and_what_was_used_comes_back_with_time(world: World) -> None:
    team = key(tokens_per_minute=600)
    visit, exchange = world.come(team, prompt=100, most=200, copies=2)
    assert visit.headers() == {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "100",  # the prompt once, and what both answers may become
        "x-ratelimit-reset-tokens": "50s",
    }
    say(exchange, 30)
    visit.end()
    visit.end()
    assert world.quotas.visit(team).headers() == {}, "it has not asked for anything"
    assert world.come(team, prompt=440, most=0)[0].headers()["x-ratelimit-remaining-tokens"] == "0"
    world.now += 3
    assert world.come(team, prompt=30, most=0)[0].headers()["x-ratelimit-remaining-tokens"] == "0"


def test_the_third_at_once_has_to_wait_until_one_has_ended(world: World) -> None:
    team, other = key(max_concurrent_requests=2), key("other", max_concurrent_requests=2)
    first, _ = world.come(team)
    world.come(team)
    with pytest.raises(RateLimited, match="2 requests of this key are waiting or running"):
        world.come(team)
    world.come(other)
    first.end()
    world.come(team)
    assert world.rejected == [RejectReason.RATE_LIMITED]


def test_requests_are_counted_when_they_begin(world: World) -> None:
    team = key(requests_per_minute=2)
    for _ in range(2):
        visit, exchange = world.come(team)
        say(exchange, 1)
        visit.end()
    with pytest.raises(RateLimited) as refused:
        world.come(team)
    assert refused.value.retry_after == 30
    world.now += 30
    world.come(team)


@pytest.mark.parametrize("ended", ["refused by the queue", "sent away while it waited", "gone in the middle"])
def test_what_computed_nothing_has_used_no_tokens(world: World, ended: str) -> None:
    team = key(requests_per_minute=60, tokens_per_minute=600)
    visit, exchange = world.come(team, prompt=500, most=100)
    if ended == "refused by the queue":
        exchange.requests[0].note(1.0, EventKind.REJECTED, RejectReason.QUEUE_FULL)
    elif ended == "sent away while it waited":
        exchange.requests[0].note(1.0, EventKind.FINISHED, FinishReason.QUEUE_DEADLINE)
    else:
        say(exchange, 10)
    visit.end()
    after = world.come(team, prompt=1, most=0)[0].headers()
    assert after["x-ratelimit-remaining-tokens"] == ("89" if ended == "gone in the middle" else "599")
    assert after["x-ratelimit-remaining-requests"] == ("59" if ended == "refused by the queue" else "58")


def test_a_refused_request_has_taken_nothing_and_is_told_in_openais_form(world: World) -> None:
    team = key(max_concurrent_requests=3, requests_per_minute=60, tokens_per_minute=600)
    first, _ = world.come(team, prompt=200, most=0)
    left = first.headers()
    with pytest.raises(RateLimited) as caught:
        world.come(team, prompt=300, most=101)
    refusal = refusal_of(caught.value)
    assert (refusal.status, refusal.type, refusal.code) == (429, "tokens", "rate_limit_exceeded")
    assert refusal.headers == {"Retry-After": "1"}
    assert refusal.message == "this key may use 600 tokens a minute, and this request up to 401; try again in 1 s"
    assert first.headers() == left
    world.come(team, prompt=400, most=0)


def test_its_requests_say_why_they_were_refused(world: World) -> None:
    team = key(tokens_per_minute=1)
    world.come(team)
    visit, exchange = world.quotas.visit(team), exchange_of(1, 1, 3)
    visit.begin()
    with pytest.raises(RateLimited):
        visit.reserve(exchange)
    assert [request.events[-1].why for request in exchange.requests] == [RejectReason.RATE_LIMITED] * 3
    assert visit.headers()["x-ratelimit-remaining-tokens"] == "0"
    visit.end()


def test_nothing_is_done_for_one_that_has_no_place(world: World) -> None:
    """It is refused before anybody knows what it asks for."""
    team = key(requests_per_minute=1)
    world.come(team)
    visit = world.quotas.visit(team)
    with pytest.raises(RateLimited, match="may begin 1 requests a minute"):
        visit.begin()
    assert visit.headers()["x-ratelimit-remaining-requests"] == "0"
    visit.end()
    assert world.rejected == [RejectReason.RATE_LIMITED]


def test_one_that_is_wrong_has_its_place_until_it_is_told_so_and_gives_it_back(world: World) -> None:
    team = key(max_concurrent_requests=1, requests_per_minute=2)
    visit = world.quotas.visit(team)
    visit.begin()
    with pytest.raises(RateLimited, match="1 requests of this key"):
        world.come(team)
    visit.end()
    for _ in range(2):
        passed, exchange = world.come(team)
        say(exchange, 1)
        passed.end()


def test_tokens_that_no_request_computes_are_spent_like_others(world: World) -> None:
    team = key(max_concurrent_requests=1, requests_per_minute=3, tokens_per_minute=100)
    visit = world.spend(team, 60)
    assert visit.headers()["x-ratelimit-remaining-tokens"] == "40"
    assert visit.headers()["x-ratelimit-remaining-requests"] == "2"
    with pytest.raises(RateLimited, match="1 requests of this key"):
        world.spend(team, 1)
    visit.end()
    with pytest.raises(RateLimited, match="100 tokens a minute, and this request up to 41") as refused:
        world.spend(team, 41)
    assert refused.value.kind == "tokens"
    world.spend(team, 40).end()
    assert world.quotas.visit(team).headers() == {}
    later = world.spend(team, 0)
    assert (later.headers()["x-ratelimit-remaining-tokens"], later.headers()["x-ratelimit-remaining-requests"]) == (
        "0",
        "0",
    )
    later.end()
    with pytest.raises(RateLimited, match="3 requests a minute"):
        world.spend(team, 0)


def test_keys_of_one_name_share_an_account_and_others_do_not(world: World) -> None:
    old, new = (Key(digest=name.encode(), name="team", limits=KeyLimits(requests_per_minute=1)) for name in "ab")
    world.come(old)
    with pytest.raises(RateLimited):
        world.come(new)
    world.come(key("other", requests_per_minute=1))


def test_without_limits_nothing_is_counted_or_told(world: World) -> None:
    for who in (None, key()):
        visit, exchange = world.come(who, prompt=10**6)
        assert not visit.limited
        say(exchange, 1)
        visit.end()
        assert visit.headers() == {}


def test_changed_limits_hold_at_once_also_for_what_runs(world: World) -> None:
    visit, exchange = world.come(key(max_concurrent_requests=5, tokens_per_minute=100), prompt=100, most=0)
    with pytest.raises(RateLimited, match="1 requests of this key"):
        world.come(key(max_concurrent_requests=1, tokens_per_minute=1000))
    say(exchange, 0)
    visit.end()
    later, _ = world.come(key(max_concurrent_requests=1, tokens_per_minute=1000), prompt=400, most=0)
    assert later.headers()["x-ratelimit-remaining-tokens"] == "600", "what a former rate reserved is not given to it"


def test_accounts_of_names_that_are_gone_do_not_pile_up(world: World) -> None:
    kept, _ = world.come(key("busy", max_concurrent_requests=1))
    for number in range(3 * MAX_KEYS):
        visit, _ = world.come(key(f"name-{number}", requests_per_minute=60))
        visit.end()
        world.now += 2
    assert len(world.quotas._accounts) <= MAX_KEYS + 1
    with pytest.raises(RateLimited):
        world.come(key("busy", max_concurrent_requests=1))
    kept.end()


@given(st.lists(st.tuples(st.sampled_from(["come", "end"]), st.integers(0, 60), st.integers(0, 60)), max_size=40))
def test_whatever_comes_and_ends_the_running_ones_are_counted_and_all_comes_back(steps) -> None:
    world, team = World(), key(max_concurrent_requests=3, requests_per_minute=30, tokens_per_minute=300)
    running: list[tuple[Visit, Exchange]] = []
    for what, prompt, most in steps:
        world.now += 1
        if what == "end" and running:
            visit, exchange = running.pop(prompt % len(running))
            say(exchange, most % (exchange.requests[0].params.max_tokens + 1))
            visit.end()
        elif what == "come":
            with suppress(RateLimited):
                running.append(world.come(team, prompt=prompt + 1, most=most))
        account = world.quotas._accounts.get("team")
        assert len(running) <= 3
        assert account is None or account.running == len(running)
    for visit, _ in running:
        visit.end()
    world.now += 60
    assert account_is_idle(world)


def account_is_idle(world: World) -> bool:
    return all(account.idle(world.now) for account in world.quotas._accounts.values())
