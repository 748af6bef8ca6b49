"""The Deployment of engine pods and their template."""

from __future__ import annotations

from octavo_operator import engine_args, names
from octavo_operator.manifests.child import DEPLOYMENT, Manifest, metadata
from octavo_operator.spec import Spec


def deployment(resource: Manifest, spec: Spec, image: str, replicas: int) -> Manifest:
    """The Deployment of engine pods.

    Args:
        image: used when the spec names none.
        replicas: how many, decided elsewhere.
    """
    parent = resource["metadata"]["name"]
    return {
        "apiVersion": DEPLOYMENT[0],
        "kind": DEPLOYMENT[1],
        "metadata": metadata(resource),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": spec.startup_seconds + 120,
            "selector": {"matchLabels": names.selector_labels(parent)},
            # A new replica serves before an old one goes: a rollout never lowers capacity.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": pod_template(spec, parent, image),
        },
    }


def pod_template(spec: Spec, parent: str, image: str) -> Manifest:
    """The pod: passes Pod Security "restricted", with a read-only root and no service account token."""
    wish = spec.template
    annotations = {**(wish.annotations or {}), names.PARENT_ANNOTATION: parent}
    if spec.restarted_at:
        annotations[names.RESTARTED_ANNOTATION] = spec.restarted_at
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": engine_args.grace_seconds(spec),
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(spec, parent, spec.engine.image or image)],
        "volumes": [volume for volume, _ in _volumes(spec)],
        "nodeSelector": wish.node_selector,
        "tolerations": [item.model_dump(by_alias=True, exclude_none=True) for item in wish.tolerations or []],
        "priorityClassName": wish.priority_class_name,
        "runtimeClassName": wish.runtime_class_name,
        "imagePullSecrets": [{"name": item.name} for item in wish.image_pull_secrets or []],
    }
    return {
        "metadata": {"labels": {**(wish.labels or {}), **names.own_labels(parent)}, "annotations": annotations},
        "spec": {key: value for key, value in pod.items() if value is False or value},
    }


def _container(spec: Spec, parent: str, image: str) -> Manifest:
    resources = spec.resources.model_dump(exclude_none=True)
    container = {
        "name": names.CONTAINER,
        "image": image,
        "command": engine_args.COMMAND,
        "args": engine_args.container_args(spec, parent),
        "env": engine_args.container_env(spec),
        "ports": engine_args.container_ports(),
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": engine_args.PRE_STOP_SECONDS}}},
        # The engine writes why it cannot start; without that, the log's end is the next best thing.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount for _, mount in _volumes(spec)],
        **engine_args.probes(spec),
    }
    return {key: value for key, value in container.items() if value}


def _volumes(spec: Spec) -> list[tuple[Manifest, Manifest]]:
    """Pairs of volume and mount. Caches hold code, so each pod has its own."""
    pairs: list[tuple[Manifest, Manifest]] = [
        ({"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "tmp", "mountPath": "/tmp"}),  # noqa: S108
        ({"name": "cache", "emptyDir": {"sizeLimit": "4Gi"}}, {"name": "cache", "mountPath": "/cache"}),
    ]
    claim = engine_args.model_claim(spec)
    if claim:
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        mount = {"name": "model", "mountPath": engine_args.MODEL_ROOT, "readOnly": True}
        pairs.append(({"name": "model", **source}, mount))
    if spec.auth:
        ref = spec.auth.api_key_secret_ref
        secret = {"secretName": ref.name, "items": [{"key": ref.key, "path": engine_args.KEYS_FILE}]}
        keys = {"name": "keys", "mountPath": engine_args.KEYS_DIRECTORY, "readOnly": True}
        pairs.append(({"name": "keys", "secret": secret}, keys))
    return pairs
