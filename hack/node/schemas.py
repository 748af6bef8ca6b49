"""JSON schemas for kubeconform out of an API server's own OpenAPI: what it serves, custom resources included."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from node import addons
from node.config import Settings

Schema = dict[str, Any]
LOCATION = "{{.ResourceKind}}{{.KindSuffix}}.json"
"""The file's name in kubeconform's notation, for `-schema-location=FOLDER/...`."""

_PREFIX = "#/components/schemas/"


def export(settings: Settings, folder: Path) -> int:
    """Write a file for each kind that the cluster serves; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    index = json.loads(addons.kubectl(settings, "get", "--raw", "/openapi/v3"))
    written = set()
    for entry in index["paths"].values():
        # Without its query, the digest of a document that may have changed meanwhile: that would be a redirect.
        path = entry["serverRelativeURL"].partition("?")[0]
        document = json.loads(addons.kubectl(settings, "get", "--raw", path))
        for name, schema in kinds(document):
            (folder / name).write_text(json.dumps(schema))
            written.add(name)
    return len(written)


def kinds(document: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    """File name and schema of each kind in one OpenAPI document; unknown fields are refused in them."""
    schemas: Mapping[str, Schema] = document.get("components", {}).get("schemas", {})
    strict = {name: _strict(schema) for name, schema in schemas.items()}
    for name, schema in schemas.items():
        for kind in schema.get("x-kubernetes-group-version-kind", ()):
            # Not the options of requests, which every group has, too.
            if {"kind", "metadata"} <= schema.get("properties", {}).keys():
                closure = {needed: strict[needed] for needed in sorted(_closure(strict, name))}
                yield file_name(kind), {"$ref": _PREFIX + name, "components": {"schemas": closure}}


def file_name(kind: Mapping[str, str]) -> str:
    """As kubeconform spells LOCATION: `deployment-apps-v1.json`, `pod-v1.json`; of a group only the first part."""
    group = kind["group"].partition(".")[0]
    return "-".join(part for part in (kind["kind"].lower(), group, kind["version"]) if part) + ".json"


def _closure(schemas: Mapping[str, Schema], start: str) -> set[str]:
    """`start` and all that it refers to, however far away."""
    found, open_names = set(), [start]
    while open_names:
        name = open_names.pop()
        if name not in found:
            found.add(name)
            open_names += _references(schemas[name])
    return found


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix(_PREFIX)
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _strict(node: Any) -> Any:
    """The same schema with no field beyond those it names, where it names any and does not say that it keeps others."""
    if isinstance(node, list):
        return [_strict(value) for value in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _strict(value) for key, value in node.items()}
    opened = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
    if isinstance(node.get("properties"), dict) and node.get("type") == "object" and not opened:
        closed["additionalProperties"] = False
    return closed
