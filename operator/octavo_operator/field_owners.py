"""Who else has set fields of a child, read from the API server's own book-keeping (`managedFields`). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octavo_operator import names

_CLUSTER = frozenset({"kube-controller-manager", "kube-scheduler", "kubelet"})
"""Parts of Kubernetes that note their own affairs on objects."""
_SHOWN = 5

Fields = dict[str, Any]
Path = tuple[str, ...]


def has_other_managers(live: dict[str, Any]) -> bool:
    """Whether anyone else may have set fields beside ours; where not, `additions` finds none."""
    managed = [entry for entry in live["metadata"].get("managedFields") or () if not entry.get("subresource")]
    return any(entry.get("manager") not in {names.FIELD_MANAGER, *_CLUSTER} for entry in managed)


def additions(live: dict[str, Any]) -> list[str]:
    """Fields of `live` that others set beside ours, as "path (manager)"; a few, and then how many more.

    Status and other subresources are not looked at, nor fields that Octavo sets as well: those it puts back.
    """
    managed = [entry for entry in live["metadata"].get("managedFields") or () if not entry.get("subresource")]
    ours = {path for entry in managed if entry.get("manager") == names.FIELD_MANAGER for path in _leaves(entry)}
    found = sorted(
        f"{_dotted(path)} ({entry['manager']})"
        for entry in managed
        if entry.get("manager") not in {names.FIELD_MANAGER, *_CLUSTER}
        for path in _leaves(entry)
        if path not in ours
    )
    rest = len(found) - _SHOWN
    return found[:_SHOWN] + ([f"and {rest} more"] if rest > 0 else [])


def _leaves(entry: dict[str, Any]) -> Iterator[Path]:
    return _walk(entry.get("fieldsV1") or {}, ())


def _walk(fields: Fields, path: Path) -> Iterator[Path]:
    """Paths without anything below; "." marks the node itself and is none."""
    inner = {key: value for key, value in fields.items() if key != "."}
    if not inner:
        yield path
    for key, value in inner.items():
        yield from _walk(value, (*path, key))


def _dotted(path: Path) -> str:
    """`f:NAME` is a field, `k:{...}` an item of a list by its key, `v:...` a value of a set."""
    out = ""
    for part in path:
        kind, _, name = part.partition(":")
        out += f".{name}" if kind == "f" else f"[{name}]"
    return out.lstrip(".")
