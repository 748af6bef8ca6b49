"""The charts without a cluster: every combination of values that matters gives restricted, consistent objects.

Text against text: the variables that the chart sets are settings the operator has, its schema covers its values.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

import chart_samples
import pairwise
import pod_security
from bundle import values as chart_values
from chart_samples import NAMESPACE, deployment, of_kind
from node.config import CHECKOUT
from octavo_operator import config, names
from octavo_operator.manifests.network_policy import ManagementPeers
from operator_process import render_chart

pytestmark = pytest.mark.contract

COMBINATIONS = chart_samples.combinations()
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
# What the pod knows by itself, or what the chart's probes, ports and account fix.
NOT_SET_BY_CHART = {"health_host", "health_port", "kubeconfig"}

Object = dict[str, Any]


@pytest.fixture(params=COMBINATIONS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return chart_samples.rendered(COMBINATIONS[request.param])


def pod_of(objects: list[Object]) -> Object:
    template: Object = deployment(objects)["spec"]["template"]
    return template


def test_every_choice_meets_every_other_one() -> None:
    dimensions = {name: list(choices) for name, choices in chart_samples.CHOICES.items()}
    covered = set().union(*(pairwise.pairs(choice) for choice in pairwise.cover(dimensions)))
    assert covered == pairwise.all_pairs(dimensions)


def test_the_pod_is_restricted_and_hardened(objects: list[Object]) -> None:
    assert pod_security.violations(pod_of(objects)) == []
    assert pod_security.hardened(pod_of(objects)) == []


def test_objects_are_distinct_and_in_their_places(objects: list[Object]) -> None:
    heads = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(heads) == len(set(heads))
    served = {"default", "kube-public"} if len(of_kind(objects, "Role")) == 3 else set()
    for kind, namespace, _ in heads:
        assert (namespace is None) == (kind in CLUSTER_SCOPED)
        assert namespace in {None, NAMESPACE} | served


def test_everything_that_selects_finds_the_operator(objects: list[Object]) -> None:
    labels = pod_of(objects)["metadata"]["labels"].items()
    selectors = [deployment(objects)["spec"]["selector"]["matchLabels"]]
    selectors += [item["spec"]["selector"] for item in of_kind(objects, "Service")]
    selectors += [item["spec"]["podSelector"]["matchLabels"] for item in of_kind(objects, "NetworkPolicy")]
    for kind in ("PodDisruptionBudget", "PodMonitor", "ServiceMonitor"):
        selectors += [item["spec"]["selector"]["matchLabels"] for item in of_kind(objects, kind)]
    assert all(selector and selector.items() <= labels for selector in selectors)


def test_roles_are_bound_to_the_account_that_the_pod_uses(objects: list[Object]) -> None:
    (account,) = of_kind(objects, "ServiceAccount")
    assert pod_of(objects)["spec"]["serviceAccountName"] == account["metadata"]["name"]
    subject = {"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": NAMESPACE}
    roles = {(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects}
    for binding in of_kind(objects, "RoleBinding") + of_kind(objects, "ClusterRoleBinding"):
        assert binding["subjects"] == [subject]
        reference = binding["roleRef"]
        assert (reference["kind"], binding["metadata"].get("namespace"), reference["name"]) in roles


def test_no_rule_is_a_wildcard_or_touches_secrets(objects: list[Object]) -> None:
    refused = {"*", "secrets", "pods/exec", "pods/eviction", "serviceaccounts/token", "escalate", "bind", "impersonate"}
    rules = [rule for item in objects for rule in item.get("rules", ())]
    assert rules
    for rule in rules:
        assert not refused & {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}


def environment(objects: list[Object]) -> dict[str, str]:
    """The variables as the operator's process finds them."""
    (container,) = pod_of(objects)["spec"]["containers"]
    fields = {"metadata.namespace": NAMESPACE, "metadata.name": "octavo-1"}
    return {
        item["name"]: item["value"] if "value" in item else fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
        for item in container["env"]
    }


def test_the_operator_reads_what_the_chart_sets(objects: list[Object]) -> None:
    """Each variable is a setting, each setting is a variable, and the values parse."""
    settings_names = config.OperatorConfig.__dataclass_fields__.keys() - NOT_SET_BY_CHART
    assert set(environment(objects)) == {config.ENV_PREFIX + name.upper() for name in settings_names}
    settings = config.read_config({}, environment(objects))
    assert settings.lease_namespace == NAMESPACE
    bound = {item["metadata"].get("namespace") for item in of_kind(objects, "RoleBinding")}
    assert set(settings.namespace_list) <= bound
    assert bool(settings.namespace_list) != bool(of_kind(objects, "ClusterRole"))


