"""Jobs of a revision: the preflight that looks whether it can run, the loader that fills the cache.

Their pods carry no label that a Service, a Deployment or a monitor of ours selects, and ask for no accelerator.
A Job that failed is removed by Kubernetes after a while and made anew by the next reconcile: what it waited for may
have come. No clock of ours takes part in that.
"""

from __future__ import annotations

from octavo_operator import fetch_args, names
from octavo_operator.checkpoint import Checkpoint
from octavo_operator.manifests import pods
from octavo_operator.manifests.child import JOB, Manifest, metadata
from octavo_operator.manifests.volumes import Mounted
from octavo_operator.observed import Purpose
from octavo_operator.spec import Spec

RETRY_SECONDS = 600
_TRIES_AGAIN = 2
_EXIT_FOR_GOOD = 2  # our programs' status for what a person must change
_LOADING_SECONDS = 86_400  # the program itself ends when nothing arrives any more


def preflight_job(resource: Manifest, spec: Spec, image: str, revision: str) -> Manifest:
    """Looks whether the engine could start with this spec; it ends within `startupSeconds` or has failed."""
    parent = resource["metadata"]["name"]
    container, mounted = pods.preflight(spec, parent, spec.engine.image or image)
    pod = _pod(spec, parent, container, mounted)
    return _job(resource, Purpose.PREFLIGHT, revision, pod, spec.startup_seconds)


def loader_job(
    resource: Manifest, spec: Spec, image: str, revision: str, checkpoint: Checkpoint, *, group: int | None
) -> Manifest:
    """Fetches what the preflight found into the cache. What is there already and complete is only verified.

    Args:
        group: is given the volume, since a fresh one belongs to root; None leaves the choice to the cluster.
    """
    folder = fetch_args.model_folder(spec, revision, checkpoint)
    container, mounted = pods.loader(spec, spec.engine.image or image, folder, checkpoint)
    pod = _pod(spec, resource["metadata"]["name"], container, mounted)
    if group is not None:
        pod["securityContext"] |= {"fsGroup": group, "fsGroupChangePolicy": "OnRootMismatch"}
    return _job(resource, Purpose.LOADER, revision, pod, _LOADING_SECONDS)


def _pod(spec: Spec, parent: str, container: Manifest, mounted: list[Mounted]) -> Manifest:
    pod = pods.pod_spec(spec, parent, [container], mounted, restartPolicy="Never")
    return pod | {"affinity": _beside_engines(pod.get("affinity", {}), parent)}


def _job(resource: Manifest, purpose: Purpose, revision: str, pod: Manifest, seconds: int) -> Manifest:
    parent = resource["metadata"]["name"]
    head = metadata(resource, {names.PURPOSE_LABEL: purpose.value, names.REVISION: revision})
    head["name"] = names.child_name(parent, purpose.value, revision)
    pod_head = {
        "labels": names.job_pod_labels(parent, purpose.value),
        "annotations": {names.PARENT_ANNOTATION: parent},
    }
    return {
        "apiVersion": JOB[0],
        "kind": JOB[1],
        "metadata": head,
        "spec": {
            "backoffLimit": _TRIES_AGAIN,
            "activeDeadlineSeconds": seconds,
            "ttlSecondsAfterFinished": RETRY_SECONDS,
            "podFailurePolicy": {"rules": [_fail_at_once(pod["containers"][0]["name"]), _IGNORE_DISRUPTION]},
            "template": {"metadata": pod_head, "spec": pod},
        },
    }


_IGNORE_DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
"""An evicted pod says nothing about the revision."""


def _fail_at_once(container: str) -> Manifest:
    """What a person must change does not get better by trying again."""
    exits = {"containerName": container, "operator": "In", "values": [_EXIT_FOR_GOOD]}
    return {"action": "FailJob", "onExitCodes": exits}


def _beside_engines(affinity: Manifest, parent: str) -> Manifest:
    """On the node of a replica if possible: a claim that only one node may mount is there."""
    term = {
        "weight": 100,
        "podAffinityTerm": {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": names.selector_labels(parent)},
        },
    }
    near = affinity.get("podAffinity", {})
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    return affinity | {"podAffinity": near | {key: [*near.get(key, []), term]}}
