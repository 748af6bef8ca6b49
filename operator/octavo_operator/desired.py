"""All objects a service shall have, as manifests: spec and rollout -> children. Pure.

The order is that in which they are made: what the pods need comes before them, and what only describes them after.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo_operator import manifests
from octavo_operator.checkpoint import Checkpoint
from octavo_operator.manifests import ManagementPeers, Manifest
from octavo_operator.observed import Purpose
from octavo_operator.rollout import Rollout
from octavo_operator.spec import Model, Spec


@dataclass(frozen=True)
class Defaults:
    """What the operator's settings add to a spec.

    Attributes:
        image: of the engine, for services that name none.
        peers: who may reach the management port.
        cache_group: who may write into a cache's volume; None leaves it to the cluster.
    """

    image: str
    peers: ManagementPeers
    cache_group: int | None


def children(
    resource: Manifest, spec: Spec, rollout: Rollout, defaults: Defaults, *, replicas: int, monitoring: bool = False
) -> list[Manifest]:
    """Every child that shall exist now, sealed.

    Args:
        replicas: how many, decided elsewhere.
        monitoring: whether the cluster knows the kinds of the Prometheus Operator.
    """
    made = [
        manifests.service_account(resource),
        manifests.network_policy(resource, spec, defaults.peers, _running_model(rollout)),
        *_deployment(resource, rollout, replicas),
        manifests.service(resource),
        manifests.disruption_budget(resource),
        manifests.revisions_map(resource, rollout.history.data()),
        *(_job(resource, spec, rollout, purpose, defaults) for purpose in rollout.jobs),
        *([manifests.pod_monitor(resource, spec), manifests.prometheus_rule(resource, spec)] if monitoring else []),
    ]
    return [manifests.sealed(child) for child in made]


def _running_model(rollout: Rollout) -> Model | None:
    if rollout.store is None:
        return None
    source, endpoint = rollout.store
    return Model(source=source, endpoint=endpoint)


def _deployment(resource: Manifest, rollout: Rollout, replicas: int) -> list[Manifest]:
    if rollout.template is None or rollout.active is None:
        return []
    return [
        manifests.deployment(
            *(resource, rollout.template),
            revision=rollout.active,
            replicas=replicas,
            in_place=rollout.in_place,
        )
    ]


def _job(resource: Manifest, spec: Spec, rollout: Rollout, purpose: Purpose, defaults: Defaults) -> Manifest:
    if purpose is Purpose.PREFLIGHT:
        return manifests.preflight_job(resource, spec, defaults.image, rollout.revision)
    found = rollout.checkpoint or Checkpoint()
    return manifests.loader_job(resource, spec, defaults.image, rollout.revision, found, group=defaults.cache_group)
