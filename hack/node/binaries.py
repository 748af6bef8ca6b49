"""Programs built from the Go module proxy, cached by version; a partly built one never carries its final name."""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from node import config, prerequisites
from node.config import Settings, module_name
from node.shell import last_line, run
from node.steps import step

KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
MODULES = (config.COREDNS_MODULE, config.HELM_MODULE, config.KUBECONFORM_MODULE)

_BUILD_TIMEOUT = 1800.0
# Static, so that the same programs run on the host and in an image without a C library.
_GO_ENV = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-trimpath -buildvcs=false"}


def ensure_all(settings: Settings) -> None:
    """Build whatever the cache does not hold yet."""
    kubernetes(settings)
    prometheus(settings)
    pause(settings)
    for module in MODULES:
        installed(settings, module)
    monitoring_crds(settings)


def kubernetes(settings: Settings) -> Path:
    """Folder with the Kubernetes programs."""

    def build(output: Path) -> list[str]:
        packages = [f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS]
        return ["build", "-v", "-ldflags", _kubernetes_ldflags(), "-o", f"{output}/", *packages]

    return _ensure(settings, settings.kubernetes.name, build, config.HACK / "programs" / "kubernetes")


def prometheus(settings: Settings) -> Path:
    """Prometheus with discovery of pods and nothing else: all clouds' clients would triple the build."""
    package = "github.com/prometheus/prometheus/cmd/prometheus"
    tags = "remove_all_sd,enable_kubernetes_sd"

    def build(output: Path) -> list[str]:
        return ["build", "-v", "-tags", tags, "-ldflags", "-s -w", "-o", f"{output}/", package]

    name = f"prometheus-{config.PROMETHEUS_VERSION}"
    return _ensure(settings, name, build, config.HACK / "programs" / "prometheus") / "prometheus"


def pause(settings: Settings) -> Path:
    """The program of the pause image."""
    source = config.HACK / "programs" / "pause"
    folder = _ensure(
        settings, "pause-1", lambda output: ["build", "-ldflags", "-s -w", "-o", f"{output}/", "."], source
    )
    return folder / "pause"


def installed(settings: Settings, module: str) -> Path:
    """The program of a `path@version` module."""
    name = module_name(module)
    folder = _ensure(settings, name, lambda _: ["install", "-v", "-ldflags", "-s -w", module], config.HACK)
    return folder / name.rsplit("-", 1)[0]


def monitoring_crds(settings: Settings) -> list[Path]:
    """The Prometheus Operator's resource definitions that Octavo writes to; the operator itself is not built."""
    target = settings.cache / "crds" / module_name(config.PROMETHEUS_OPERATOR_MODULE)
    kinds = ("podmonitors", "prometheusrules", "servicemonitors")
    if not target.exists():
        with step("fetch monitoring CRDs"), _scratch(target.parent) as scratch:
            module = json.loads(_go(settings, ["mod", "download", "-json", config.PROMETHEUS_OPERATOR_MODULE]))
            partial = scratch / "crds"
            partial.mkdir()
            for kind in kinds:
                name = f"monitoring.coreos.com_{kind}.yaml"
                shutil.copyfile(Path(module["Dir"], "example", "prometheus-operator-crd", name), partial / name)
            partial.rename(target)
    return sorted(target.glob("*.yaml"))


def _kubernetes_ldflags() -> str:
    major, minor, _ = config.KUBERNETES_VERSION.split(".")
    package = "k8s.io/component-base/version"
    values = {"gitVersion": f"v{config.KUBERNETES_VERSION}", "gitMajor": major, "gitMinor": minor}
    # Without these the programs say v0.0.0 and clients refuse the version skew.
    return " ".join(["-s -w", *(f"-X {package}.{name}={value}" for name, value in values.items())])


def _ensure(settings: Settings, name: str, arguments: Callable[[Path], list[str]], source: Path) -> Path:
    """Folder `name` of the cache, built by `go <arguments(output folder)>` in `source` when it is not there."""
    target = settings.binaries / name
    if target.exists():
        return target
    with _locked(target):
        # Whoever held the lock may have built it.
        if not target.exists():
            _build(settings, target, arguments, source)
    return target


def _build(settings: Settings, target: Path, arguments: Callable[[Path], list[str]], source: Path) -> None:
    log = settings.cache / "logs" / f"{target.name}.log"
    log.unlink(missing_ok=True)
    with step(f"build {target.name}") as progress, _scratch(target.parent) as scratch:
        progress.follow(lambda: last_line(log))
        output = scratch / "bin"
        output.mkdir()
        _go(settings, arguments(output), log=log, cwd=source, gobin=output)
        output.rename(target)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One builder of `target` at a time, whichever command asks for it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder on the file system of `parent`, so that what is made there can be renamed into place at once."""
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".partial-") as scratch:
        yield Path(scratch)


def _go(
    settings: Settings,
    arguments: list[str],
    *,
    log: Path | None = None,
    cwd: Path | None = None,
    gobin: Path | None = None,
) -> str:
    env = {**_GO_ENV, "GOBIN": str(gobin)} if gobin else _GO_ENV
    return run([prerequisites.go(settings), *arguments], log=log, cwd=cwd, env=env, timeout=_BUILD_TIMEOUT)
