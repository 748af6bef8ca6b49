"""The CustomResourceDefinition, generated from `spec`; `python -m octavo_operator.crd FILE...` writes it.

What pydantic calls a JSON schema is turned into a Kubernetes structural schema: references inlined, nulls and titles
dropped, no `additionalProperties: false` (the API server prunes and, asked strictly, refuses unknown fields by itself).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from octavo_operator import names
from octavo_operator.spec import Spec
from octavo_operator.spec.base import QUANTITY
from octavo_operator.status_schema import STATUS_SCHEMA

_DROPPED = {"title", "default", "additionalProperties", "$defs"}
_PRINTER_COLUMNS = [
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether it answers requests", 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', "Why it is, or is not, ready", 0),
    ("Model", "string", ".status.modelName", "Model name clients send", 0),
    ("Replicas", "string", ".status.replicaSummary", "Ready of desired replicas", 0),
    ("Queue", "integer", ".status.queue.waiting", "Waiting requests", 0),
    ("URL", "string", ".status.url", "Where the API listens within the cluster", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Age of the resource", 0),
    ("Limit", "string", ".status.queue.limiter", "What limits the replica with the longest queue", 1),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', "More on the reason", 1),
]


def structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """One schema node as Kubernetes wants it."""
    if "anyOf" in node:  # pydantic's form of `X | None`: absence is how a resource says "none"
        real = next(option for option in node["anyOf"] if option.get("type") != "null")
        node = {**real, **{key: value for key, value in node.items() if key != "anyOf"}}
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    out = {key: value for key, value in node.items() if key not in _DROPPED}
    if out.get("pattern") == QUANTITY:
        del out["type"]
        return out | {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
    if "const" in out:  # a single choice
        out["enum"] = [out.pop("const")]
    if out.get("type") == "integer":
        out["format"] = "int64"
    if "properties" in out:
        out["properties"] = {key: structural(value, definitions) for key, value in out["properties"].items()}
    if "items" in out:
        out["items"] = structural(out["items"], definitions)
    if isinstance(node.get("additionalProperties"), dict):
        out["additionalProperties"] = structural(node["additionalProperties"], definitions)
    return out


def spec_schema() -> dict[str, Any]:
    """The schema of `spec`."""
    schema = Spec.model_json_schema(by_alias=True)
    return structural(schema, schema.get("$defs", {}))


def _version() -> dict[str, Any]:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": "A language model served by replicas of Octavo's engine.",
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": spec_schema(),
                    "status": STATUS_SCHEMA,
                },
            }
        },
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": text, "priority": priority}
            for name, kind, path, text, priority in _PRINTER_COLUMNS
        ],
    }


def definition() -> dict[str, Any]:
    """The whole CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.PLURAL}.{names.GROUP}",
            # Argo CD and Helm must not take every service down with an uninstalled chart.
            "annotations": {"helm.sh/resource-policy": "keep", "argocd.argoproj.io/sync-options": "Prune=false"},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": "inferenceservice",
                "shortNames": ["osvc"],
                "categories": ["octavo"],
            },
            "versions": [_version()],
        },
    }


def rendered() -> str:
    """The file's text, the same on every run."""
    head = "# Generated from octavo_operator/spec by `make generate`; edit that instead.\n"
    return head + yaml.safe_dump(definition(), sort_keys=False, width=120)


def main(paths: list[str]) -> int:
    """Writes the definition to each path."""
    for path in paths:
        Path(path).write_text(rendered(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
