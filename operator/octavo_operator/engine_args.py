"""Spec -> what the engine's container is told: the text contract with `octavo serve` (checked in `tests/contract`).

Nothing here depends on the operator's version or settings: the same spec gives the same text, so that an operator
upgrade restarts no pod.
"""

from __future__ import annotations

import math
from typing import Any

from octavo_operator import names
from octavo_operator.quantities import amount
from octavo_operator.spec import ACCELERATOR, Spec

COMMAND = ["octavo", "serve"]
MODEL_ROOT = "/models"
KEYS_DIRECTORY, KEYS_FILE = "/etc/octavo/keys", "api-keys"

PRE_STOP_SECONDS = 5  # endpoints need a moment to drop the pod; the engine still accepts during it
EXIT_MARGIN_SECONDS = 10  # last events and a clean exit, after the drain and before SIGKILL
_STARTUP_PERIOD = 2
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - inside a pod, reached through its Service

_FLAG_FIELDS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "dtype",
    "block_size",
    "scheduling_policy",
    "prefix_cache_scope",
)
_SWITCH_FIELDS = ("enable_prefix_caching", "enable_chunked_prefill")


def model_claim(spec: Spec) -> str | None:
    """The PersistentVolumeClaim the model is read from; None when it is in the image or in the pod's own volume."""
    if spec.cache:
        return spec.cache.persistent_volume_claim
    return spec.model.source.partition("://")[2].split("/", 1)[0] if spec.model.scheme == "pvc" else None


def model_path(spec: Spec, folder: str = "") -> str:
    """The model's path inside the container.

    Args:
        folder: of a fetched model, below MODEL_ROOT.
    """
    if spec.model.remote:
        return f"{MODEL_ROOT}/{folder}"
    path = spec.model.source.partition("://")[2].partition("/")[2].strip("/")
    return f"{MODEL_ROOT}/{path}" if spec.model.scheme == "pvc" else f"/{path}"


def served_name(spec: Spec, parent: str) -> str:
    """The model name clients send."""
    return spec.model.served_name or parent


def accelerators(spec: Spec) -> int:
    """How many a replica has. They share its model: what else could it do with them?"""
    return int(amount((spec.resources.limits or {}).get(ACCELERATOR, "0")) or 0)


def literal(text: str) -> str:
    """Text that Kubernetes does not expand: `$(NAME)` in args and env values would be replaced otherwise."""
    return text.replace("$(", "$$(")


def container_args(spec: Spec, parent: str, folder: str = "") -> list[str]:
    """Arguments of `octavo serve`, each as --flag=value, so that no value can pass for a flag.

    Args:
        folder: of a fetched model, below MODEL_ROOT.
    """
    pairs: list[tuple[str, object]] = [
        ("model", model_path(spec, folder)),
        ("served-model-name", served_name(spec, parent)),
        ("host", _ANY_ADDRESS),
        ("port", names.API_PORT),
        ("management-host", _ANY_ADDRESS),
        ("management-port", names.MANAGEMENT_PORT),
        ("drain-seconds", spec.drain_seconds),
    ]
    for field in _FLAG_FIELDS:
        value = getattr(spec.engine, field)
        if value is not None:
            pairs.append((_flag(field), value))
    if accelerators(spec) > 1:
        pairs.append(("tensor-parallel-size", accelerators(spec)))
    if spec.auth:
        pairs.append(("api-key-file", f"{KEYS_DIRECTORY}/{KEYS_FILE}"))
    switches = [
        f"--{'' if value else 'no-'}{_flag(field)}"
        for field in _SWITCH_FIELDS
        if (value := getattr(spec.engine, field)) is not None
    ]
    return [
        literal(arg)
        for arg in [f"--{flag}={value}" for flag, value in pairs] + switches + (spec.engine.extra_args or [])
    ]


def container_env(spec: Spec) -> list[dict[str, str]]:
    """The user's variables; the image sets its own (caches, home)."""
    return [{"name": item.name, "value": literal(item.value)} for item in spec.engine.env or []]


def container_ports() -> list[dict[str, Any]]:
    """The API and the management port."""
    return [
        {"name": names.API_PORT_NAME, "containerPort": names.API_PORT, "protocol": "TCP"},
        {"name": names.MANAGEMENT_PORT_NAME, "containerPort": names.MANAGEMENT_PORT, "protocol": "TCP"},
    ]


def probes(spec: Spec) -> dict[str, Any]:
    """Startup and readiness ask `/readyz`, liveness `/livez`; all numbers come from the spec alone."""
    return {
        "startupProbe": _probe("/readyz", _STARTUP_PERIOD, 2, math.ceil(spec.startup_seconds / _STARTUP_PERIOD)),
        "readinessProbe": _probe("/readyz", 5, 2, 2),
        "livenessProbe": _probe("/livez", 10, 5, 6),
    }


def grace_seconds(spec: Spec) -> int:
    """The pod's termination grace period."""
    return PRE_STOP_SECONDS + spec.drain_seconds + EXIT_MARGIN_SECONDS


def _flag(field: str) -> str:
    return field.replace("_", "-")


def _probe(path: str, period: int, timeout: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": names.MANAGEMENT_PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
