"""Compiles `native/` into a shared library, once for each source, compiler and target.

    python -m octavo_engine.kernels.cpu.build FOLDER    compiles for every target ahead, for an image, on any processor

A library's name is a digest of all that made it, so a stale one is never taken. It is written beside its place and
renamed into it: concurrent starts may compile twice, but none of them loads half a file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from octavo_engine.kernels.cpu.targets import Target, compilable

SOURCES = Path(__file__).parent / "native"
# -w: GCC 12 warns of its own headers; what matters is in the tests.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-w")
PREBUILT = Path(sys.prefix) / "lib" / "octavo" / "kernels"  # where an image has them
COMPILE_SECONDS = 120


class BuildFailed(Exception):
    """The kernels cannot be compiled here; the message says why."""


@dataclass(frozen=True)
class Recipe:
    """All that a library is made of."""

    target: Target
    compiler: str  # path
    openmp: Path  # torch's own OpenMP runtime: with a second one, two pools of threads would fight for the processors

    @classmethod
    def here(cls, target: Target) -> Recipe:
        """With this machine's compiler; raises BuildFailed."""
        compiler = shutil.which("g++")
        if compiler is None:
            raise BuildFailed("there is no C++ compiler (g++)")
        bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
        if not bundled:
            raise BuildFailed("this torch does not bring libgomp")
        return cls(target, compiler, bundled[0])

    @cached_property
    def name(self) -> str:
        """The library's file name."""
        version = subprocess.run([self.compiler, "--version"], capture_output=True, text=True, timeout=30, check=False)
        parts = [*FLAGS, *self.target.flags, version.stdout, self.openmp.name]
        parts += [f"{path.name}\n{path.read_text()}" for path in sorted(SOURCES.iterdir())]
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return f"octavo-{self.target.name}-{digest[:20]}.so"

    def compile(self, folder: Path) -> Path:
        """The library in `folder`, compiled unless it is there; raises BuildFailed."""
        target = folder / self.name
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                self._compile(Path(scratch))
                os.replace(Path(scratch) / self.name, target)
        return target

    def _compile(self, scratch: Path) -> None:
        sources = sorted(SOURCES.glob("*.cpp"))
        compile_one = [self.compiler, *FLAGS, *self.target.flags, "-c"]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(lambda source: _run([*compile_one, str(source)], scratch), sources))
        objects = [f"{source.stem}.o" for source in sources]
        _run([self.compiler, "-shared", "-o", self.name, *objects, str(self.openmp)], scratch)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    if done.returncode:
        raise BuildFailed(f"the compiler failed: {done.stderr.strip()[-500:]}")


def private_cache() -> Path:
    """The user's cache, which nobody else may write: what lies there is run. Raises BuildFailed, OSError."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # neither HOME nor an account, as with a user id that a cluster made up
        raise BuildFailed("there is no home directory, and XDG_CACHE_HOME names no cache") from None
    folder = Path(base) / "octavo" / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BuildFailed(f"{folder} can be written by others")
    return folder


def built(target: Target) -> Path:
    """The library for a target: prebuilt, cached or compiled now. Raises BuildFailed, OSError, TimeoutExpired."""
    recipe = Recipe.here(target)
    prebuilt = PREBUILT / recipe.name
    return prebuilt if prebuilt.exists() else recipe.compile(private_cache())


def build_all(folder: Path) -> list[Path]:
    """The libraries for all targets, in a folder that is made if need be; raises BuildFailed, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    return [Recipe.here(target).compile(folder) for target in compilable()]


if __name__ == "__main__":
    build_all(Path(sys.argv[1]))
