"""One level-based reconcile: observe -> plan -> apply -> status. It knows no events and no kopf.

Whatever happened before, it looks at what is there now and brings it one step nearer to the spec.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from octavo_operator import manifests, status
from octavo_operator.causes import Cause
from octavo_operator.errors import ApiError, Conflict, Refused, SpecError
from octavo_operator.manifests import pod_monitor
from octavo_operator.names import Key
from octavo_operator.observed import Observed
from octavo_operator.plan import Plan, Step, make_plan
from octavo_operator.scaler import Scaler
from octavo_operator.spec import Spec, read_spec

log = logging.getLogger(__name__)

BLOCKED_SECONDS = 10.0


class Api(Protocol):
    """What a reconcile needs of `cluster.Cluster`."""

    async def service(self, key: Key) -> dict[str, Any] | None: ...  # noqa: D102
    async def observe(self, resource: dict[str, Any]) -> Observed: ...  # noqa: D102
    async def execute(self, namespace: str, step: Step) -> None: ...  # noqa: D102
    async def write_status(self, resource: dict[str, Any], status: dict[str, Any]) -> None: ...  # noqa: D102


class Reconciler:
    """Brings services to their spec.

    Args:
        image: engine image of services that name none.
        now: RFC 3339 wall time, for status only.
    """

    def __init__(self, api: Api, scaler: Scaler, image: str, now: Callable[[], str]) -> None:
        self._api = api
        self._scaler = scaler
        self._image = image
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
        children = self._render(resource, spec, observed, telemetry.desired)
        plan = make_plan(observed, children, telemetry.victim, spec.paused)
        failures = await self._execute(key, plan)
        blocked = (*plan.blocked, *(_as_cause(error) for error in failures))
        await self._write(resource, status.describe(spec, observed, telemetry, blocked, self._now()))
        if failures:
            raise failures[0]
        # Objects of others are not watched: nothing tells when one that is in the way goes.
        return BLOCKED_SECONDS if plan.blocked else None

    def _render(self, resource: dict[str, Any], spec: Spec, observed: Observed, replicas: int) -> list[dict[str, Any]]:
        children = [
            manifests.service(resource),
            manifests.disruption_budget(resource),
            manifests.deployment(resource, spec, self._image, replicas),
        ]
        if observed.monitoring_available:
            children.append(pod_monitor(resource, spec))
        return [manifests.sealed(child) for child in children]

    async def _execute(self, key: Key, plan: Plan) -> list[ApiError]:
        """Does every step; one that fails stops none of the others."""
        failures: list[ApiError] = []
        for step in plan.steps:
            log.info("%s: %s", key, step.reason)
            try:
                await self._api.execute(key.namespace, step)
            except ApiError as error:
                failures.append(error)
        return failures

    async def _stand_still(self, resource: dict[str, Any], error: SpecError | Refused) -> None:
        reason = "SpecUnreadable" if isinstance(error, SpecError) else _as_cause(error).reason
        await self._write(resource, status.unreadable(resource, reason, str(error), self._now()))
        if isinstance(error, Refused):
            raise error

    async def _write(self, resource: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Writes status if it says anything new: a steady service costs no write."""
        if wanted != resource.get("status"):
            await self._api.write_status(resource, wanted)


def _as_cause(error: ApiError) -> Cause:
    """An API error as a condition's reason. Only a refusal needs a person; the rest is retried."""
    if error.status in (401, 403):
        return Cause("OperatorForbidden", f"the operator's role lacks a permission: {error}", final=True)
    if isinstance(error, Conflict):
        return Cause("Conflict", f"another writer was faster or owns a field: {error}", final=False)
    if isinstance(error, Refused):
        return Cause("ApplyRefused", f"the API server refused an object: {error}", final=True)
    return Cause("ApiUnavailable", f"will be tried again: {error}", final=False)
