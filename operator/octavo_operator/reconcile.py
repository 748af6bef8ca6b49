"""One level-based reconcile: observe -> plan -> apply -> status. It knows no events and no kopf.

Whatever happened before, it looks at what is there now and brings it one step nearer to the spec. First it looks at
what is known already, which costs no request; each write then says on which versions it rests, and when the API server
knows newer ones, the look is begun anew and asks for everything.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from octavo_operator import desired, engine_args, notes, status
from octavo_operator import rollout as rollouts
from octavo_operator.causes import Cause
from octavo_operator.desired import Defaults
from octavo_operator.errors import ApiError, Conflict, Missing, Refused, SpecError
from octavo_operator.names import Key
from octavo_operator.notes import Note
from octavo_operator.observed import Observed
from octavo_operator.plan import Apply, Plan, Step, make_plan
from octavo_operator.rollout import Phase, Rollout
from octavo_operator.scaler import Scaler
from octavo_operator.service_metrics import ServiceMetrics, figures
from octavo_operator.spec import Spec, read_spec
from octavo_operator.status import Telemetry

log = logging.getLogger(__name__)

Object = dict[str, Any]

BLOCKED_SECONDS = 10.0
"""Objects of others are not watched: nothing tells when one that is in the way goes."""
AT_ONCE = 0.0
"""The event of an own write tells nothing new any more: what follows from the write is looked for without it."""
GIVE_WAY_SECONDS, LONGEST_WAY_SECONDS = 0.5, 5.0
"""In a storm of new services each gets first what its pods need; the rest waits, and looks this often for its end."""
FIRST_WORDS_SECONDS = 1.0
"""Children that were just made have said nothing yet: a first status waits for good or bad news, at most this long."""
SILENT_SECONDS, TOLD_SECONDS = 5.0, 30.0
"""Events are not watched either: nothing tells when one says at last what a pod waits for, or says something else."""


class Api(Protocol):
    """What a reconcile needs of `cluster.Cluster`."""

    async def known(self, key: Key) -> Observed | None: ...  # noqa: D102
    async def is_latest(self, resource: Object) -> bool: ...  # noqa: D102
    async def service(self, key: Key) -> Object | None: ...  # noqa: D102
    async def observe(self, resource: Object) -> Observed: ...  # noqa: D102
    async def execute(self, namespace: str, step: Step, known: bool = False) -> bool: ...  # noqa: D102
    async def write_status(self, resource: Object, status: Object, known: bool = False) -> None: ...  # noqa: D102
    def doubt(self, key: Key) -> None: ...  # noqa: D102


class Teller(Protocol):
    """What `events.Recorder` offers."""

    async def tell(self, resource: Object, notes: Iterable[Note]) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Decided:
    """What shall become of a service, before anything is done."""

    spec: Spec
    telemetry: Telemetry
    rollout: Rollout
    plan: Plan

    def status(self, observed: Observed, blocked: Iterable[Cause], now: str) -> Object:
        """What is told of it, with what kept steps from being done."""
        return status.describe(self.spec, observed, self.rollout, self.telemetry, blocked, now=now)


@dataclass(frozen=True)
class Done:
    """What came of a plan's steps.

    Attributes:
        changed: one of them has changed something, so that the next look finds something else.
    """

    changed: bool
    failures: list[ApiError]


class Reconciler:
    """Brings services to their spec.

    Args:
        defaults: what the operator's settings add to a spec.
        events: told what is worth an Event.
        services: told what each service is like.
        now: RFC 3339 wall time, for status only.
        clock: monotonic seconds.
        crowded: whether much else is newly asked for than a service.
    """

    def __init__(
        self,
        api: Api,
        scaler: Scaler,
        defaults: Defaults,
        events: Teller,
        *,
        services: ServiceMetrics,
        now: Callable[[], str],
        clock: Callable[[], float],
        crowded: Callable[[Key], bool],
    ) -> None:
        self._api = api
        self._events = events
        self._scaler = scaler
        self._services = services
        self._defaults = defaults
        self._now = now
        self._clock = clock
        self._crowded = crowded
        self._begun: dict[Key, float] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Looks at one service and does what is to be done.

        Returns:
            Seconds after which to look again although no event may come; None when events suffice.

        Raises:
            ApiError: something could not be done and should be tried again; status says what.
        """
        if known := await self._known(key):
            try:
                return await self._bring_on(key, known, is_known=True)
            except (Conflict, Missing, SpecError) as error:
                log.debug("%s: everything is asked for: %s", key, error)
        return await self._ask(key)

    async def _known(self, key: Key) -> Observed | None:
        try:
            known = await self._api.known(key)
        except Refused:
            return None  # what may not be read is told by a look that asks
        return known if known and not _goes(known.resource) else None

    async def _ask(self, key: Key) -> float | None:
        """The same, from what the API server has now."""
        resource = await self._api.service(key)
        if resource is None or _goes(resource):
            self._scaler.forget(key)  # the children follow by their owner references
            self._services.forget(key)
            self._begun.pop(key, None)
            return None
        try:
            read_spec(resource)
            observed = await self._api.observe(resource)
        except (SpecError, Refused) as error:
            await self._stand_still(resource, error)
            return None
        return await self._bring_on(key, observed, is_known=False)

    async def _bring_on(self, key: Key, observed: Observed, is_known: bool) -> float | None:
        """One step nearer to the spec, from what was observed.

        Args:
            is_known: the API server was not asked for it.

        Raises:
            Conflict, Missing: where it `is_known`, also when it is behind.
        """
        resource, decided = observed.resource, self._decide(key, observed)
        age = self._age(key, resource)
        gives_way = age < LONGEST_WAY_SECONDS and self._crowded(key)
        plan = decided.plan.urgent if gives_way else decided.plan
        done = await self._execute(key, plan, resource if is_known else None)
        blocked = (*plan.blocked, *(_as_cause(error) for error in done.failures))
        if blocked:
            self._api.doubt(key)  # objects of others are not watched, and a write without answer may have been done
        elif gives_way:
            return GIVE_WAY_SECONDS
        elif age < FIRST_WORDS_SECONDS and decided.rollout.phase is Phase.ROLLING:
            return AT_ONCE if done.changed else FIRST_WORDS_SECONDS - age
        wanted = decided.status(observed, blocked, self._now())
        self._tell_figures(key, wanted, decided.spec, observed)
        await self._write(resource, wanted, [*_put_back(plan), *notes.kept(observed)], is_known)
        if done.failures:
            raise done.failures[0]
        return AT_ONCE if done.changed else _look_again(plan, observed)

    def _decide(self, key: Key, observed: Observed) -> Decided:
        resource, spec = observed.resource, read_spec(observed.resource)
        telemetry = self._scaler.observe(key, spec, observed)
        rollout = rollouts.decide(spec, observed, self._defaults.image)
        children = desired.children(
            *(resource, spec, rollout, self._defaults),
            replicas=telemetry.desired,
            monitoring=observed.monitoring_available,
        )
        return Decided(spec, telemetry, rollout, make_plan(observed, children, telemetry.victim, spec.paused))

    def _tell_figures(self, key: Key, told: Object, spec: Spec, observed: Observed) -> None:
        restarts = sum(pod.restarts for pod in observed.pods)
        self._services.tell(key, figures(told, accelerators=engine_args.accelerators(spec), restarts=restarts))

    def _age(self, key: Key, resource: Object) -> float:
        """Seconds since the first look at a service that has no status yet; others are old."""
        begun = self._begun.setdefault(key, self._clock())
        return math.inf if resource.get("status", {}).get("conditions") else self._clock() - begun

    async def _execute(self, key: Key, plan: Plan, known: Object | None) -> Done:
        """Does every step; one that fails stops none of the others.

        Args:
            known: the service that the plan is for, where it rests on what is known.

        Raises:
            Conflict, Missing: what is known is behind.
        """
        if known and plan.steps and not await self._api.is_latest(known):
            raise Conflict(f"InferenceService {key} has changed")
        ended: list[bool | ApiError] = []
        for steps in plan.stages:
            ended += await asyncio.gather(*(self._do(key, step, known is not None) for step in steps))
        failures = [result for result in ended if isinstance(result, ApiError)]
        for error in failures:
            if known and isinstance(error, Conflict | Missing):
                raise error
        return Done(True in ended, failures)

    async def _do(self, key: Key, step: Step, is_known: bool) -> bool | ApiError:
        log.info("%s: %s", key, step.reason)
        try:
            return await self._api.execute(key.namespace, step, is_known)
        except ApiError as error:
            return error

    async def _stand_still(self, resource: Object, error: SpecError | Refused) -> None:
        reason = "SpecUnreadable" if isinstance(error, SpecError) else _as_cause(error).reason
        told, head = status.unreadable(resource, reason, str(error), self._now()), resource["metadata"]
        self._services.tell(Key(head["namespace"], head["name"]), figures(told))
        await self._write(resource, told)
        if isinstance(error, Refused):
            raise error

    async def _write(self, resource: Object, wanted: Object, told: Iterable[Note] = (), is_known: bool = False) -> None:
        """Writes status if it says anything new, and tells what is: a steady service costs no write."""
        before = resource.get("status") or {}
        if wanted != before:
            await self._api.write_status(resource, wanted, is_known)
        await self._events.tell(resource, [*notes.changes(before, wanted), *told])


def _goes(resource: Object) -> bool:
    return "deletionTimestamp" in resource["metadata"]


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
