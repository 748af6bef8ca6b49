"""The node's network namespace: one veth pair to the host, one route into it, and no way out."""

from __future__ import annotations

from pathlib import Path

from node.config import HOST_IP, LINK_NETWORK, NAMESPACE, NETWORK, NODE_IP, SERVICE_NETWORK
from node.prerequisites import find
from node.shell import CommandError, run
from node.steps import step

HANDLE = Path("/run/netns") / NAMESPACE
_HOST_LINK = "octavo0"
_NODE_LINK = "eth0"


def enter() -> tuple[str, ...]:
    """Prefix that runs a command inside the namespace. Not `ip netns exec`: it remounts /sys and hides the cgroups."""
    return (find("nsenter"), f"--net={HANDLE}", "--")


def identity() -> int:
    """Inode of the namespace: another one means that what was started before lives elsewhere; 0 when there is none."""
    return HANDLE.stat().st_ino if ready() else 0


def ready() -> bool:
    """Whether the namespace and the host's end of the link are there and up."""
    state = Path("/sys/class/net", _HOST_LINK, "operstate")
    return HANDLE.exists() and state.exists() and state.read_text().strip() == "up"


def ensure() -> bool:
    """Make the namespace unless it is whole; returns whether it was made anew."""
    if ready():
        return False
    with step(f"make network namespace {NAMESPACE}: node {NODE_IP}, host {HOST_IP}"):
        remove()
        _make()
    return True


def remove() -> None:
    """Delete the namespace and the link; what is not there is fine."""
    for arguments in (["link", "delete", _HOST_LINK], ["netns", "delete", NAMESPACE]):
        try:
            _ip(*arguments)
        except CommandError:
            continue


def _make() -> None:
    prefix = LINK_NETWORK.prefixlen
    _ip("netns", "add", NAMESPACE)
    _ip("link", "add", _HOST_LINK, "type", "veth", "peer", "name", _NODE_LINK, "netns", NAMESPACE)
    _ip("address", "add", f"{HOST_IP}/{prefix}", "dev", _HOST_LINK)
    _ip("link", "set", _HOST_LINK, "up")
    _ip("-n", NAMESPACE, "address", "add", f"{NODE_IP}/{prefix}", "dev", _NODE_LINK)
    for link in ("lo", _NODE_LINK):
        _ip("-n", NAMESPACE, "link", "set", link, "up")
    _ip("route", "replace", str(NETWORK), "via", NODE_IP, "dev", _HOST_LINK)
    # No default route: what is meant for the outside is unreachable at once instead of timing out. A Service's address
    # is only rewritten after it was routed, so processes of the node itself need some route for it.
    _ip("-n", NAMESPACE, "route", "add", str(SERVICE_NETWORK), "via", HOST_IP, "dev", _NODE_LINK)
    settings = {"net/ipv4/ip_forward": 1, "net/ipv6/conf/all/disable_ipv6": 1}
    script = "; ".join(f"echo {value} > /proc/sys/{name}" for name, value in settings.items())
    run([*enter(), "sh", "-ec", script])


def _ip(*arguments: str) -> None:
    run([find("ip"), *arguments])
