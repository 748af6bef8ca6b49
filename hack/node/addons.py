"""What runs inside the cluster before anything of ours: DNS, rights of the node's own daemons, monitoring CRDs."""

from __future__ import annotations

import hashlib
from string import Template

from node import binaries, config
from node.config import Settings
from node.shell import run
from node.steps import step

_VALUES = {"coredns_image": config.COREDNS_IMAGE, "dns_ip": config.DNS_IP}
_READY_SECONDS = 120


def kubectl(settings: Settings, *arguments: str, stdin: bytes | None = None, timeout: float = 60.0) -> str:
    """Run kubectl as the cluster's administrator and return what it prints."""
    program = settings.kubernetes / "kubectl"
    return run([program, "--kubeconfig", settings.admin_kubeconfig, *arguments], stdin=stdin, timeout=timeout)


def apply(settings: Settings, manifests: str) -> None:
    """Server-side apply of YAML or JSON documents."""
    options = ("--server-side", "--force-conflicts", "--field-manager=octavo-node")
    kubectl(settings, "apply", *options, "-f", "-", stdin=manifests.encode(), timeout=120)


def ensure(settings: Settings) -> None:
    """Apply the add-ons unless this very text was applied to this node before."""
    manifests = _manifests(settings)
    digest = hashlib.sha256(manifests.encode()).hexdigest()
    stamp = settings.state / "addons.sha256"
    if stamp.exists() and stamp.read_text() == digest:
        return
    with step("apply add-ons: DNS, roles, monitoring CRDs"):
        apply(settings, manifests)
        stamp.write_text(digest)


def wait_ready(settings: Settings) -> None:
    """Wait until the node is Ready and names resolve."""
    limit = f"--timeout={_READY_SECONDS}s"
    waits = (
        ("--for=condition=Ready", f"node/{config.NODE_NAME}"),
        ("--for=condition=Available", "deployment/coredns", "--namespace=kube-system"),
    )
    for arguments in waits:
        kubectl(settings, "wait", limit, *arguments, timeout=_READY_SECONDS + 10)


def _manifests(settings: Settings) -> str:
    own = [Template(path.read_text()).substitute(_VALUES) for path in sorted(config.MANIFESTS.glob("*.yaml"))]
    return "\n---\n".join([*own, *(path.read_text() for path in binaries.monitoring_crds(settings))])
