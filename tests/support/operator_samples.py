"""Small builders of the operator's inputs, for tests: resources, pods and Deployments as the API server gives them."""

from __future__ import annotations

from typing import Any

from octavo_operator import names
from octavo_operator.desired import Defaults
from octavo_operator.manifests import DEPLOYMENT, ManagementPeers, Manifest, deployment, pod_template, sealed
from octavo_operator.observed import Observed, read_pod, read_workload
from octavo_operator.revisions import revision_of
from octavo_operator.spec import Spec, read_spec

IMAGE = "registry.example/octavo-engine:1"
DEFAULTS = Defaults(IMAGE, ManagementPeers("octavo-system"), 65532)
UID = "11111111-1111-1111-1111-111111111111"
NOW = "2030-01-01T00:00:00Z"


def resource(name: str = "assistant", **spec: Any) -> dict[str, Any]:
    """An InferenceService as stored."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": "team", "uid": UID, "generation": 1},
        "spec": {"model": {"source": "pvc://models/smollm2"}} | spec,
    }


def spec_of(**spec: Any) -> Spec:
    """A parsed spec."""
    return read_spec(resource(**spec))


def made_deployment(parent: dict[str, Any], replicas: int = 1) -> Manifest:
    """The Deployment of a service whose spec is the active revision."""
    spec = read_spec(parent)
    template = pod_template(spec, parent["metadata"]["name"], IMAGE)
    return deployment(parent, template, revision=revision_of(spec), replicas=replicas)


def live(manifest: Manifest, **status: Any) -> dict[str, Any]:
    """What the API server holds after `manifest` was applied."""
    head = manifest["metadata"] | {"uid": f"uid-of-{manifest['kind']}", "generation": 1, "resourceVersion": "7"}
    return manifest | {"metadata": head, "status": {"observedGeneration": 1} | status}


def live_deployment(parent: dict[str, Any], replicas: int = 1, **status: Any) -> dict[str, Any]:
    """The service's Deployment, rolled out unless `status` says otherwise."""
    made = sealed(made_deployment(parent, replicas))
    return live(made, **({"replicas": replicas, "updatedReplicas": replicas} | status))


def pod(name: str = "assistant-1", *, ready: bool = False, **status: Any) -> dict[str, Any]:
    """An engine pod."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    body = {"phase": "Running", "podIP": "10.0.0.9", "conditions": conditions} | status
    return {"metadata": {"name": name, "namespace": "team"}, "status": body}


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    """Pod status: the container waits."""
    return {
        "containerStatuses": [
            {"name": "engine", "image": IMAGE, "state": {"waiting": {"reason": reason, "message": message}}} | more
        ]
    }


def crashed(message: str = "", code: int = 1, reason: str = "Error") -> dict[str, Any]:
    """Pod status: the container's last run failed and the kubelet backs off."""
    ended = {"exitCode": code, "reason": reason, "message": message}
    return waiting("CrashLoopBackOff", lastState={"terminated": ended}, restartCount=3)


def unscheduled(words: str) -> dict[str, Any]:
    """Pod status: the scheduler found no node."""
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": words}]}


def observed(parent: dict[str, Any], *pods: dict[str, Any], deployed: dict[str, Any] | None = None) -> Observed:
    """An observation with a Deployment and pods."""
    return Observed(
        resource=parent,
        children={DEPLOYMENT: deployed},
        pods=tuple(read_pod(item) for item in pods),
        workload=read_workload(deployed) if deployed else None,
    )
