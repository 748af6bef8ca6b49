"""What each key may take of this server: requests at once, requests a minute, tokens a minute.

A request takes its place before its body is read, so that nothing is done for one that cannot have it. It reserves the
most tokens that it may become, prompt and `max_tokens`, before the engine has heard of it, and gives back what it did
not use when it is over. Accounts are of names, so that a key and the one that replaces it share one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from octavo_engine.errors import RateLimited
from octavo_engine.request import EventKind, RejectReason
from octavo_engine.server.exchange import Exchange
from octavo_engine.server.key_file import MAX_KEYS, Key, KeyLimits
from octavo_engine.server.rates import Bucket, Reservation, duration

AT_ONCE_SECONDS = 1.0  # when one of the present requests will be over, nobody knows


class Kind(StrEnum):
    """What there can be too many of: the error's `type`, in OpenAI's words."""

    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What a request has to wait for, and how long at most."""

    kind: Kind
    seconds: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a request has got; None where there is no limit to it, and of tokens while it has not said how many."""

    requests: Reservation | None
    tokens: Reservation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What an HTTP request has used when it is over; 0 requests: nobody has begun it."""

    requests: int = 0
    tokens: int = 0


class Account:
    """What the keys of one name have taken. Times are in seconds on one monotonic clock."""

    def __init__(self, limits: KeyLimits, now: float) -> None:
        self.limits = limits
        self.requests = _bucket(limits.requests_per_minute, now)
        self.tokens = _bucket(limits.tokens_per_minute, now)
        self.running = 0

    def no_place(self, now: float) -> Shortage | None:
        """Why a request cannot be let in now, if it cannot."""
        limits = self.limits
        if limits.max_concurrent_requests is not None and self.running >= limits.max_concurrent_requests:
            words = f"{limits.max_concurrent_requests} requests of this key are waiting or running, as many as may"
            return Shortage(kind=Kind.REQUESTS, seconds=AT_ONCE_SECONDS, words=words)
        if self.requests is not None and (seconds := self.requests.wait(1, now)):
            words = f"this key may begin {limits.requests_per_minute} requests a minute"
            return Shortage(kind=Kind.REQUESTS, seconds=seconds, words=words)
        return None

    def enter(self, now: float) -> Grant:
        """Let in a request for which there is a place."""
        self.running += 1
        return Grant(requests=None if self.requests is None else self.requests.take(1, now))

    def too_many(self, tokens: int, now: float) -> Shortage | None:
        """Why a request cannot have so many tokens now, if it cannot."""
        if self.tokens is None or not (seconds := self.tokens.wait(tokens, now)):
            return None
        may = self.limits.tokens_per_minute
        words = f"this key may use {may} tokens a minute, and this request up to {tokens}"
        return Shortage(kind=Kind.TOKENS, seconds=seconds, words=words)

    def give(self, grant: Grant, tokens: int, now: float) -> Grant:
        """Let a request that is in have so many tokens, which are not too many."""
        return grant if self.tokens is None else replace(grant, tokens=self.tokens.take(tokens, now))

    def leave(self, grant: Grant, used: Use, now: float) -> None:
        """It is over."""
        self.running -= 1
        if self.requests is not None and grant.requests is not None:
            self.requests.settle(grant.requests, used.requests, now)
        if self.tokens is not None and grant.tokens is not None:
            self.tokens.settle(grant.tokens, used.tokens, now)

    def limit(self, limits: KeyLimits, now: float) -> None:
        """From now on its limits are these. A rate that was changed begins anew."""
        if limits.requests_per_minute != self.limits.requests_per_minute:
            self.requests = _bucket(limits.requests_per_minute, now)
        if limits.tokens_per_minute != self.limits.tokens_per_minute:
            self.tokens = _bucket(limits.tokens_per_minute, now)
        self.limits = limits

    def idle(self, now: float) -> bool:
        """True when nothing would be lost with it."""
        buckets = (bucket for bucket in (self.requests, self.tokens) if bucket is not None)
        return self.running == 0 and not any(bucket.full_in(now) for bucket in buckets)

    def headers(self, now: float) -> dict[str, str]:
        """What is left, in OpenAI's headers."""
        told: dict[str, str] = {}
        for kind, bucket in ((Kind.REQUESTS, self.requests), (Kind.TOKENS, self.tokens)):
            if bucket is not None:
                told[f"x-ratelimit-limit-{kind}"] = f"{bucket.size:.0f}"
                told[f"x-ratelimit-remaining-{kind}"] = str(bucket.remaining(now))
                told[f"x-ratelimit-reset-{kind}"] = duration(bucket.full_in(now))
        return told


