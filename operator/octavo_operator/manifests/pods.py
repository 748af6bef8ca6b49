"""What every pod and container of ours has: it passes Pod Security "restricted", with a read-only root and no token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo_operator import engine_args, fetch_args, names
from octavo_operator.checkpoint import Checkpoint
from octavo_operator.manifests import volumes
from octavo_operator.manifests.child import Manifest
from octavo_operator.manifests.volumes import Mounted
from octavo_operator.spec import Spec

_HELPER_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
"""Of the programs that only read and write files: small, so that they find room beside engines that fill a node."""


def pod_spec(
    spec: Spec, parent: str, containers: list[Manifest], mounted: Iterable[Mounted], **more: object
) -> Manifest:
    """A pod's spec; what is empty is left out.

    Args:
        mounted: every volume of its containers.
        more: further fields.
    """
    wish = spec.template
    pod = {
        "serviceAccountName": names.child_name(parent),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": containers,
        "volumes": [volume for volume, _ in mounted],
        "nodeSelector": wish.node_selector,
        "tolerations": [item.model_dump(by_alias=True, exclude_none=True) for item in wish.tolerations or []],
        "affinity": wish.affinity.model_dump(by_alias=True, exclude_none=True) if wish.affinity else None,
        "priorityClassName": wish.priority_class_name,
        "imagePullSecrets": [{"name": item.name} for item in wish.image_pull_secrets or []],
        **more,
    }
    return without_empty(pod)


def container(
    name: str, image: str, command: list[str], args: list[str], mounted: Iterable[Mounted], **more: object
) -> Manifest:
    """A container; what is empty is left out."""
    made = {
        "name": name,
        "image": image,
        "command": command,
        "args": args,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # Our programs write why they cannot go on; without that, the log's end is the next best thing.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount for _, mount in mounted],
        **more,
    }
    return without_empty(made)


def loader(spec: Spec, image: str, folder: str, checkpoint: Checkpoint) -> tuple[Manifest, list[Mounted]]:
    """The container that fetches the model, and its volumes."""
    mounted = [
        *volumes.scratch(),
        *volumes.model(spec, checkpoint, read_only=False),
        *volumes.credentials(spec),
    ]
    args = fetch_args.fetch_args(spec, folder, checkpoint)
    port = {"name": names.MANAGEMENT_PORT_NAME, "containerPort": names.MANAGEMENT_PORT, "protocol": "TCP"}
    made = container(names.LOADER, image, fetch_args.FETCH, args, mounted, ports=[port], resources=_HELPER_RESOURCES)
    return made, mounted


def preflight(spec: Spec, parent: str, image: str) -> tuple[Manifest, list[Mounted]]:
    """The container that looks whether the engine could start, and its volumes: the engine's own, as far as they exist.

    A Secret or a ConfigMap that is missing shows here, before any replica depends on it.
    """
    mounted = [*volumes.scratch(), *volumes.keys(spec), *volumes.wished(spec)]
    mounted += volumes.credentials(spec) if spec.model.remote else volumes.model(spec, None)
    args = fetch_args.preflight_args(spec, parent)
    env = engine_args.container_env(spec)
    made = container(names.PREFLIGHT, image, fetch_args.PREFLIGHT, args, mounted, env=env, resources=_HELPER_RESOURCES)
    return made, mounted


def without_empty(fields: Manifest) -> Manifest:
    """The fields that say something; False and 0 do.

    What is in them and holds nothing says nothing either, or two specs of one revision would have two templates.
    """
    return {key: value for key, field in fields.items() if (value := _pruned(field)) not in (None, "", [], {})}


def _pruned(value: Any) -> Any:
    """Without empty objects and lists. Items of lists stay: an emptyDir or a selector says much by nothing."""
    if not isinstance(value, dict):
        return value
    kept = {key: _pruned(item) for key, item in value.items()}
    return {key: item for key, item in kept.items() if item not in (None, [], {})}
