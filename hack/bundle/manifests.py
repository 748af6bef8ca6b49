"""The manifests under `kustomize/`: the charts rendered with their default values, without the traces of Helm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from node.config import CHECKOUT, HACK, KUBERNETES_VERSION
from node.shell import run

RELEASE = "octavo-operator"
NAMESPACE = "octavo-system"
_HEAD = "# Generated from {chart} by `make generate`; change the chart instead.\n"
_TRACES = ("app.kubernetes.io/managed-by", "helm.sh/chart")

Document = dict[str, Any]


def _everything(_: Document) -> bool:
    return True


def _is_policy(document: Document) -> bool:
    return str(document["kind"]).startswith("ValidatingAdmissionPolicy")


def _is_role_where_it_serves(document: Document) -> bool:
    """Not the Lease's Role: that is for the operator's own namespace."""
    return document["kind"] in ("Role", "RoleBinding") and not document["metadata"]["name"].endswith("-lease")


@dataclass(frozen=True)
class Bundle:
    """One generated file: those objects that a chart makes with some values which `keep` wants."""

    path: str
    chart: str
    values: tuple[str, ...] = ()
    keep: Callable[[Document], bool] = _everything


BUNDLES = (
    Bundle("crds/octavo-crds.yaml", "octavo-crds"),
    Bundle("secret-policy/secret-policy.yaml", "octavo-crds", ("secretPolicy.enabled=true",), _is_policy),
    Bundle("namespaced/operator.yaml", "octavo-operator"),
    Bundle("cluster-wide/operator.yaml", "octavo-operator", ("clusterWide=true",)),
    Bundle("served/role.yaml", "octavo-operator", keep=_is_role_where_it_serves),
)


def render(bundle: Bundle) -> str:
    """The file's text, the same on every run."""
    chart = f"charts/{bundle.chart}"
    place = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES_VERSION)
    flags = [f"--set={value}" for value in bundle.values]
    rendered = yaml.safe_load_all(run([HACK / "helm", "template", RELEASE, chart, *place, *flags], cwd=CHECKOUT))
    wanted = [_plain(item) for item in rendered if item and bundle.keep(item)]
    return _HEAD.format(chart=chart) + yaml.safe_dump_all(wanted, sort_keys=False, width=120)


def _plain(document: Document) -> Document:
    """Without Helm's labels, which would say that Helm manages it."""
    heads = [document["metadata"]]
    if "template" in document.get("spec", {}):
        heads.append(document["spec"]["template"]["metadata"])
    for head in heads:
        for label in _TRACES:
            head.get("labels", {}).pop(label, None)
    return document
