"""What the project's programs understand, so that a page which names a command or a flag can be held against them.

A command is read by the very parser that would read it; nothing is run. Programs of others are known by the files of
ours that they are given, and by the flags that our pages name.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import yaml

from documents import FLAG, ROOT, Command
from octavo_engine.bench.settings import BenchConfig, bench_parser
from octavo_engine.bench.sweep import Sweep
from octavo_engine.config import ServeSettings, from_namespace
from octavo_engine.doctor.command import DoctorSettings
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.explain.command import ExplainSettings
from octavo_engine.explain.top import TopSettings
from octavo_engine.fetch.settings import FetchConfig
from octavo_engine.plan.settings import PlanSettings
from octavo_engine.preflight.settings import PreflightSettings
from octavo_engine.quantize.settings import QuantizeConfig
from octavo_engine.tune.settings import TuneConfig
from octavo_operator.config import add_flags
from octavo_operator.plugin.main import build_parser as plugin_parser

Arguments = Sequence[str]
SOURCES = ("hack", "benchmarks", "operator/octavo_operator/plugin", "engine/octavo_engine/bench/command.py")
QUOTED_FLAG = re.compile(rf"""["']({FLAG.pattern})["'=]|^\s*({FLAG.pattern})\)""", re.MULTILINE)
ELSEWHERE = {
    "docker": "--cap-drop --cpus --gpus --memory --read-only --rm --tmpfs",
    "helm": "--create-namespace --install --namespace --reset-then-reuse-values --reuse-values --set --set-string"
    " --take-ownership --version --wait",
    "kubectl": "--docker-password --docker-server --docker-username --for --force --force-conflicts --from-file"
    " --from-literal --namespace --previous --server-side --show-managed-fields --timeout --validate",
    "locust": "--headless --host --run-time --spawn-rate --users",
    "every program": "--help",
}
"""Flags of programs that are not ours, as far as pages name them."""


class Misspelled(Exception):
    """A command that would not run; says why."""


def _bench(arguments: Arguments) -> None:
    """As `octavo bench` reads them, but for files, which need not be there."""
    if "--compare" in arguments:
        if len(arguments) != 3:
            raise Misspelled("--compare takes two files")
        return
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    config = from_namespace(BenchConfig, bench_parser().parse_args(arguments[:at]))
    if config.sweep is not None:
        Sweep.parse(config.sweep, arguments[at + 1 :])


OCTAVO: dict[str, Callable[[list[str]], object]] = {
    "serve": ServeSettings.parse,
    "fetch": FetchConfig.parse,
    "preflight": PreflightSettings.parse,
    "explain": ExplainSettings.parse,
    "top": TopSettings.parse,
    "plan": PlanSettings.parse,
    "tune": TuneConfig.parse,
    "quantize": QuantizeConfig.parse,
    "doctor": DoctorSettings.parse,
    "bench": _bench,
}


def check(command: Command) -> None:
    """Raise Misspelled where a command names something that is not there; those of unknown programs pass."""
    program, *arguments = command
    if inner := _inside(command):
        check(inner)
    if program.startswith("hack/"):
        _there(program)
    if program in PROGRAMS:
        PROGRAMS[program](arguments)


def _inside(command: Command) -> Command | None:
    """What a container is told to run: `kubectl exec ... -- octavo ...`, `docker run ... octavo-engine serve ...`."""
    program, *rest = command
    if program in KUBECTL and "exec" in rest and "--" in rest:
        return tuple(rest[rest.index("--") + 1 :])
    if program == "docker" and rest[0] == "run" and "octavo-engine" in rest:
        return ("octavo", *rest[rest.index("octavo-engine") + 1 :])
    return None


def _octavo(arguments: list[str]) -> None:
    if arguments in (["--help"], ["--version"]):
        return
    if not arguments or arguments[0] not in OCTAVO:
        raise Misspelled(f"octavo has no command {arguments[:1]}")
    _read(OCTAVO[arguments[0]], arguments[1:])


def _read(parse: Callable[[list[str]], object], arguments: list[str]) -> None:
    """Let a parser read them; what it complains of becomes Misspelled."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            parse(arguments)
    except InvalidConfiguration as error:
        raise Misspelled(str(error)) from error
    except SystemExit as end:
        if end.code:
            raise Misspelled(said.getvalue()) from end


def _make(arguments: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for word in arguments:
        if "=" not in word and word not in targets:
            raise Misspelled(f"make has no target {word}")


def _kubectl(arguments: list[str]) -> None:
    if arguments[:1] == ["octavo"]:
        _read(plugin_parser().parse_args, arguments[1:])
    for flag, file in pairwise(arguments):
        if flag in ("-f", "-k") and file.startswith(("examples/", "kustomize/", "crds/")):
            _there(file)


def _helm(arguments: list[str]) -> None:
    charts = [word for word in arguments if word.startswith("charts/")]
    for chart in charts:
        values = yaml.safe_load((_there(chart) / "values.yaml").read_text("utf-8")) or {}
        for flag, value in pairwise(arguments):
            if flag in ("--set", "--set-string"):
                _value(values, value)


def _value(values: Any, assignment: str) -> None:
    """Whether the chart has it; what is below an empty value is the user's own."""
    for part in re.split(r"\.|\[\d+\]", assignment.partition("=")[0]):
        if not isinstance(values, dict) or not values:
            return
        if part not in values:
            raise Misspelled(f"the chart has no value {assignment}")
        values = values[part]


def _python(arguments: list[str]) -> None:
    if arguments[:1] == ["-m"]:
        module = arguments[1].replace(".", "/")
        places = [
            ROOT / folder / module for folder in ("hack", "benchmarks", "benchmarks/cpu", "benchmarks/autoscaling")
        ]
        if not any(place.is_dir() or place.with_suffix(".py").is_file() for place in places):
            raise Misspelled(f"there is no module {arguments[1]}")
    elif arguments and arguments[0].endswith(".py"):
        _there(arguments[0])


def _locust(arguments: list[str]) -> None:
    file = _there(arguments[arguments.index("-f") + 1]).read_text("utf-8")
    known = {*ELSEWHERE["locust"].split(), *FLAG.findall(file)}
    if unknown := {found for word in arguments for found in FLAG.findall(word)} - known:
        raise Misspelled(f"locust and its file have no {', '.join(unknown)}")


def _k6(arguments: list[str]) -> None:
    script = _there(arguments[-1]).read_text("utf-8")
    for flag, setting in pairwise(arguments):
        if flag == "-e" and f"'{setting.partition('=')[0]}'" not in script:
            raise Misspelled(f"the script reads no {setting}")


def _there(name: str) -> Any:
    if not (ROOT / name).exists():
        raise Misspelled(f"there is no {name}")
    return ROOT / name


KUBECTL = ("kubectl", "hack/kubectl")
PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "octavo": _octavo,
    "make": _make,
    **dict.fromkeys(KUBECTL, _kubectl),
    **dict.fromkeys(("helm", "hack/helm"), _helm),
    **dict.fromkeys(("python", ".venv/bin/python"), _python),
    **dict.fromkeys(("locust", ".venv/bin/locust"), _locust),
    "k6": _k6,
}


@cache
def known_flags() -> frozenset[str]:
    """Every long flag that a page may name: those of our programs' own help and sources, and ELSEWHERE."""
    operator = argparse.ArgumentParser()
    add_flags(operator)
    helps = (*map(_help, OCTAVO.values()), operator.format_help())
    ours = {flag for text in helps for flag in FLAG.findall(text)}
    others = {flag for flags in ELSEWHERE.values() for flag in flags.split()}
    return frozenset(ours | others | set(_in_sources()))


def _help(parse: Callable[[list[str]], object]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        parse(["--help"])
    return said.getvalue()


def _in_sources() -> Iterator[str]:
    """Those that scripts of ours declare: quoted in Python, an alternative of a shell's case."""
    for place in SOURCES:
        root = ROOT / place
        for path in [root] if root.is_file() else root.rglob("*"):
            if path.is_file() and path.suffix in ("", ".py"):
                yield from (one or two for one, two in QUOTED_FLAG.findall(path.read_text("utf-8", "replace")))
