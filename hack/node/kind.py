"""A kind cluster where a Docker engine runs and it was asked for: made once, then another cluster by its kubeconfig."""

from __future__ import annotations

import shutil
from pathlib import Path

from node import binaries, programs
from node.config import Settings
from node.shell import CommandError, NodeError, run
from node.steps import step

NAME = "octavo"
_CREATE_SECONDS = 600.0
_LOAD_SECONDS = 600.0


def kubeconfig(settings: Settings) -> Path:
    """The administrator's kubeconfig of the kind cluster."""
    return settings.cache / "kind" / "kubeconfig"


def meant(settings: Settings) -> bool:
    """Whether the cluster that commands speak to is the kind cluster."""
    return settings.kubeconfig == kubeconfig(settings)


def docker_runs() -> bool:
    """Whether a Docker engine answers on this machine."""
    if shutil.which("docker") is None:
        return False
    try:
        run(["docker", "info"], timeout=10)
    except CommandError:
        return False
    return True


def up(settings: Settings) -> Path:
    """Make the cluster unless it is there; returns its kubeconfig. Raises NodeError without a Docker engine."""
    if not docker_runs():
        raise NodeError("kind needs a Docker engine, and none answers; the embedded node (without --kind) needs none")
    place = kubeconfig(settings)
    place.parent.mkdir(parents=True, exist_ok=True)
    program = binaries.built(settings, programs.KIND)
    if NAME not in run([program, "get", "clusters"]).splitlines():
        with step(f"create kind cluster {NAME}"):
            run(create_command(program, place), timeout=_CREATE_SECONDS)
    elif not place.exists():
        run([program, "export", "kubeconfig", f"--name={NAME}", f"--kubeconfig={place}"])
    return place


def load(settings: Settings, reference: str) -> None:
    """Bring an image that Docker has into the cluster."""
    run(load_command(binaries.built(settings, programs.KIND), reference), timeout=_LOAD_SECONDS)


def down(settings: Settings) -> None:
    """Delete the cluster."""
    with step(f"delete kind cluster {NAME}"):
        run([binaries.built(settings, programs.KIND), "delete", "cluster", f"--name={NAME}"], timeout=_CREATE_SECONDS)
    kubeconfig(settings).unlink(missing_ok=True)


def create_command(program: Path, place: Path) -> list[str]:
    """Waits for the node; the person's own kubeconfig is left alone."""
    return [str(program), "create", "cluster", f"--name={NAME}", f"--kubeconfig={place}", "--wait=300s"]


def load_command(program: Path, reference: str) -> list[str]:
    """Copies one image from Docker to the cluster's node."""
    return [str(program), "load", "docker-image", reference, f"--name={NAME}"]