def test_defaults_are_the_operators_own() -> None:
    settings, own = config.read_config({}, environment(chart_samples.rendered({}))), config.OperatorConfig()
    same = ["workers", "log_level", "log_format", "prometheus_pods", "prometheus_namespaces", "management_addresses"]
    for name in same + [name for name in config.OperatorConfig.__dataclass_fields__ if name.endswith("_seconds")]:
        assert getattr(settings, name) == getattr(own, name), name


def test_one_set_of_rules_for_both_scopes() -> None:
    def rules(values: dict[str, Any]) -> list[Object]:
        found = chart_samples.rendered(values)
        roles = of_kind(found, "ClusterRole") or of_kind(found, "Role")
        return [item["rules"] for item in roles if not item["metadata"]["name"].endswith("-lease")]

    wide, own, two = rules({"clusterWide": True}), rules({}), rules({"namespaces": ["a", "b"]})
    assert wide == own
    assert two == [*own, *own]


def test_namespaced_by_default() -> None:
    assert not CLUSTER_SCOPED & {item["kind"] for item in chart_samples.rendered({})}


def test_a_budget_only_for_more_than_one() -> None:
    """A budget for one operator would keep its node from being drained."""
    assert not of_kind(chart_samples.rendered({"replicas": 1}), "PodDisruptionBudget")
    assert of_kind(chart_samples.rendered({"replicas": 2}), "PodDisruptionBudget")


def test_user_labels_never_replace_ours() -> None:
    name = next(name for name, values in COMBINATIONS.items() if "podLabels" in values)
    labels = pod_of(chart_samples.rendered(COMBINATIONS[name]))["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "octavo-operator"
    assert labels["team"] == "x"


def test_a_digest_wins_over_the_tag() -> None:
    name = next(name for name, values in COMBINATIONS.items() if "digest" in values.get("image", {}))
    (container,) = pod_of(chart_samples.rendered(COMBINATIONS[name]))["spec"]["containers"]
    assert container["image"] == f"octavo-operator@sha256:{'0a' * 32}"


def test_without_peers_there_is_no_rule() -> None:
    """In a NetworkPolicy an empty list of peers would mean everybody."""
    closed = chart_samples.rendered({"networkPolicy": {"enabled": True, "dns": []}})
    (policy,) = of_kind(closed, "NetworkPolicy")
    assert all(rule.get("to") != [] for rule in policy["spec"]["egress"])
    assert not any(port["port"] == 53 for rule in policy["spec"]["egress"] for port in rule["ports"])


def test_prometheus_is_let_in_by_the_operator_as_by_its_services() -> None:
    """The chart's own policy and the one that the operator makes of its settings name the same peers."""
    values = chart_samples.CHOICES["network"]["narrow"]
    objects = chart_samples.rendered(values)
    (policy,) = of_kind(objects, "NetworkPolicy")
    _, *others = ManagementPeers.of(config.read_config({}, environment(objects))).rendered()
    assert policy["spec"]["ingress"][0]["from"] == others
    assert len(others) == 3


def test_services_let_the_operator_in() -> None:
    objects = chart_samples.rendered({})
    operator, *_ = ManagementPeers.of(config.read_config({}, environment(objects))).rendered()
    labels = operator["podSelector"]["matchLabels"]
    assert labels == deployment(objects)["spec"]["selector"]["matchLabels"]
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}


def test_the_operator_reaches_engines_where_it_serves_and_only_there() -> None:
    for values, namespaces in (
        ({"namespaces": ["b", "a"]}, ["a", "b"]),
        ({}, [NAMESPACE]),
        ({"clusterWide": True}, None),
    ):
        (policy,) = of_kind(chart_samples.rendered(values | {"networkPolicy": {"enabled": True}}), "NetworkPolicy")
        (peer,) = next(rule["to"] for rule in policy["spec"]["egress"] if rule["ports"][0]["port"] == 8001)
        reached = peer["podSelector"]["matchLabels"].items()
        assert reached <= names.own_labels("a").items()
        assert reached <= names.job_pod_labels("a", "load").items()
        terms = peer["namespaceSelector"].get("matchExpressions")
        assert (terms[0]["values"] if terms else None) == namespaces


