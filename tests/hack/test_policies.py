"""From NetworkPolicies to nftables rules: who reaches whom, told by the text of the table."""

from __future__ import annotations

from typing import Any

import pytest

from policies import rules, selectors

NAMESPACES = {"shop": {"team": "sales"}, "bank": {"team": "money"}}


def pod(namespace: str, address: str, *, ports: tuple[tuple[str, int], ...] = (), **labels: str) -> dict[str, Any]:
    containers = [{"ports": [{"name": name, "containerPort": number} for name, number in ports]}]
    return {
        "metadata": {"namespace": namespace, "labels": labels},
        "spec": {"containers": containers},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]},
    }


def policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "shop"}, "spec": {"podSelector": {}} | spec}


PODS = [
    pod("shop", "10.0.0.1", ports=(("api", 8000), ("management", 8001)), app="web"),
    pod("shop", "10.0.0.2", app="client"),
    pod("bank", "10.0.0.3", ports=(("api", 9000),), app="client"),
]
WORLD = rules.World(list(selectors.pods(PODS)), NAMESPACES)


def chain(name: str, *policies: dict[str, Any]) -> list[str]:
    """The lines of one chain of the table; empty when there is none."""
    text = rules.table(WORLD, policies, ["192.0.2.1"])
    _, _, rest = text.partition(f"chain {name} {{\n")
    return [line.strip() for line in rest.partition("  }")[0].splitlines()]


def web(*ingress: dict[str, Any]) -> list[str]:
    selector = {"matchLabels": {"app": "web"}}
    return chain("ingress_10_0_0_1", policy(podSelector=selector, ingress=list(ingress)))


def test_no_policy_filters_nothing() -> None:
    assert chain("forward") == [
        "type filter hook forward priority filter; policy accept;",
        "ct state established,related accept",
        "ip saddr { 192.0.2.1 } accept",
    ]


def test_a_selected_pod_drops_what_no_rule_allows_and_others_are_left_alone() -> None:
    assert web() == ["drop"]
    assert chain("ingress_10_0_0_2", policy(podSelector={"matchLabels": {"app": "web"}})) == []
    assert chain("egress_10_0_0_1", policy()) == []


def test_peers_are_found_by_namespace_and_labels() -> None:
    client = {"podSelector": {"matchLabels": {"app": "client"}}}
    money = {"namespaceSelector": {"matchLabels": {"team": "money"}}}
    by_name = {"namespaceSelector": {"matchLabels": {selectors.NAMESPACE_NAME: "bank"}}}
    assert web({"from": [client]}) == ["ip saddr { 10.0.0.2 } return", "drop"]
    assert web({"from": [client | money]}) == ["ip saddr { 10.0.0.3 } return", "drop"]
    assert web({"from": [by_name]}) == ["ip saddr { 10.0.0.3 } return", "drop"]
    assert web({"from": [client | {"namespaceSelector": {}}]}) == ["ip saddr { 10.0.0.2, 10.0.0.3 } return", "drop"]
    nobody = {"podSelector": {"matchLabels": {"app": "nobody"}}}
    assert web({"from": [nobody]}) == ["drop"]


def test_ports_by_number_range_protocol_and_name() -> None:
    assert web({"ports": [{"port": 8000}]}) == ["tcp dport 8000 return", "drop"]
    assert web({"ports": [{"port": "api"}]}) == ["tcp dport 8000 return", "drop"]
    assert web({"ports": [{"port": "unknown"}]}) == ["drop"]
    assert web({"ports": [{"port": 80, "endPort": 90, "protocol": "UDP"}]}) == ["udp dport 80-90 return", "drop"]
    assert web({"ports": [{"protocol": "UDP"}]}) == ["meta l4proto udp return", "drop"]
    assert web({}) == ["return", "drop"]


def test_address_blocks_with_exceptions() -> None:
    block = {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]}
    six = {"cidr": "::/0", "except": ["fd00:ec2::254/128"]}
    outside = policy(policyTypes=["Egress"], egress=[{"to": [{"ipBlock": block}, {"ipBlock": six}]}])
    assert chain("egress_10_0_0_1", outside) == [
        "ip daddr 0.0.0.0/0 ip daddr != { 169.254.169.254/32 } return",
        "drop",
    ]


def test_a_ports_name_is_each_peers_own_on_the_way_out() -> None:
    rule = {"to": [{"namespaceSelector": {}}], "ports": [{"port": "api"}]}
    assert chain("egress_10_0_0_2", policy(policyTypes=["Egress"], egress=[rule])) == [
        "ip daddr 10.0.0.1 tcp dport 8000 return",
        "ip daddr 10.0.0.3 tcp dport 9000 return",
        "drop",
    ]


def test_policies_add_up() -> None:
    one, two = (policy(ingress=[{"ports": [{"port": number}]}]) for number in (1, 2))
    assert chain("ingress_10_0_0_1", one, two) == ["tcp dport 1 return", "tcp dport 2 return", "drop"]


def test_directions_follow_the_fields_unless_they_are_named() -> None:
    assert chain("egress_10_0_0_1", policy(egress=[])) == ["drop"]
    assert chain("ingress_10_0_0_1", policy(egress=[])) == ["drop"]
    assert chain("ingress_10_0_0_1", policy(egress=[], policyTypes=["Egress"])) == []


def test_pods_without_an_address_of_their_own_are_none_of_ours() -> None:
    ended = pod("shop", "10.0.0.9") | {"status": {"phase": "Succeeded", "podIPs": [{"ip": "10.0.0.9"}]}}
    shared = pod("shop", "10.0.0.9") | {"spec": {"hostNetwork": True}}
    waiting = pod("shop", "") | {"status": {"phase": "Pending"}}
    six = pod("shop", "fd00::1")
    assert list(selectors.pods([ended, shared, waiting, six])) == []


@pytest.mark.parametrize(
    ("expression", "taken"),
    [
        ({"key": "app", "operator": "In", "values": ["web", "api"]}, True),
        ({"key": "app", "operator": "NotIn", "values": ["web"]}, False),
        ({"key": "tier", "operator": "NotIn", "values": ["web"]}, True),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "tier", "operator": "DoesNotExist"}, True),
    ],
)
def test_label_expressions(expression: dict[str, Any], taken: bool) -> None:
    assert selectors.matches({"matchExpressions": [expression]}, {"app": "web"}) is taken
