"""The daemons of a node's optional add-ons as values. Starts nothing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from node import binaries, config, prerequisites, programs
from node.component import Component, command
from node.config import NODE_IP, Settings
from node.programs import Program

PROGRAMS: Mapping[str, tuple[Program, ...]] = {"metrics-server": (programs.METRICS_SERVER,), "network-policies": ()}

_POLICIES = config.HACK / "policies"


def _metrics_server(settings: Settings) -> Component:
    # On the node instead of in a pod: no image, nothing that a drain evicts, and `up` repairs it like the others.
    pki, kubeconfig = settings.pki, settings.kubeconfigs / "metrics-server.json"
    flags = {
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "bind-address": NODE_IP,
        "kubeconfig": kubeconfig,
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
        "kubelet-request-timeout": "5s",
        "kubelet-use-node-status-port": None,
        "metric-resolution": "10s",  # the shortest it takes
        "secure-port": config.METRICS_PORT,
        "tls-cert-file": pki / "metrics-server.crt",
        "tls-private-key-file": pki / "metrics-server.key",
    }
    argv = command(binaries.path(settings, programs.METRICS_SERVER), flags)
    return Component("metrics-server", argv, f"https://{NODE_IP}:{config.METRICS_PORT}/livez")


def _network_policies(settings: Settings) -> Component:
    folder = settings.state / "network-policies"
    flags = {
        "server": config.API_URL,
        "authority": settings.pki / "ca.crt",
        "certificate": settings.pki / "network-policies.crt",
        "key": settings.pki / "network-policies.key",
        "trusted": config.HOST_IP,
        "nft": prerequisites.find("nft"),
        "ready": folder / "ready.sock",
    }
    # A copy of its own, so that it is restarted when its code changed and outlives the checkout.
    sources = {folder / "policies" / path.name: path.read_text() for path in _POLICIES.glob("*.py")}
    entry = folder / "__main__.py"
    return Component(
        "network-policies",
        (str(_python()), *command(folder, flags)),
        f"unix:{flags['ready']}",
        files={entry: "from policies import daemon\n\ndaemon.main()\n", **sources},
    )


def _python() -> Path:
    """The system's own where there is one, whichever environment we run in: another one would call for a restart."""
    return Path(shutil.which("python3", path="/usr/local/bin:/usr/bin") or sys.executable)


COMPONENTS: Mapping[str, Callable[[Settings], Component]] = {
    "metrics-server": _metrics_server,
    "network-policies": _network_policies,
}
