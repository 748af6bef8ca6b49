"""One active operator: a Lease held by renewing it, taken over when its holder falls silent.

Clocks of different machines are never compared: a standby measures, on its own clock, how long the record has not
changed. The holder gives up (`LeaseLost`) well before a standby may take over, so that two never act.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from octavo_operator.errors import ApiError, LeaseLost

log = logging.getLogger(__name__)

Record = dict[str, Any]

GIVE_UP_SHARE = 2 / 3  # of the lease's time, after which a holder that could not renew stops
RENEW_SHARE = 1 / 5
RETRY_SHARE = 2 / 15


class LeaseApi(Protocol):
    """What a lease needs of `cluster.Cluster`."""

    async def lease(self) -> Record | None: ...  # noqa: D102
    async def create_lease(self, spec: Record) -> Record: ...  # noqa: D102
    async def replace_lease(self, lease: Record, spec: Record) -> Record: ...  # noqa: D102


class Lease:
    """The claim of one process to be the active operator.

    Args:
        holder: this process's name, unique among operators.
        seconds: a standby takes over after this long without a renewal.
        clock: monotonic seconds.
    """

    def __init__(self, api: LeaseApi, holder: str, seconds: float, clock: Callable[[], float]) -> None:
        self._api = api
        self._holder = holder
        self._seconds = seconds
        self._clock = clock
        self._seen: tuple[Any, float] | None = None
        self._held: Record | None = None
        self._renewed_at = 0.0

    async def acquire(self) -> None:
        """Waits until this process holds the lease. API errors are logged and tried again."""
        while not await self._attempt(self.try_take):
            await asyncio.sleep(self._seconds * RETRY_SHARE)
        log.info("holding the lease as %s", self._holder)

    async def keep(self) -> None:
        """Renews for ever.

        Raises:
            LeaseLost: another holds it, or no renewal succeeded in time.
        """
        while True:
            await asyncio.sleep(self._seconds * RENEW_SHARE)
            left = self._renewed_at + self._seconds * GIVE_UP_SHARE - self._clock()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    while not await self._attempt(self.try_renew):
                        await asyncio.sleep(self._seconds * RETRY_SHARE)
            except TimeoutError as error:
                raise LeaseLost("the lease could not be renewed in time") from error

    async def release(self) -> None:
        """Lets the next operator take over at once; a failure only makes it wait."""
        if self._held is not None:
            await self._attempt(self._give_back)

    async def try_take(self) -> bool:
        """Takes the lease if it is free, ours, or its holder has been silent for too long."""
        before = self._clock()
        found = await self._api.lease()
        if found is None:
            self._hold(await self._api.create_lease(self._spec(transitions=0)), before)
            return True
        spec = found.get("spec", {})
        if not self._is_free(spec):
            return False
        transitions = spec.get("leaseTransitions", 0) + (spec.get("holderIdentity") != self._holder)
        self._hold(await self._api.replace_lease(found, self._spec(transitions)), before)
        return True

    async def try_renew(self) -> bool:
        """Writes a new renewal time.

        Raises:
            LeaseLost: the record names another holder.
        """
        before = self._clock()
        found = await self._api.lease()
        if found is None or found.get("spec", {}).get("holderIdentity") != self._holder:
            raise LeaseLost("another operator holds the lease, or it was deleted")
        self._hold(await self._api.replace_lease(found, self._spec(found["spec"].get("leaseTransitions", 0))), before)
        return True

    def _is_free(self, spec: Record) -> bool:
        holder = spec.get("holderIdentity")
        if not holder or holder == self._holder:
            return True
        sign_of_life = (holder, spec.get("renewTime"))
        if self._seen is None or self._seen[0] != sign_of_life:
            self._seen = (sign_of_life, self._clock())
            return False
        # The holder's own duration counts: it may be configured to be slower than we are.
        return self._clock() - self._seen[1] > max(self._seconds, float(spec.get("leaseDurationSeconds", 0)))

    def _hold(self, record: Record, at: float) -> None:
        """`at` is from before the request: the server may have written it then."""
        self._held, self._renewed_at = record, at

    async def _give_back(self) -> bool:
        assert self._held is not None
        spec = self._held["spec"] | {"holderIdentity": "", "renewTime": _micro_time()}
        await self._api.replace_lease(self._held, spec)
        self._held = None
        return True

    def _spec(self, transitions: int) -> Record:
        now = _micro_time()
        kept = self._held["spec"].get("acquireTime", now) if self._held else now
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "acquireTime": kept,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    async def _attempt(self, act: Callable[[], Any]) -> bool:
        try:
            return bool(await act())
        except ApiError as error:
            log.warning("lease: %s", error)
            return False


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
