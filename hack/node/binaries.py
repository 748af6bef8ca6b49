"""Programs built from the Go module proxy, cached by version; a partly built one never carries its final name."""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from node import config, prerequisites, programs
from node.config import Settings
from node.programs import Program
from node.shell import run, tail
from node.space import GIGABYTE
from node.steps import step

_BUILD_TIMEOUT = 1800.0
# Static, so that the same programs run on the host and in an image without a C library. The compiler's garbage
# collector is most of what can be saved: it begins only when a process holds what two at once can do with.
_GO_ENV = {
    "CGO_ENABLED": "0",
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "-trimpath -buildvcs=false",
    "GOGC": "off",
    "GOMEMLIMIT": "1500MiB",
}


def path(settings: Settings, program: Program, daemon: str | None = None) -> Path:
    """Where a program is once it is built, or one of its daemons."""
    return _folder(settings, program) / (daemon or program.name)


def built(settings: Settings, program: Program) -> Path:
    """Where a program is; built first when it is missing."""
    ensure(settings, [program])
    return path(settings, program)


def ensure(settings: Settings, wanted: Iterable[Program]) -> None:
    """Build what the cache lacks, those of one Go module together: shared packages once, links beside compilers."""
    if all(_folder(settings, program).exists() for program in wanted):
        return
    with _locked(settings):
        # Whoever held the lock may have built it.
        missing = [program for program in wanted if not _folder(settings, program).exists()]
        for module in dict.fromkeys(program.module for program in missing):
            _build(settings, module, [program for program in missing if program.module == module])


def room(settings: Settings, wanted: Iterable[Program]) -> int:
    """Bytes that building what the cache lacks takes at least; how much Go has cached already is not looked up."""
    missing = [program for program in wanted if not _folder(settings, program).exists()]
    if programs.KUBERNETES in missing:
        return 5 * GIGABYTE
    return GIGABYTE if missing else 0


def monitoring_crds(settings: Settings) -> list[Path]:
    """The Prometheus Operator's resource definitions that Octavo writes to."""
    return _operators_crds(settings, "prometheus-operator", ("podmonitors", "prometheusrules", "servicemonitors"))


def prometheus_crds(settings: Settings) -> list[Path]:
    """Those that the Prometheus Operator itself needs beside them to run a Prometheus."""
    return _operators_crds(settings, "prometheus-operator-own", ("prometheuses", "probes", "scrapeconfigs"))


def _operators_crds(settings: Settings, folder: str, kinds: Sequence[str]) -> list[Path]:
    target = settings.cache / "crds" / f"{folder}-{config.PROMETHEUS_OPERATOR_VERSION}"
    if not target.exists():
        with step(f"fetch definitions of {', '.join(kinds)}"), _scratch(target.parent) as scratch:
            module = json.loads(_go(settings, ["mod", "download", "-json", config.PROMETHEUS_OPERATOR_MODULE]))
            partial = scratch / "crds"
            partial.mkdir()
            for kind in kinds:
                name = f"monitoring.coreos.com_{kind}.yaml"
                shutil.copyfile(Path(module["Dir"], "example", "prometheus-operator-crd", name), partial / name)
            partial.rename(target)
    return sorted(target.glob("*.yaml"))


def _folder(settings: Settings, program: Program) -> Path:
    return settings.binaries / program.key


def _build(settings: Settings, module: Path, missing: Sequence[Program]) -> None:
    names = ", ".join(program.name for program in missing)
    log = settings.cache / "logs" / f"build-{missing[0].key}.log"
    log.unlink(missing_ok=True)
    with step(f"build {names}") as progress, _scratch(settings.binaries) as scratch:
        progress.follow(lambda: _compiled(log))
        output = scratch / "bin"
        output.mkdir()
        packages = [program.package for program in missing]
        _go(settings, ["build", "-v", *programs.build_flags(), "-o", f"{output}/", *packages], log=log, cwd=module)
        for program in missing:
            _store(settings, program, output / (program.built_as or program.name))


def _store(settings: Settings, program: Program, file: Path) -> None:
    folder = file.with_suffix(".folder")
    folder.mkdir()
    file.rename(folder / program.name)
    for daemon in program.daemons:
        (folder / daemon).symlink_to(program.name)
    folder.rename(_folder(settings, program))


def _compiled(log: Path) -> str:
    """How far a build is: the packages it has compiled, and the newest."""
    if not log.exists():
        return "resolving modules"
    count = len(log.read_bytes().splitlines())
    return f"{count} packages, {tail(log, 1)}"[:70]


@contextmanager
def _locked(settings: Settings) -> Iterator[None]:
    """One builder at a time, whichever command asks for it."""
    settings.binaries.mkdir(parents=True, exist_ok=True)
    with (settings.binaries / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder on the file system of `parent`, so that what is made there can be renamed into place at once."""
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".partial-") as scratch:
        yield Path(scratch)


def _go(settings: Settings, arguments: list[str], *, log: Path | None = None, cwd: Path | None = None) -> str:
    return run([prerequisites.go(settings), *arguments], log=log, cwd=cwd, env=_GO_ENV, timeout=_BUILD_TIMEOUT)
