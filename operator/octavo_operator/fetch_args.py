"""Spec -> what `octavo fetch` and `octavo preflight` are told: the other half of the text contract with the engine.

Like `engine_args`, nothing here depends on the operator's version or settings.
"""

from __future__ import annotations

import hashlib

from octavo_operator import engine_args, names
from octavo_operator.checkpoint import Checkpoint
from octavo_operator.quantities import amount
from octavo_operator.spec import Spec

FETCH, PREFLIGHT = ["octavo", "fetch"], ["octavo", "preflight"]
TOKEN_DIRECTORY, TOKEN_FILE = "/etc/octavo/token", "token"
CREDENTIALS_DIRECTORY = "/etc/octavo/credentials"
OWN_FOLDER = "model"
"""Where a replica that fetches for itself puts its model, below MODEL_ROOT."""
_CACHE_FOLDER = "octavo"
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - inside a pod, asked by the operator


def model_folder(spec: Spec, revision: str, checkpoint: Checkpoint) -> str:
    """Where the fetched model is, below MODEL_ROOT.

    In a cache it is named by the source and what it held, so that revisions and services share one copy of the same
    model and never write over one that is being read. A source that pins nothing is fetched anew for each revision.
    """
    if spec.cache is None:
        return OWN_FOLDER
    pinned = checkpoint.revision or f"revision {revision}"
    text = "\n".join((spec.model.source, spec.model.endpoint or "", pinned))
    return f"{_CACHE_FOLDER}/{spec.model.scheme}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def source_args(spec: Spec, checkpoint: Checkpoint | None = None) -> list[str]:
    """Where the model is and how it is reached.

    Args:
        checkpoint: what the source held when it was looked at; None for the first look.
    """
    model = spec.model
    pairs = [
        ("source", model.source),
        ("revision", (checkpoint and checkpoint.revision) or model.revision),
        ("endpoint", model.endpoint),
        ("token-file", f"{TOKEN_DIRECTORY}/{TOKEN_FILE}" if model.token_secret_ref else None),
        ("credentials-directory", CREDENTIALS_DIRECTORY if model.credentials_secret_ref else None),
    ]
    return [engine_args.literal(f"--{flag}={value}") for flag, value in pairs if value]


def fetch_args(spec: Spec, folder: str, checkpoint: Checkpoint) -> list[str]:
    """Arguments of `octavo fetch`."""
    return [
        *source_args(spec, checkpoint),
        f"--destination={engine_args.MODEL_ROOT}/{folder}",
        f"--management-host={_ANY_ADDRESS}",
        f"--management-port={names.MANAGEMENT_PORT}",
    ]


def preflight_args(spec: Spec, parent: str) -> list[str]:
    """Arguments of `octavo preflight`: the source if it is remote, the memory if it is known, then the engine's own."""
    own = source_args(spec) if spec.model.remote else []
    memory = _memory_bytes(spec)
    if memory:
        own.append(f"--memory-bytes={memory}")
    return [*own, "--", *engine_args.container_args(spec, parent, OWN_FOLDER)]


def _memory_bytes(spec: Spec) -> int | None:
    """The container's limit, which is all that a replica without accelerator has for the model."""
    if engine_args.accelerators(spec):
        return None
    memory = amount((spec.resources.limits or {}).get("memory", ""))
    return int(memory) if memory else None
