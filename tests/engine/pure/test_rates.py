"""Token buckets: never more than the rate and one burst in any window, nothing lost but what would have overflowed, and
whoever waits as long as told gets in."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.server.rates import Bucket, duration

SIZE = 60  # a bucket that gets one a second
LITTLE = 1e-3


class Request:
    """What was let in, and what it has used in the end."""

    def __init__(self, at: float, used: float) -> None:
        self.at, self.used = at, used


# What happens, and when: a request comes that reserves so much, of which it will use a share; or one of those that run
# ends.
STEPS = st.lists(
    st.tuples(st.floats(0, 90), st.one_of(st.tuples(st.integers(1, SIZE), st.floats(0, 1)), st.integers(0, 7))),
    max_size=40,
)


def story(bucket: Bucket, steps) -> list[Request]:
    """What was let in when these things happened one after the other."""
    admitted, running, now = [], [], 0.0
    for pause, what in steps:
        now += pause
        if isinstance(what, int):
            if running:
                reservation, request = running.pop(what % len(running))
                bucket.settle(reservation, request.used, now)
        elif not bucket.wait(what[0], now):
            request = Request(now, what[0] * what[1])
            running.append((bucket.take(what[0], now), request))
            admitted.append(request)
    return admitted


@given(STEPS)
def test_no_window_sees_more_than_its_rate_and_one_burst(steps) -> None:
    admitted = story(Bucket(SIZE, 0.0), steps)
    used = [0.0, *accumulate(request.used for request in admitted)]
    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            seconds = admitted[last].at - admitted[first].at
            assert used[last + 1] - used[first] <= SIZE + seconds * SIZE / 60 + LITTLE


def test_a_reservation_that_was_held_for_long_gives_back_no_second_burst() -> None:
    """Its place in the bucket has been filled since: given back as well, twice as much could be taken at once."""
    bucket = Bucket(SIZE, 0.0)
    long = bucket.take(SIZE, 0.0)
    bucket.take(SIZE, 60.0)
    bucket.settle(long, 0.0, 60.0)
    assert bucket.remaining(60.0) == 0
    # One that ends at once gives back all, and one that ends halfway what has not flowed in meanwhile.
    bucket.settle(bucket.take(SIZE, 120.0), 0.0, 120.0)
    assert bucket.remaining(120.0) == SIZE
    half = bucket.take(SIZE, 120.0)
    bucket.settle(half, 0.0, 150.0)
    assert bucket.remaining(150.0) == SIZE


@given(STEPS, st.integers(1, 3 * SIZE), st.floats(0, 100))
def test_who_waits_as_long_as_told_gets_in_and_not_much_sooner(steps, amount, later) -> None:
    bucket, now = Bucket(SIZE, 0.0), 90.0 * 41
    story(bucket, steps)
    bucket.take(SIZE, now)
    now += later
    wait = bucket.wait(amount, now)
    if wait > LITTLE:
        assert bucket.wait(amount, now + wait - LITTLE / 2), "it would have got in before"
    assert not bucket.wait(amount, now + wait)
    bucket.take(amount, now + wait)


@given(STEPS)
def test_there_is_never_more_than_a_bucket_full_and_in_the_end_it_is_full(steps) -> None:
    bucket, now = Bucket(SIZE, 0.0), 0.0
    for pause, what in steps:
        now += pause
        if not isinstance(what, int) and not bucket.wait(what[0], now):
            before = bucket.remaining(now)
            reservation = bucket.take(what[0], now)
            assert bucket.remaining(now) == before - what[0]
            bucket.settle(reservation, what[0] * what[1], now)
            assert before - what[0] <= bucket.remaining(now) <= before <= SIZE
    assert not bucket.full_in(now + 60)


def test_what_is_larger_than_the_bucket_waits_for_a_full_one_and_is_paid_for_afterwards() -> None:
    bucket = Bucket(SIZE, 0.0)
    bucket.take(1, 0.0)
    assert bucket.wait(3 * SIZE, 0.0) == pytest.approx(1.0)
    large = bucket.take(3 * SIZE, 1.0)
    assert bucket.remaining(1.0) == 0
    assert bucket.wait(1, 1.0) == pytest.approx(2 * SIZE + 1)
    bucket.settle(large, SIZE, 1.0)
    assert bucket.wait(1, 1.0) == pytest.approx(1.0), "it used no more than the bucket held"


def test_time_that_goes_back_takes_nothing_away() -> None:
    bucket = Bucket(SIZE, 100.0)
    bucket.take(SIZE, 100.0)
    assert bucket.remaining(130.0) == 30
    assert bucket.remaining(90.0) == 30
    assert bucket.remaining(131.0) == 31


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.5, "59.5s"),
        (360, "6m0s"),
        (59.9999, "1m0s"),
        (90.2, "1m31s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
