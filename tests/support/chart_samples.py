"""The charts rendered with the combinations of values that matter, for the tests with and without a cluster."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import yaml

import pairwise
from operator_process import render_chart

Object = dict[str, Any]
Values = dict[str, Any]

NAMESPACE = "octavo-system"
_SPREAD = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
_HOSTS = _SPREAD | {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"team": "x"}}}
_NODES = {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}

# What each choice sets; a dimension's first choice is the default.
CHOICES: dict[str, dict[str, Values]] = {
    "scope": {
        "own namespace": {},
        "two namespaces": {"namespaces": ["default", "kube-public"]},
        "cluster": {"clusterWide": True},
    },
    "standby": {
        "none": {},
        "one": {"replicas": 2, "lease": {"seconds": 30}},
        "one without budget": {"replicas": 2, "podDisruptionBudget": {"enabled": False}},
    },
    "image": {
        "default": {},
        "tag": {"image": {"repository": "r.example:5000/a/operator", "tag": "1.2.3-rc.1", "pullPolicy": "Always"}},
        "digest": {"image": {"tag": "1.2", "digest": f"sha256:{'0a' * 32}"}, "engineImage": f"e@sha256:{'1b' * 32}"},
        "private": {"imagePullSecrets": [{"name": "one"}, {"name": "two.three"}]},
    },
    "monitoring": {
        "off": {},
        "pods": {"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}},
        "service": {"monitoring": {"enabled": True, "kind": "ServiceMonitor", "interval": "1m"}},
        "all": {
            "monitoring": {
                "enabled": True,
                "labels": {"release": "prometheus"},
                "rules": {"enabled": True},
                "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Octavo"}},
            }
        },
    },
    "network": {
        "open": {},
        "restricted": {"networkPolicy": {"enabled": True}},
        "narrow": {
            "networkPolicy": {
                "enabled": True,
                "apiServer": {"cidrs": ["192.0.2.1/32", "2001:db8::1/128"], "ports": [6443]},
                "dns": [{"ipBlock": {"cidr": "169.254.20.0/24", "except": ["169.254.20.10/32"]}}],
            },
            "prometheus": {
                "pods": "app=prometheus,example.com/team=x",
                "namespaces": "kubernetes.io/metadata.name=monitoring",
                "addresses": ["10.0.0.0/8", "fd00::/8"],
            },
        },
        "closed": {"networkPolicy": {"enabled": True, "dns": []}, "prometheus": {"pods": ""}},
    },
    "place": {
        "anywhere": {},
        "chosen": {
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}],
            "priorityClassName": "system-cluster-critical",
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_NODES]}}
            },
            "topologySpreadConstraints": [_SPREAD, _HOSTS],
        },
    },
    "pod": {
        "plain": {},
        "labelled": {
            "podLabels": {"team": "x", "app.kubernetes.io/name": "not-yours"},
            "podAnnotations": {"example.com/note": "true", "empty": ""},
            "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": "1500m", "memory": "1Gi"}},
        },
    },
    "settings": {
        "default": {},
        "own": {
            "log": {"level": "debug", "format": "plain"},
            "intervals": {"scrape": 2.5, "scrapeTimeout": 1, "scaleDown": 86400, "resync": 60, "apiTimeout": 10},
            "workers": 16,
            "cacheGroup": "",
        },
    },
}


def combinations() -> dict[str, Values]:
    """Values by the name of their combination: every choice meets every other one."""
    names = {dimension: list(choices) for dimension, choices in CHOICES.items()}
    found = {}
    for choice in pairwise.cover(names):
        values: Values = {}
        for dimension, name in choice.items():
            values |= CHOICES[dimension][name]
        told = [f"{dimension}: {name}" for dimension, name in choice.items() if CHOICES[dimension][name]]
        found[", ".join(told) or "defaults"] = values
    return found


def flags(values: Values) -> list[str]:
    """Values as Helm's command line takes them."""
    return [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]


def rendered(values: Values, namespace: str = NAMESPACE, chart: str = "octavo-operator") -> list[Object]:
    """The objects a chart makes; a key written twice is an error, as it is for strict readers."""
    text = _text(namespace, chart, *flags(values))
    return [item for item in yaml.load_all(text, _StrictLoader) if item]


@cache
def _text(namespace: str, chart: str, *arguments: str) -> str:
    return render_chart(namespace, *arguments, chart=chart)


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Those of a kind."""
    return [item for item in objects if item["kind"] == kind]


def deployment(objects: list[Object]) -> Object:
    """The operator's Deployment."""
    (found,) = of_kind(objects, "Deployment")
    return found


class _StrictLoader(yaml.CSafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is written twice: {keys}"
        return super().construct_mapping(node, deep)
