"""One level-based reconcile: observe -> plan -> apply -> status. It knows no events and no kopf.

Whatever happened before, it looks at what is there now and brings it one step nearer to the spec.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from octavo_operator import desired, notes, status
from octavo_operator import rollout as rollouts
from octavo_operator.causes import Cause
from octavo_operator.desired import Defaults
from octavo_operator.errors import ApiError, Conflict, Refused, SpecError
from octavo_operator.names import Key
from octavo_operator.notes import Note
from octavo_operator.observed import Observed
from octavo_operator.plan import Apply, Plan, Step, make_plan
from octavo_operator.scaler import Scaler
from octavo_operator.spec import read_spec

log = logging.getLogger(__name__)

BLOCKED_SECONDS = 10.0
"""Objects of others are not watched: nothing tells when one that is in the way goes."""
SILENT_SECONDS, TOLD_SECONDS = 5.0, 30.0
"""Events are not watched either: nothing tells when one says at last what a pod waits for, or says something else."""


class Api(Protocol):
    """What a reconcile needs of `cluster.Cluster`."""

    async def service(self, key: Key) -> dict[str, Any] | None: ...  # noqa: D102
    async def observe(self, resource: dict[str, Any]) -> Observed: ...  # noqa: D102
    async def execute(self, namespace: str, step: Step) -> None: ...  # noqa: D102
    async def write_status(self, resource: dict[str, Any], status: dict[str, Any]) -> None: ...  # noqa: D102


class Teller(Protocol):
    """What `events.Recorder` offers."""

    async def tell(self, resource: dict[str, Any], notes: Iterable[Note]) -> None: ...  # noqa: D102


class Reconciler:
    """Brings services to their spec.

    Args:
        defaults: what the operator's settings add to a spec.
        events: told what is worth an Event.
        now: RFC 3339 wall time, for status only.
    """

    def __init__(self, api: Api, scaler: Scaler, defaults: Defaults, events: Teller, *, now: Callable[[], str]) -> None:
        self._api = api
        self._events = events
        self._scaler = scaler
        self._defaults = defaults
        self._now = now

    async def reconcile(self, key: Key) -> float | None:
        """Looks at one service and does what is to be done.

        Returns:
            Seconds after which to look again although no event may come; None when events suffice.

        Raises:
            ApiError: something could not be done and should be tried again; status says what.
        """
        resource = await self._api.service(key)
        if resource is None or "deletionTimestamp" in resource["metadata"]:
            self._scaler.forget(key)  # the children follow by their owner references
            return None
        try:
            spec = read_spec(resource)
            observed = await self._api.observe(resource)
        except (SpecError, Refused) as error:
            await self._stand_still(resource, error)
            return None
        telemetry = self._scaler.observe(key, spec, observed)
        rollout = rollouts.decide(spec, observed, self._defaults.image)
        children = desired.children(
            *(resource, spec, rollout, self._defaults),
            replicas=telemetry.desired,
            monitoring=observed.monitoring_available,
        )
        plan = make_plan(observed, children, telemetry.victim, spec.paused)
        failures = await self._execute(key, plan)
        blocked = (*plan.blocked, *(_as_cause(error) for error in failures))
        wanted = status.describe(spec, observed, rollout, telemetry, blocked, now=self._now())
        await self._write(resource, wanted, [*_put_back(plan), *notes.kept(observed)])
        if failures:
            raise failures[0]
        return _look_again(plan, observed)

    async def _execute(self, key: Key, plan: Plan) -> list[ApiError]:
        """Does every step; one that fails stops none of the others."""
        failures: list[ApiError] = []
        for stage in plan.stages:
            ended = await asyncio.gather(*(self._do(key, step) for step in stage))
            failures += [error for error in ended if error]
        return failures

    async def _do(self, key: Key, step: Step) -> ApiError | None:
        log.info("%s: %s", key, step.reason)
        try:
            await self._api.execute(key.namespace, step)
        except ApiError as error:
            return error
        return None

    async def _stand_still(self, resource: dict[str, Any], error: SpecError | Refused) -> None:
        reason = "SpecUnreadable" if isinstance(error, SpecError) else _as_cause(error).reason
        await self._write(resource, status.unreadable(resource, reason, str(error), self._now()))
        if isinstance(error, Refused):
            raise error

    async def _write(self, resource: dict[str, Any], wanted: dict[str, Any], told: Iterable[Note] = ()) -> None:
        """Writes status if it says anything new, and tells what is: a steady service costs no write."""
        before = resource.get("status") or {}
        if wanted != before:
            await self._api.write_status(resource, wanted)
        await self._events.tell(resource, [*notes.changes(before, wanted), *told])


def _look_again(plan: Plan, observed: Observed) -> float | None:
    if plan.blocked:
        return BLOCKED_SECONDS
    silent = observed.unexplained
    if not silent:
        return None
    return TOLD_SECONDS if all(item.cause for item in silent) else SILENT_SECONDS


def _put_back(plan: Plan) -> list[Note]:
    drifted = [step for step in plan.steps if isinstance(step, Apply) and step.drifted]
    return [notes.put_back(notes.named(step.manifest), str(step.drifted)) for step in drifted]


def _as_cause(error: ApiError) -> Cause:
    """An API error as a condition's reason. Only a refusal needs a person; the rest is retried."""
    if error.status in (401, 403):
        return Cause("OperatorForbidden", f"the operator's role lacks a permission: {error}", final=True)
    if isinstance(error, Conflict):
        return Cause("Conflict", f"another writer was faster or owns a field: {error}", final=False)
    if isinstance(error, Refused):
        return Cause("ApplyRefused", f"the API server refused an object: {error}", final=True)
    return Cause("ApiUnavailable", f"will be tried again: {error}", final=False)
