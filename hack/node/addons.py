"""What the cluster has before anything of ours: DNS, rights of the node's own daemons, monitoring CRDs.

Some of it only when asked for, and from then on as long as the node lives.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from string import Template

from node import binaries, config, programs
from node.config import Settings
from node.shell import run
from node.steps import step

OPTIONAL = ("metrics-server", "network-policies")

_READY_SECONDS = 120


def kubectl(settings: Settings, *arguments: str, stdin: bytes | None = None, timeout: float = 60.0) -> str:
    """Run kubectl as the cluster's administrator and return what it prints."""
    program = binaries.path(settings, programs.KUBECTL)
    return run([program, "--kubeconfig", settings.admin_kubeconfig, *arguments], stdin=stdin, timeout=timeout)


def apply(settings: Settings, manifests: str) -> None:
    """Server-side apply of YAML or JSON documents."""
    options = ("--server-side", "--force-conflicts", "--field-manager=octavo-node")
    kubectl(settings, "apply", *options, "-f", "-", stdin=manifests.encode(), timeout=120)


def enable(settings: Settings, *names: str) -> None:
    """Ask for some of OPTIONAL; the next `up` starts them."""
    for name in names:
        _mark(settings, name).parent.mkdir(parents=True, exist_ok=True)
        _mark(settings, name).touch()


def enabled(settings: Settings) -> list[str]:
    """Those of OPTIONAL that were asked for."""
    return [name for name in OPTIONAL if _mark(settings, name).exists()]


def ensure(settings: Settings) -> None:
    """Apply the add-ons unless this very text was applied to this node before."""
    manifests = _manifests(settings)
    digest = hashlib.sha256(manifests.encode()).hexdigest()
    stamp = settings.state / "addons.sha256"
    if stamp.exists() and stamp.read_text() == digest:
        return
    with step(f"apply add-ons: {', '.join(('DNS', 'roles', 'monitoring CRDs', *enabled(settings)))}"):
        apply(settings, manifests)
        stamp.write_text(digest)


def wait_ready(settings: Settings) -> None:
    """Wait until the node is Ready, names resolve and the metrics API answers, where there is one."""
    limit = f"--timeout={_READY_SECONDS}s"
    waits = [
        ("--for=condition=Ready", f"node/{config.NODE_NAME}"),
        ("--for=condition=Available", "deployment/coredns", "--namespace=kube-system"),
    ]
    if "metrics-server" in enabled(settings):
        waits.append(("--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io"))
    for arguments in waits:
        kubectl(settings, "wait", limit, *arguments, timeout=_READY_SECONDS + 10)


def _manifests(settings: Settings) -> str:
    absent = set(OPTIONAL) - set(enabled(settings))
    files = [path for path in sorted(config.MANIFESTS.glob("*.yaml")) if path.stem not in absent]
    own = [Template(path.read_text()).substitute(_values(settings)) for path in files]
    return "\n---\n".join([*own, *(path.read_text() for path in binaries.monitoring_crds(settings))])


def _values(settings: Settings) -> dict[str, str]:
    return {
        "coredns_image": config.COREDNS_IMAGE,
        "dns_ip": config.DNS_IP,
        "node_ip": config.NODE_IP,
        "metrics_port": str(config.METRICS_PORT),
        "authority": base64.b64encode((settings.pki / "ca.crt").read_bytes()).decode(),
    }


def _mark(settings: Settings, name: str) -> Path:
    return settings.state / "addons" / name
