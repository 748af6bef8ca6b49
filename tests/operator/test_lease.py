"""The Lease: one holder at a time, takeover after silence by the standby's own clock, no write over another's."""

import asyncio

import pytest

from moved_clock import MovedClock
from octavo_operator import lease as leases
from octavo_operator.errors import Conflict, LeaseLost, Retryable
from octavo_operator.lease import Lease


class Store:
    """A Lease object with optimistic concurrency."""

    def __init__(self):
        self.record = None
        self.broken = False

    async def lease(self):
        if self.broken:
            raise Retryable("down", 500)
        return self.record

    async def create_lease(self, spec):
        if self.record:
            raise Conflict("exists", 409)
        self.record = {"metadata": {"resourceVersion": "1"}, "spec": spec}
        return self.record

    async def replace_lease(self, lease, spec):
        if lease["metadata"] != self.record["metadata"]:
            raise Conflict("changed", 409)
        version = str(int(self.record["metadata"]["resourceVersion"]) + 1)
        self.record = {"metadata": {"resourceVersion": version}, "spec": spec}
        return self.record


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def claims(store, clock):
    return [Lease(store, name, 15.0, clock) for name in ("first", "second")]


async def test_the_first_takes_it_and_the_second_waits(claims):
    first, second = claims
    assert await first.try_take()
    assert not await second.try_take()


async def test_a_renewing_holder_is_never_displaced(claims, clock):
    first, second = claims
    await first.try_take()
    for _ in range(20):
        clock.now += 10
        await first.try_renew()
        assert not await second.try_take()


async def test_a_silent_holder_is_displaced_after_its_time_on_the_standbys_clock(claims, clock, store):
    first, second = claims
    await first.try_take()
    clock.now = 1000.0
    assert not await second.try_take(), "the first look starts the standby's clock, whatever the record's times say"
    clock.now += 14
    assert not await second.try_take()
    clock.now += 2
    assert await second.try_take()
    assert store.record["spec"]["leaseTransitions"] == 1
    with pytest.raises(LeaseLost):
        await first.try_renew()


async def test_a_released_lease_is_free_at_once(claims):
    first, second = claims
    await first.try_take()
    await first.release()
    assert await second.try_take()


async def test_a_restarted_holder_takes_its_own_lease_back(store, clock, claims):
    await claims[0].try_take()
    assert await Lease(store, "first", 15.0, clock).try_take()


async def test_a_race_has_one_winner(claims, store, clock):
    first, second = claims
    await first.try_take()
    await first.release()
    stale = dict(store.record)
    assert await second.try_take()
    with pytest.raises(Conflict):
        await store.replace_lease(stale, {})


async def test_a_holder_that_cannot_renew_gives_up_before_a_standby_may_act(store, monkeypatch):
    """Its pauses pass at once: what counts is how long they are together."""
    clock, sleep = MovedClock(monkeypatch), asyncio.sleep

    async def pause(seconds):
        clock.move_on(seconds)
        await sleep(0)

    loop = asyncio.get_running_loop()
    lease = Lease(store, "first", 600.0, loop.time)
    await lease.acquire()
    store.broken = True
    started = loop.time()
    monkeypatch.setattr(leases.asyncio, "sleep", pause)
    with pytest.raises(LeaseLost):
        await lease.keep()
    assert 600.0 / 2 < loop.time() - started < 600.0


async def test_a_deleted_lease_is_lost(claims, store):
    await claims[0].try_take()
    store.record = None
    with pytest.raises(LeaseLost):
        await claims[0].try_renew()