NONSENSE: dict[str, chart_samples.Values] = {
    "/replicas": {"replicas": 0},
    "/log/level": {"log": {"level": "loud"}},
    "unknown": {"unknown": 1},
    "tagg": {"image": {"tagg": "1", "digest": "sha256:12", "tag": "a b"}},
    "/image/digest": {},
    "/image/tag": {},
    "/intervals/scrape": {"intervals": {"scrape": 0}},
    "/namespaces/0": {"namespaces": ["Team", "a", "a"]},
    "/namespaces": {},
    "/imagePullSecrets/0": {"imagePullSecrets": ["name"]},
    "/monitoring/kind": {"monitoring": {"kind": "Probe"}},
    "/networkPolicy/dns/0": {"networkPolicy": {"dns": [{}], "apiServer": {"cidrs": ["10.0.0.1"]}}},
    "/networkPolicy/apiServer/cidrs/0": {},
    "/resources/limits/memory": {"resources": {"limits": {"memory": "lots"}}},
    "/podLabels/a": {"podLabels": {"a": "b c"}},
    "/tolerations/0/effect": {"tolerations": [{"effect": "Sometimes"}]},
    "nodeAfinity": {"affinity": {"nodeAfinity": {}}},
    "/clusterWide": {"clusterWide": "yes"},
}


def test_values_that_make_no_sense_are_refused_by_name() -> None:
    """All at once: Helm names each of them."""
    values = {key: value for part in NONSENSE.values() for key, value in part.items()}
    with pytest.raises(AssertionError, match="values don't meet the specifications") as refused:
        render_chart("default", *chart_samples.flags(values))
    words = str(refused.value)
    assert [place for place in NONSENSE if f"'{place}'" not in words] == []


def test_cluster_wide_excludes_namespaces() -> None:
    with pytest.raises(AssertionError, match="namespaces"):
        render_chart("default", "--set-json=clusterWide=true", '--set-json=namespaces=["a"]')


def test_the_policy_cannot_both_refuse_and_warn() -> None:
    with pytest.raises(AssertionError, match="actions"):
        render_chart("default", '--set-json=secretPolicy={"actions": ["Deny", "Warn"]}', chart="octavo-crds")


@pytest.mark.parametrize("chart", ["octavo-crds", "octavo-operator"])
def test_schema_and_values_have_the_same_names(chart: str) -> None:
    """Every value has a schema that refuses unknown names, and every name in the schema has a default."""
    folder = CHECKOUT / "charts" / chart
    schema = json.loads((folder / "values.schema.json").read_text())
    text = (folder / "values.yaml").read_text()

    def compare(node: Any, defaults: Any, where: str) -> None:
        if not isinstance(defaults, dict) or "properties" not in node or not defaults:
            return
        assert node["additionalProperties"] is False, where
        assert set(node["properties"]) - {"global"} == set(defaults), where
        for name, child in defaults.items():
            compare(node["properties"][name], child, f"{where}.{name}")

    compare(schema, yaml.safe_load(text), chart)
    assert len(chart_values.read(text)) >= 3  # each has a comment, or this raises


def test_the_readme_table_escapes_and_keeps_its_place() -> None:
    text = "# File.\n\na:\n  # One | two.\n  # And more.\n  b: 1\n# Whole.\nc: {d: [x]}\n"
    readme = f"# t\n{chart_values.BEGIN}\nold\n{chart_values.END}\nend\n"
    made = chart_values.with_table(readme, text)
    assert '| `a.b` | `1` | One &#124; two. And more. |\n| `c` | `{"d": ["x"]}` | Whole. |' in made
    assert "old" not in made
    assert made.endswith("\nend\n")
    with pytest.raises(ValueError, match="x has no comment"):
        chart_values.read("x: 1\n")


@pytest.mark.parametrize("name", pod_security.BREAKS)
def test_the_check_for_restricted_pods_can_fail(name: str) -> None:
    assert pod_security.violations(pod_security.changed(pod_of(chart_samples.rendered({})), pod_security.BREAKS[name]))


@pytest.mark.parametrize("name", pod_security.FINE)
def test_the_check_for_restricted_pods_allows_what_is_allowed(name: str) -> None:
    assert not pod_security.violations(
        pod_security.changed(pod_of(chart_samples.rendered({})), pod_security.FINE[name])
    )
