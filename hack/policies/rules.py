"""From pods, namespaces and NetworkPolicies to one nftables table. Pure.

A pod that a policy selects for a direction is isolated in it: a chain of its own lets through what one of the policies
allows and drops the rest. Traffic of a pod passes the node's forward hook, after Services were rewritten to their
endpoints; what the node itself sends, the kubelet's probes for one, does not come there and is never filtered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from policies.selectors import NAMESPACE_NAME, Document, Pod, matches

TABLE = "octavo-policies"


@dataclass(frozen=True)
class World:
    """All pods with an address, and each namespace's labels."""

    pods: Sequence[Pod]
    namespaces: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Direction:
    """How a policy spells one direction, and nftables: `far` is the side of the peer."""

    kind: str
    field: str
    peers: str
    near: str
    far: str


INGRESS = Direction("Ingress", "ingress", "from", "daddr", "saddr")
EGRESS = Direction("Egress", "egress", "to", "saddr", "daddr")


def table(world: World, policies: Sequence[Document], trusted: Sequence[str] = ()) -> str:
    """The table that replaces the one before as a whole; `trusted` addresses count as the node and reach every pod."""
    chains: dict[str, str] = {}
    jumps = []
    for direction in (EGRESS, INGRESS):
        targets = []
        for pod in world.pods:
            selecting = [policy for policy in policies if _selects(policy, pod, direction)]
            if selecting:
                name = f"{direction.field}_{pod.address.replace('.', '_')}"
                chains[name] = _chain(name, _allowed(world, pod, selecting, direction))
                targets.append(f"{pod.address} : jump {name}")
        if targets:
            jumps.append(f"ip {direction.near} vmap {{ {', '.join(sorted(targets))} }}")
    # Within the forward chain egress comes first: a packet has to pass both.
    exempt = [f"ip saddr {{ {', '.join(trusted)} }} accept"] if trusted else []
    hook = "type filter hook forward priority filter; policy accept;"
    chains["forward"] = _chain("forward", [hook, "ct state established,related accept", *exempt, *jumps])
    content = "\n".join(chains.values())
    return f"table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n{content}\n}}\n"


def _chain(name: str, lines: Iterable[str]) -> str:
    return "\n".join([f"  chain {name} {{", *(f"    {line}" for line in lines), "  }"])


def _selects(policy: Document, pod: Pod, direction: Direction) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    same = policy["metadata"]["namespace"] == pod.namespace
    return direction.kind in types and same and matches(spec.get("podSelector") or {}, pod.labels)


def _allowed(world: World, pod: Pod, policies: Iterable[Document], direction: Direction) -> list[str]:
    lines = {
        line
        for policy in policies
        for rule in policy["spec"].get(direction.field) or ()
        for line in _rule(world, pod, policy["metadata"]["namespace"], rule, direction)
    }
    return [*(f"{line} return".lstrip() for line in sorted(lines)), "drop"]


def _rule(world: World, pod: Pod, namespace: str, rule: Document, direction: Direction) -> Iterator[str]:
    """Matches of one rule: each way to name the peer with each port."""
    ports = rule.get("ports") or [None]
    peers = rule.get(direction.peers)
    for port in ports:
        if not peers:
            yield from _with_port(direction, "", [pod] if direction is INGRESS else world.pods, port)
        for peer in peers or ():
            if "ipBlock" not in peer:
                found = [other for other in world.pods if _is_peer(world, other, namespace, peer)]
                yield from _to_pods(direction, pod, found, port)
            elif "." in peer["ipBlock"]["cidr"]:  # pods have no other addresses
                # What is outside has no names for its ports.
                owners = [pod] if direction is INGRESS else []
                yield from _with_port(direction, _block(peer["ipBlock"], direction), owners, port)


def _is_peer(world: World, pod: Pod, namespace: str, peer: Document) -> bool:
    if "namespaceSelector" in peer:
        labels = {NAMESPACE_NAME: pod.namespace, **world.namespaces.get(pod.namespace, {})}
        if not matches(peer["namespaceSelector"], labels):
            return False
    elif pod.namespace != namespace:
        return False
    return matches(peer.get("podSelector") or {}, pod.labels)


def _block(block: Document, direction: Direction) -> str:
    excepted = ", ".join(block.get("except") or ())
    inside = f"ip {direction.far} {block['cidr']}"
    return f"{inside} ip {direction.far} != {{ {excepted} }}" if excepted else inside


def _to_pods(direction: Direction, pod: Pod, peers: Sequence[Pod], port: Document | None) -> Iterator[str]:
    if not peers:
        return
    if port is not None and isinstance(port.get("port"), str) and direction is EGRESS:
        # A port's name means another number in each of the peers.
        for peer in peers:
            yield from _with_port(direction, f"ip {direction.far} {peer.address}", [peer], port)
        return
    addresses = ", ".join(sorted(peer.address for peer in peers))
    yield from _with_port(direction, f"ip {direction.far} {{ {addresses} }}", [pod], port)


def _with_port(direction: Direction, match: str, owners: Sequence[Pod], port: Document | None) -> Iterator[str]:
    """`match` limited to a port; `owners` are the pods whose ports have names."""
    if port is None:
        yield match
        return
    protocol, number = port.get("protocol", "TCP"), port.get("port")
    limit = partial("{} {} dport {}".format, match, protocol.lower())
    if number is None:
        yield f"{match} meta l4proto {protocol.lower()}".lstrip()
    elif isinstance(number, str):
        named = (owner for owner in owners if (protocol, number) in owner.ports)
        for owner in named:
            # Without a match of its own a rule to anywhere is one to the very pod that has the port.
            where = match or ("" if direction is INGRESS else f"ip {direction.far} {owner.address}")
            yield f"{where} {protocol.lower()} dport {owner.ports[protocol, number]}".lstrip()
    else:
        last = port.get("endPort")
        yield limit(f"{number}-{last}" if last else number).lstrip()
