"""Who reaches the pods and whom they reach, as the NetworkPolicy says; its effect is tested on the cluster."""

import ipaddress

import pytest

from octavo_operator import manifests, names
from octavo_operator.manifests.network_policy import METADATA_ADDRESSES, ManagementPeers, network_policy
from octavo_operator.spec import read_spec
from operator_samples import resource

PEERS = ManagementPeers(
    operator_namespace="octavo-system",
    operator_pods={"app.kubernetes.io/name": "octavo-operator"},
    prometheus_pods={"app.kubernetes.io/name": "prometheus"},
)


def policy(peers=PEERS, **spec):
    parent = resource(**spec)
    return network_policy(parent, read_spec(parent), peers)["spec"]


def ports(rule):
    return [item["port"] for item in rule["ports"]]


def ranges(rule):
    return [peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer]


def allows(rules, address, port):
    """Whether egress rules let traffic through to an address outside the pod network."""
    wanted = ipaddress.ip_address(address)
    return any(
        port in ports(rule)
        and wanted in ipaddress.ip_network(block["cidr"])
        and not any(wanted in ipaddress.ip_network(cidr) for cidr in block.get("except", ()))
        for rule in rules
        if "ports" in rule
        for block in ranges(rule)
        if ipaddress.ip_network(block["cidr"]).version == wanted.version
    )


def test_it_selects_engine_pods_and_those_of_jobs_and_rules_both_ways():
    found = policy()
    selected = found["podSelector"]["matchLabels"].items()
    assert selected <= names.own_labels("assistant").items()
    assert selected <= names.job_pod_labels("assistant", "preflight").items()
    assert not selected <= names.own_labels("other").items()
    assert found["policyTypes"] == ["Ingress", "Egress"]


def test_the_api_is_open_unless_peers_are_named():
    assert policy()["ingress"][0] == {"ports": [{"protocol": "TCP", "port": 8000}]}
    peers = [
        {"podSelector": {"matchLabels": {"app": "web"}}},
        {"namespaceSelector": {}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
    ]
    rule = policy(allowFrom=peers)["ingress"][0]
    assert rule["from"] == peers
    assert ports(rule) == [8000]


def test_an_empty_list_of_peers_means_anywhere():
    assert "from" not in policy(allowFrom=[])["ingress"][0]


def test_the_management_port_is_for_the_operator_and_prometheus():
    rule = policy()["ingress"][1]
    assert ports(rule) == [8001]
    assert rule["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "octavo-system"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "octavo-operator"}},
        },
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}},
    ]


def test_an_operator_outside_the_pod_network_is_known_by_its_address():
    rule = policy(ManagementPeers("x", addresses=("10.9.0.1/32",)))["ingress"][1]
    assert rule["from"][-1] == {"ipBlock": {"cidr": "10.9.0.1/32"}}


@pytest.mark.parametrize("source", ["pvc://models/m", "file:///m"])
def test_a_local_model_needs_names_and_nothing_else(source):
    known, dns = policy(model={"source": source})["egress"]
    assert known["to"][0]["podSelector"] == {"matchLabels": {"k8s-app": "kube-dns"}}
    assert set(ports(dns)) == {53, 5353}
    assert {"namespaceSelector": {}} in dns["to"]
    assert allows([dns], "169.254.20.10", 53), "a DNS cache on the node"
    assert not allows([dns], "192.0.2.7", 443)


REMOTE = [
    # model, what it may reach, what it may not
    ({"source": "hf://org/name"}, [("192.0.2.7", 443), ("2001:db8::1", 443)], [("192.0.2.7", 80)]),
    ({"source": "s3://bucket/m", "endpoint": "http://10.0.0.5:9000"}, [("10.0.0.5", 9000)], [("10.0.0.6", 9000)]),
    ({"source": "hf://o/n", "endpoint": "http://hub.example:8080"}, [("192.0.2.7", 8080), ("192.0.2.7", 443)], []),
    ({"source": "oci://registry.example:5000/m:1"}, [("192.0.2.7", 5000), ("192.0.2.7", 443)], [("192.0.2.7", 22)]),
    ({"source": "https://files.example:8443/m"}, [("192.0.2.7", 8443)], [("192.0.2.7", 8001)]),
    ({"source": "s3://bucket/m", "endpoint": "http://169.254.169.254:9000"}, [], [("169.254.169.254", 9000)]),
]


@pytest.mark.parametrize(("model", "open_to", "closed_to"), REMOTE, ids=[str(case[0]["source"]) for case in REMOTE])
def test_a_remote_model_reaches_its_store(model, open_to, closed_to):
    rules = policy(model=model)["egress"]
    assert all(allows(rules, *target) for target in open_to)
    assert not any(allows(rules, *target) for target in closed_to)


@pytest.mark.parametrize("host", ["store.storage.svc", "store.storage.svc.cluster.local"])
def test_a_store_inside_the_cluster_is_known_by_its_namespace(host):
    rules = policy(model={"source": "s3://bucket/m", "endpoint": f"http://{host}:9000"})["egress"]
    assert rules[2:] == [{"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "storage"}}}]}]


def test_a_store_of_the_same_namespace():
    rules = policy(model={"source": "s3://bucket/m", "endpoint": "http://store:9000"})["egress"]
    assert rules[2:] == [{"to": [{"podSelector": {}}]}]


@pytest.mark.parametrize("model", [case[0] for case in REMOTE] + [{"source": "file:///m"}])
@pytest.mark.parametrize("port", [53, 80, 443, 9000])
def test_no_model_opens_the_way_to_a_metadata_server(model, port):
    rules = policy(model=model)["egress"]
    for cidr in METADATA_ADDRESSES:
        assert not allows(rules, str(ipaddress.ip_network(cidr).network_address), port)


def test_the_account_has_no_token():
    account = manifests.service_account(resource())
    assert account["automountServiceAccountToken"] is False
    assert account["metadata"]["name"] == "assistant"
    assert account["metadata"]["ownerReferences"][0]["kind"] == "InferenceService"
