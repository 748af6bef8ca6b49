"""Every example before the real API server: schema, CEL, and the kinds beside ours that the node has."""

from __future__ import annotations

import json
from typing import Any

import yaml

from cluster_tools import Kubectl
from node.config import CHECKOUT

FOLDER = CHECKOUT / "examples"
# Kinds of other projects, which the node does not have.
FOREIGN = {"ScaledObject"}


def test_the_api_server_takes_them(kubectl: Kubectl, namespace: str, definition: None) -> None:
    items: list[dict[str, Any]] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        items += [item for item in yaml.safe_load_all(path.read_text()) if item["kind"] not in FOREIGN]
    bundle = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    flags = ("--server-side", "--dry-run=server", "--validate=strict")
    answer = kubectl("apply", "-n", namespace, *flags, "-f", "-", stdin=bundle)
    assert "Warning" not in answer
    assert len(answer.splitlines()) == len(items) >= 14


def test_the_kustomization_for_two_teams_builds(kubectl: Kubectl, namespace: str) -> None:
    """Its three namespaces are the user's; here one stands for all."""
    objects = list(yaml.safe_load_all(kubectl("kustomize", str(FOLDER / "kustomize"))))
    roles = [
        item for item in objects if item["kind"] == "RoleBinding" and not item["metadata"]["name"].endswith("lease")
    ]
    assert {item["metadata"]["namespace"] for item in roles} == {"octavo-system", "team-a", "team-b"}
    assert {subject["namespace"] for item in roles for subject in item["subjects"]} == {"octavo-system"}
    for item in objects:
        if "namespace" in item["metadata"]:
            item["metadata"]["namespace"] = namespace
    known = [item for item in objects if item["kind"] not in ("Namespace", "CustomResourceDefinition")]
    bundle = json.dumps({"apiVersion": "v1", "kind": "List", "items": known})
    kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=bundle)