def _bucket(per_minute: int | None, now: float) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute, now)


class Visit:
    """One HTTP request of a key, from its receipt to the end of its reply."""

    def __init__(
        self,
        account: Account | None = None,
        *,
        on_reject: Callable[[RejectReason], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without an `account` there is no limit."""
        self._account = account
        self._on_reject = on_reject
        self._clock = clock
        self._asked = False
        self._grant: Grant | None = None
        self._used: Callable[[], Use] = Use  # asked when it is over

    @property
    def limited(self) -> bool:
        """True when its replies may have something to tell."""
        return self._account is not None

    def begin(self) -> None:
        """Take a place for it; raises RateLimited."""
        if self._account is None:
            return
        self._asked, now = True, self._clock()
        if (shortage := self._account.no_place(now)) is not None:
            raise self._limited_by(shortage)
        self._grant = self._account.enter(now)

    def reserve(self, exchange: Exchange) -> None:
        """Take the tokens that the exchange's requests may become; raises RateLimited, and then has taken none."""
        if (shortage := self._take(most_tokens(exchange))) is not None:
            for request in exchange.requests:
                request.note(self._clock(), EventKind.REJECTED, RejectReason.RATE_LIMITED)
            raise self._limited_by(shortage)
        self._used = lambda: used_by(exchange)

    def spend(self, tokens: int) -> None:
        """Take tokens that are used here and now, by no request; raises RateLimited, and then has taken none."""
        if (shortage := self._take(tokens)) is not None:
            raise self._limited_by(shortage)
        self._used = lambda: Use(requests=1, tokens=tokens)

    def _take(self, tokens: int) -> Shortage | None:
        if self._account is None or self._grant is None:
            return None
        now = self._clock()
        if (shortage := self._account.too_many(tokens, now)) is None:
            self._grant = self._account.give(self._grant, tokens, now)
        return shortage

    def _limited_by(self, shortage: Shortage) -> RateLimited:
        self._on_reject(RejectReason.RATE_LIMITED)
        seconds = max(1, math.ceil(shortage.seconds))
        message = f"{shortage.words}; try again in {seconds} s"
        return RateLimited(message, kind=shortage.kind, reason=RejectReason.RATE_LIMITED, retry_after=seconds)

    def headers(self) -> dict[str, str]:
        """What its reply tells of what is left."""
        return {} if self._account is None or not self._asked else self._account.headers(self._clock())

    def end(self) -> None:
        """The reply has ended, in whatever way: give back what was not used."""
        if self._account is None or self._grant is None:
            return
        grant, self._grant = self._grant, None
        self._account.leave(grant, self._used(), self._clock())


def most_tokens(exchange: Exchange) -> int:
    """What its requests may become: a prompt counts once, however many answers it gets."""
    return exchange.prompt_tokens + sum(request.params.max_tokens for request in exchange.requests)


def used_by(exchange: Exchange) -> Use:
    """What its requests have used: nothing if the engine's queue refused them, no tokens if they only waited there."""
    if exchange.requests[0].events[-1].what is EventKind.REJECTED:
        return Use()
    begun = exchange.queue_seconds is not None
    return Use(requests=1, tokens=exchange.prompt_tokens + exchange.output_tokens if begun else 0)


class Quotas:
    """The accounts of those names that have limits."""

    def __init__(
        self,
        *,
        on_reject: Callable[[RejectReason], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_reject = on_reject
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    def visit(self, key: Key | None) -> Visit:
        """A request has come with this key, or without one."""
        if key is None or not key.limits.any:
            return Visit()
        return Visit(self._account(key), on_reject=self._on_reject, clock=self._clock)

    def _account(self, key: Key) -> Account:
        now, account = self._clock(), self._accounts.get(key.name)
        if account is None:
            if len(self._accounts) >= MAX_KEYS:  # those of keys that were replaced are among them
                self._accounts = {name: kept for name, kept in self._accounts.items() if not kept.idle(now)}
            account = self._accounts[key.name] = Account(key.limits, now)
        elif account.limits != key.limits:
            account.limit(key.limits, now)
        return account
