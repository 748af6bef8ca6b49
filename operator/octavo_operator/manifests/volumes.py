"""Volumes of the pods, each with the mount that goes with it."""

from __future__ import annotations

from octavo_operator import engine_args, fetch_args
from octavo_operator.checkpoint import Checkpoint
from octavo_operator.manifests.child import Manifest
from octavo_operator.spec import Spec
from octavo_operator.spec.template import Volume

Mounted = tuple[Manifest, Manifest]
"""A volume and its mount."""

MODEL = "model"
_MIB = 1 << 20
_ROOM = 64 * _MIB  # beside the files: what the loader notes down about them


def scratch() -> list[Mounted]:
    """Where programs may write; caches hold code, so each pod has its own."""
    return [
        _mounted("tmp", "/tmp", {"emptyDir": {"sizeLimit": "1Gi"}}, read_only=False),  # noqa: S108
        _mounted("cache", "/cache", {"emptyDir": {"sizeLimit": "4Gi"}}, read_only=False),
    ]


def exchange(spec: Spec) -> list[Mounted]:
    """Memory through which ranks that share a model talk; a container has 64 MiB by itself, too little for NCCL."""
    if engine_args.accelerators(spec) < 2:
        return []
    shared = {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    return [_mounted("shm", "/dev/shm", shared, read_only=False)]  # noqa: S108


def model(spec: Spec, checkpoint: Checkpoint | None, *, read_only: bool = True) -> list[Mounted]:
    """Where the model is read from, or written to; nothing for one in the image."""
    if claim := engine_args.model_claim(spec):
        source: Manifest = {"claimName": claim, "readOnly": True} if read_only else {"claimName": claim}
        return [_mounted(MODEL, engine_args.MODEL_ROOT, {"persistentVolumeClaim": source}, read_only)]
    if not spec.model.remote:
        return []
    size = checkpoint.bytes if checkpoint else 0
    limit = {"sizeLimit": f"{-(-(size + _ROOM) // _MIB)}Mi"} if size else {}
    return [_mounted(MODEL, engine_args.MODEL_ROOT, {"emptyDir": limit}, read_only)]


def keys(spec: Spec) -> list[Mounted]:
    """The API keys."""
    if spec.auth is None:
        return []
    ref = spec.auth.api_key_secret_ref
    secret = {"secretName": ref.name, "items": [{"key": ref.key, "path": engine_args.KEYS_FILE}]}
    return [_mounted("keys", engine_args.KEYS_DIRECTORY, {"secret": secret})]


def credentials(spec: Spec) -> list[Mounted]:
    """What opens the model's source; no other container gets it."""
    pairs = []
    if ref := spec.model.token_secret_ref:
        secret = {"secretName": ref.name, "items": [{"key": ref.key, "path": fetch_args.TOKEN_FILE}]}
        pairs.append(_mounted("token", fetch_args.TOKEN_DIRECTORY, {"secret": secret}))
    if store := spec.model.credentials_secret_ref:
        pairs.append(_mounted("credentials", fetch_args.CREDENTIALS_DIRECTORY, {"secret": {"secretName": store.name}}))
    return pairs


def wished(spec: Spec) -> list[Mounted]:
    """The user's own; their names never meet ours."""
    return [_wished(volume) for volume in spec.template.volumes or []]


def _wished(volume: Volume) -> Mounted:
    source = volume.model_dump(by_alias=True, exclude_none=True, exclude={"name", "mount_path"})
    writable = volume.empty_dir is not None
    if claim := source.get("persistentVolumeClaim"):
        claim["readOnly"] = True
    return _mounted(f"user-{volume.name}", volume.mount_path, source, read_only=not writable)


def _mounted(name: str, path: str, source: Manifest, read_only: bool = True) -> Mounted:
    mount: Manifest = {"name": name, "mountPath": path}
    return {"name": name} | source, mount | ({"readOnly": True} if read_only else {})
