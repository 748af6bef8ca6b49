"""The programs that are built from Go modules, as values; hack/programs pins what they are made of. Builds nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from node import config

SOURCES = config.HACK / "programs"

# Of the way programs are built: another one builds all of them anew.
_RECIPE = 2


@dataclass(frozen=True)
class Program:
    """One program: `package` as the Go module in `module` sees it; `daemons` are further names to call it by.

    `built_as` is what Go calls the program where that is not `name`: the last part of its package's path.
    `version` is that of the project it comes from; a package of our own (`./...`) is told apart by its source, too.
    """

    name: str
    version: str
    package: str
    module: Path = SOURCES
    daemons: tuple[str, ...] = ()
    built_as: str = ""

    @property
    def key(self) -> str:
        """Name of its folder in the cache."""
        recipe = f"{self.name}-{self.version}-{_RECIPE}"
        if not self.package.startswith("."):
            return recipe
        digest = hashlib.sha256()
        for file in sorted((self.module / self.package).glob("*.go")):
            digest.update(file.read_bytes())
        return f"{recipe}.{digest.hexdigest()[:8]}"


KUBERNETES = Program(
    "kubernetes",
    config.KUBERNETES_VERSION,
    "./kubernetes",
    daemons=("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet"),
)
# Not with the daemons: what they register at start would make each of a test's many calls slower.
KUBECTL = Program("kubectl", config.KUBERNETES_VERSION, "k8s.io/kubernetes/cmd/kubectl")
COREDNS = Program("coredns", config.COREDNS_VERSION, "./coredns")
HELM = Program("helm", config.HELM_VERSION, "helm.sh/helm/v3/cmd/helm")
PROMETHEUS = Program("prometheus", config.PROMETHEUS_VERSION, "github.com/prometheus/prometheus/cmd/prometheus")
PAUSE = Program("pause", "1", "./pause")
NODE = (KUBERNETES, KUBECTL, COREDNS, HELM, PROMETHEUS, PAUSE)

METRICS_SERVER = Program(
    "metrics-server",
    config.METRICS_SERVER_VERSION,
    "sigs.k8s.io/metrics-server/cmd/metrics-server",
    module=SOURCES / "metrics-server",
)
KSTATUS = Program("kstatus", config.KSTATUS_VERSION, "./kstatus")
KUBECONFORM = Program("kubeconform", config.KUBECONFORM_VERSION, "github.com/yannh/kubeconform/cmd/kubeconform")
# A module of its own: it shares no code with the others, and would only raise the versions they are built from.
S3 = Program("s3", config.S3_VERSION, ".", module=SOURCES / "s3")
_OPERATORS = SOURCES / "prometheus-operator"
_OPERATORS_PACKAGE = "github.com/prometheus-operator/prometheus-operator/cmd"
PROMETHEUS_OPERATOR = Program(
    "prometheus-operator",
    config.PROMETHEUS_OPERATOR_VERSION,
    f"{_OPERATORS_PACKAGE}/operator",
    module=_OPERATORS,
    built_as="operator",
)
CONFIG_RELOADER = Program(
    "prometheus-config-reloader",
    config.PROMETHEUS_OPERATOR_VERSION,
    f"{_OPERATORS_PACKAGE}/prometheus-config-reloader",
    module=_OPERATORS,
)
TESTS = (METRICS_SERVER, KSTATUS, KUBECONFORM, S3, PROMETHEUS_OPERATOR, CONFIG_RELOADER)

KIND = Program("kind", config.KIND_VERSION, "sigs.k8s.io/kind")


def build_flags() -> list[str]:
    """Options of `go build`, the same for all: packages that programs share are compiled once only then.

    Prometheus is built with discovery of pods and nothing else, as the clients of all clouds would triple its build.
    Nothing is kept for debuggers.
    """
    tags = "remove_all_sd,enable_kubernetes_sd"
    return ["-tags", tags, "-ldflags", _link_flags(), "-gcflags=all=-dwarf=false"]


def _link_flags() -> str:
    """What the linker writes into programs; a variable that one of them lacks is passed over."""
    major, minor, _ = config.KUBERNETES_VERSION.split(".")
    version = "k8s.io/component-base/version"
    values = {
        # Without these the programs say v0.0.0 and clients refuse the version skew.
        f"{version}.gitVersion": f"v{config.KUBERNETES_VERSION}",
        f"{version}.gitMajor": major,
        f"{version}.gitMinor": minor,
        # What charts are linted and rendered for without a cluster.
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": major,
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": minor,
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": major,
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": minor,
        "helm.sh/helm/v3/internal/version.version": f"v{config.HELM_VERSION}",
    }
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in values.items())])
