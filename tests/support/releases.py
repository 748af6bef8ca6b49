"""Charts and kustomizations installed for real: what a platform engineer types, as calls."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

from node import config
from patience import PATIENCE_SECONDS

OPERATOR_CHART = config.CHECKOUT / "charts" / "octavo-operator"


def helm(*arguments: str | Path, timeout: float = PATIENCE_SECONDS + 30) -> str:
    """Runs helm against the tests' cluster; fails with its words. What helm waits for itself ends before."""
    command = [config.HACK / "helm", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise AssertionError(f"helm {' '.join(map(str, arguments))}:\n{done.stderr}")
    return done.stdout


def previous_revision(folder: Path) -> Path:
    """The operator's chart as it was before the last commit that changed it, unpacked below `folder`."""
    chart = str(OPERATOR_CHART.relative_to(config.CHECKOUT))
    revisions = _git("log", "-2", "--format=%H", "--", chart).decode().split()
    with tarfile.open(fileobj=io.BytesIO(_git("archive", revisions[-1], chart))) as archive:
        archive.extractall(folder, filter="data")
    return folder / chart


def overlay(folder: Path, base: str, namespace: str, image: str, environment: dict[str, str]) -> Path:
    """A user's kustomization over one of ours: a namespace, an image, variables of the operator."""
    repository, _, tag = image.rpartition(":")
    variables = ", ".join(f"{{name: {name}, value: {value!r}}}" for name, value in environment.items())
    (folder / "kustomization.yaml").write_text(f"""\
resources: [{os.path.relpath(config.CHECKOUT / "kustomize" / base, folder.resolve())}]
namespace: {namespace}
images: [{{name: octavo-operator, newName: {repository}, newTag: {tag}}}]
patches:
  - target: {{kind: Deployment, name: octavo-operator}}
    patch: |-
      apiVersion: apps/v1
      kind: Deployment
      metadata: {{name: octavo-operator}}
      spec: {{template: {{spec: {{containers: [{{name: operator, env: [{variables}]}}]}}}}}}
""")
    return folder


def _git(*arguments: str) -> bytes:
    return subprocess.run(
        ["git", *arguments], cwd=config.CHECKOUT, capture_output=True, timeout=PATIENCE_SECONDS, check=True
    ).stdout
