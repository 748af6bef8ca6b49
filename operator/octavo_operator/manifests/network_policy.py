"""Who reaches the pods, and whom they reach.

The kubelet's probes need no rule: a pod's own node always reaches it. Where the cluster's network plugin ignores
policies, these objects change nothing.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from octavo_operator import names
from octavo_operator.config import OperatorConfig, labels
from octavo_operator.manifests.child import NETWORK_POLICY, Manifest, metadata
from octavo_operator.spec import Model, Spec

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_EVERYWHERE = ("0.0.0.0/0", "::/0")

METADATA_ADDRESSES = ("169.254.169.254/32", "100.100.100.200/32", "fd00:ec2::254/128")
"""Where clouds hand out a node's credentials to whoever asks."""
_NO_STORE = ("169.254.0.0/16", "100.100.100.200/32", "fe80::/10", "fd00:ec2::254/128")

_DNS_PODS = ({_NAMESPACE_NAME: "kube-system"}, {"k8s-app": "kube-dns"})  # the label of CoreDNS, too
_DNS_PORTS = (53, 5353)  # OpenShift's DNS pods listen on the latter
_TLS_PORT, _PLAIN_PORT = 443, 80


@dataclass(frozen=True)
class ManagementPeers:
    """Who may reach the management port: the operator and Prometheus.

    Attributes:
        operator_namespace: where the operator's pods are; operator_pods: their labels.
        prometheus_namespaces: labels of Prometheus' namespace, empty for any; prometheus_pods: labels of its pods.
        addresses: ranges in CIDR form, for an operator or a Prometheus outside the pod network.
    """

    operator_namespace: str
    operator_pods: dict[str, str] = field(default_factory=dict)
    prometheus_namespaces: dict[str, str] = field(default_factory=dict)
    prometheus_pods: dict[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: OperatorConfig) -> ManagementPeers:
        """As the operator's settings say."""
        return cls(
            operator_namespace=config.lease_namespace,
            operator_pods=labels(config.operator_pods),
            prometheus_namespaces=labels(config.prometheus_namespaces),
            prometheus_pods=labels(config.prometheus_pods),
            addresses=config.address_list,
        )

    def rendered(self) -> list[Manifest]:
        """As peers of an ingress rule."""
        operator = _selected({_NAMESPACE_NAME: self.operator_namespace}, self.operator_pods)
        prometheus = _selected(self.prometheus_namespaces, self.prometheus_pods)
        return [operator, prometheus, *({"ipBlock": {"cidr": cidr}} for cidr in self.addresses)]


def network_policy(resource: Manifest, spec: Spec, peers: ManagementPeers, running: Model | None = None) -> Manifest:
    """The policy of the engine pods, and of the Jobs that check and load for them.

    Args:
        running: the model of the replicas, where the spec already names another: new ones of them fetch it still.
    """
    models = [model for model in (spec.model, running) if model and model.remote]
    stores = [rule for model in models for rule in store_egress(model)]
    labels_of_all = names.own_labels(resource["metadata"]["name"])
    del labels_of_all[names.SERVICE_LABEL]  # a Job's pods go without it
    return {
        "apiVersion": NETWORK_POLICY[0],
        "kind": NETWORK_POLICY[1],
        "metadata": metadata(resource),
        "spec": {
            "podSelector": {"matchLabels": labels_of_all},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [_api_ingress(spec), {"from": peers.rendered(), "ports": [_tcp(names.MANAGEMENT_PORT)]}],
            "egress": [*dns_egress(), *(rule for at, rule in enumerate(stores) if rule not in stores[:at])],
        },
    }


def dns_egress() -> list[Manifest]:
    """Name resolution, wherever it runs: in pods, on the nodes, at a link-local address; never at a metadata server.

    Selectors find pods and address ranges find the rest: no plugin takes the one for the other reliably. A policy sees
    the port behind the Service, which is the DNS pods' own choice: those that are known by their label have any.
    """
    anywhere = [_selected({}, {}), *_ranges(METADATA_ADDRESSES)]
    ports = [{"protocol": protocol, "port": port} for protocol in ("UDP", "TCP") for port in _DNS_PORTS]
    return [{"to": [_selected(*_DNS_PODS)]}, {"to": anywhere, "ports": ports}]


def store_egress(model: Model) -> list[Manifest]:
    """The model's store: where its address says that it is, and for a store of the world also what it redirects to."""
    host, port = _store(model)
    if namespace := _cluster_namespace(host):
        # Behind a Service the pods listen on ports of their own choice.
        return [{"to": [_selected({_NAMESPACE_NAME: namespace}, {})]}]
    if host and "." not in host and ":" not in host:
        return [{"to": [{"podSelector": {}}]}]  # a Service of the same namespace
    if (block := _address_block(host)) is not None:
        return [{"to": [{"ipBlock": {"cidr": block}}], "ports": [_tcp(port)]}] if _is_store(block) else []
    # Hubs and registries send clients on to a content network.
    ports = sorted({port, _TLS_PORT})
    return [{"to": _ranges(_NO_STORE), "ports": [_tcp(number) for number in ports]}]


def _store(model: Model) -> tuple[str, int]:
    """Host and port of the store; an empty host for one that the client knows by itself."""
    named = model.endpoint or (model.source if model.scheme in ("https", "oci") else "")
    address = urlsplit(named)
    return address.hostname or "", address.port or (_PLAIN_PORT if address.scheme == "http" else _TLS_PORT)


def _cluster_namespace(host: str) -> str | None:
    """The namespace in SERVICE.NAMESPACE.svc and its longer forms."""
    parts = host.split(".")
    return parts[1] if len(parts) >= 3 and parts[2] == "svc" else None


def _address_block(host: str) -> str | None:
    """The range of one address; None for a name."""
    try:
        return str(ipaddress.ip_network(host))
    except ValueError:
        return None


def _is_store(block: str) -> bool:
    """No store is at a metadata server or on the node itself."""
    address = ipaddress.ip_network(block)
    return not (address.is_link_local or address.is_loopback or block in METADATA_ADDRESSES)


def _api_ingress(spec: Spec) -> Manifest:
    """Without `allowFrom`, whoever reaches the pod: keys decide who may ask."""
    rule: Manifest = {"ports": [_tcp(names.API_PORT)]}
    if spec.allow_from:
        rule["from"] = [peer.model_dump(by_alias=True, exclude_none=True) for peer in spec.allow_from]
    return rule


def _selected(namespaces: dict[str, str], pods: dict[str, str]) -> Manifest:
    """Pods by labels in namespaces by labels; no labels mean all."""
    peer: Manifest = {"namespaceSelector": {"matchLabels": namespaces} if namespaces else {}}
    if pods:
        peer["podSelector"] = {"matchLabels": pods}
    return peer


def _ranges(excluded: tuple[str, ...]) -> list[Manifest]:
    """Every address of both families except these ranges."""
    blocks = []
    for everything in _EVERYWHERE:
        family = ":" in everything
        excepted = [cidr for cidr in excluded if (":" in cidr) is family]
        blocks.append({"ipBlock": {"cidr": everything, "except": excepted}})
    return blocks


def _tcp(port: int) -> Manifest:
    return {"protocol": "TCP", "port": port}
