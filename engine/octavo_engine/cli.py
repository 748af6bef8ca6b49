"""The command line. Imports no torch until a model is to be served."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from octavo_engine import __version__, termination
from octavo_engine.config import ServeSettings
from octavo_engine.errors import EngineDead, ModelSourceUnreachable, OctavoError, StartupError
from octavo_engine.runtime.host import openmp_settings
from octavo_engine.runtime.host_room import pages_ahead

USAGE = """\
usage: octavo serve MODEL [options]                 serve a model over the OpenAI API
       octavo fetch SOURCE DIRECTORY [options]      fetch a model: hf://, s3://, gs://, https://, oci://
       octavo preflight [options] -- MODEL [...]    check a model and the arguments of serve without loading it
       octavo explain [ID] [options]                say where a request's time went, or why the queue waits
       octavo top [options]                         show what a running server does, live
       octavo plan MODEL [options]                  say what fits a device, and the best it could do; loads nothing
       octavo tune MODEL [options]                  measure this GPU's fastest launch of each kernel, once
       octavo quantize MODEL OUT [options]          make a checkpoint of 4 or 8 bits out of a plain one
       octavo doctor [options]                      name what limits a running engine
       octavo bench [options]                       load a server of the OpenAI API, and say how it answered
       octavo COMMAND --help                        all options
       octavo --version
"""
CLIENTS = ("httpx2", "httpcore2", "huggingface_hub", "urllib3")
CANNOT_WORK, MAY_WORK_LATER, INTERRUPTED = 2, 3, 143


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0 after a drain and when all is well, 1 when the engine died or a request is not known, 2 for a start that cannot
    work as it is, 3 for a model source or a server that may answer later, 143 for a fetch that a signal ended (what it
    has is kept), and for a quantization (of which nothing is).
    """
    command, *rest = [*(sys.argv[1:] if arguments is None else arguments), ""]
    starts = {"serve": _serve, "fetch": _fetch, "preflight": _preflight, "plan": _plan, "tune": _tune}
    starts["quantize"] = _quantize
    looks = {"explain": _explain, "top": _top, "doctor": _doctor, "bench": _bench}  # at a server that runs
    if command in starts:
        return _reporting(starts[command], rest[:-1])
    if command in looks:
        return looks[command](rest[:-1])
    match command:
        case "--version":
            print(f"octavo {__version__}")  # noqa: T201
            return 0
        case "" | "--help" | "-h":
            print(USAGE, end="")  # noqa: T201
            return 0
        case _:
            print(USAGE, end="", file=sys.stderr)  # noqa: T201
            return 2


def _reporting(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run it; an error of the start becomes one line and an exit code."""
    try:
        return command(arguments)
    except ModelSourceUnreachable as error:
        _report(error.reason, error)
        return MAY_WORK_LATER
    except StartupError as error:
        _report(error.reason, error)
        return CANNOT_WORK
    except EngineDead as error:  # before it served: a process of its own has ended
        _report(type(error).__name__, error)
        return 1


def _serve(arguments: Sequence[str]) -> int:
    began = time.monotonic()
    settings = ServeSettings.parse(arguments)
    _log_to_stderr(settings.server.log_level)
    termination.leave_on_signal()
    os.environ.update(openmp_settings(os.environ))
    pages = pages_ahead(settings.engine)
    gc.disable()  # until it serves: a start makes a third of a million objects that stay, and would look at them often
    try:
        from octavo_engine.assembly import assemble  # noqa: PLC0415 (loads torch)
        from octavo_engine.server.serve import serve  # noqa: PLC0415

        return serve(settings, os.environ, partial(assemble, pages=pages), began=began)
    finally:
        gc.enable()


def _fetch(arguments: Sequence[str]) -> int:
    from octavo_engine.fetch.command import fetch  # noqa: PLC0415
    from octavo_engine.fetch.settings import FetchConfig  # noqa: PLC0415

    config = FetchConfig.parse(arguments)
    _log_to_stderr("info")
    termination.leave_on_signal(INTERRUPTED)  # not 0: a model that is half there must not be served
    manifest = fetch(config)
    _succeed({"revision": manifest.revision, "bytes": manifest.total_bytes, "files": len(manifest.files)})
    return 0


def _preflight(arguments: Sequence[str]) -> int:
    from octavo_engine.preflight.command import preflight  # noqa: PLC0415
    from octavo_engine.preflight.settings import PreflightSettings  # noqa: PLC0415

    settings = PreflightSettings.parse(arguments)
    _log_to_stderr(settings.serve.server.log_level)
    termination.leave_on_signal(INTERRUPTED)
    found = preflight(settings)
    _succeed({"revision": found.revision, "bytes": found.total_bytes, "files": found.files})
    return 0


def _plan(arguments: Sequence[str]) -> int:
    from octavo_engine.plan.command import plan  # noqa: PLC0415
    from octavo_engine.plan.settings import PlanSettings  # noqa: PLC0415

    settings = PlanSettings.parse(arguments)
    _log_to_stderr("warning")
    text, fits = plan(settings)
    print(text)  # noqa: T201
    return 0 if fits else CANNOT_WORK


def _tune(arguments: Sequence[str]) -> int:
    from octavo_engine.tune.settings import TuneConfig  # noqa: PLC0415

    config = TuneConfig.parse(arguments)
    _log_to_stderr("warning")
    from octavo_engine.tune.command import tune  # noqa: PLC0415 (loads torch and Triton)

    return tune(config, sys.stdout)


def _quantize(arguments: Sequence[str]) -> int:
    from octavo_engine.quantize.command import quantize  # noqa: PLC0415
    from octavo_engine.quantize.settings import QuantizeConfig  # noqa: PLC0415

    config = QuantizeConfig.parse(arguments)
    _log_to_stderr("info")
    termination.leave_on_signal(INTERRUPTED)
    _succeed(quantize(config).facts)
    return 0


def _explain(arguments: Sequence[str]) -> int:
    from octavo_engine.explain.command import explain  # noqa: PLC0415

    return explain(arguments, sys.stdout, os.environ)


def _doctor(arguments: Sequence[str]) -> int:
    from octavo_engine.doctor.command import doctor  # noqa: PLC0415

    return doctor(arguments, sys.stdout)


def _bench(arguments: Sequence[str]) -> int:
    from octavo_engine.bench.command import bench  # noqa: PLC0415

    return bench(arguments, sys.stdout, os.environ)


def _top(arguments: Sequence[str]) -> int:
    from octavo_engine.explain.top import top  # noqa: PLC0415

    return top(arguments, sys.stdout, os.environ)


def _succeed(facts: dict[str, str | int]) -> None:
    """One line of JSON, for a person or a script, and for the operator."""
    print(json.dumps(facts))  # noqa: T201
    termination.leave_text(json.dumps(facts))


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("octavo_engine").setLevel(level.upper())
    for name in CLIENTS:  # they log each URL, and a URL may be signed
        logging.getLogger(name).setLevel(logging.WARNING)


def _report(reason: str, error: OctavoError) -> None:
    """One line, for a person and for the operator, which copies it into a condition."""
    print(termination.line(reason, str(error)), file=sys.stderr)  # noqa: T201
    termination.leave_word(reason, str(error))
