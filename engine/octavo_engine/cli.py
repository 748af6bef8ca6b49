"""The command line. Imports no torch until a model is to be served."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from octavo_engine import __version__, termination
from octavo_engine.config import ServeSettings
from octavo_engine.errors import StartupError

USAGE = """\
usage: octavo serve MODEL [options]   serve a model over the OpenAI API
       octavo serve --help            all options
       octavo --version
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 after a drain, 1 when the engine died, 2 for a start that cannot work."""
    command, *rest = [*(sys.argv[1:] if arguments is None else arguments), ""]
    match command:
        case "serve":
            return _serve(rest[:-1])
        case "--version":
            print(f"octavo {__version__}")  # noqa: T201
            return 0
        case "" | "--help" | "-h":
            print(USAGE, end="")  # noqa: T201
            return 0
        case _:
            print(USAGE, end="", file=sys.stderr)  # noqa: T201
            return 2


def _serve(arguments: Sequence[str]) -> int:
    try:
        settings = ServeSettings.parse(arguments)
        _log_to_stderr(settings.server.log_level)
        termination.leave_on_signal()
        from octavo_engine.server.serve import serve  # noqa: PLC0415 (loads torch)

        return serve(settings, os.environ)
    except StartupError as error:
        _report(error)
        return 2


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("octavo_engine").setLevel(level.upper())


def _report(error: StartupError) -> None:
    """One line, for a person and for the operator, which copies it into a condition."""
    print(termination.line(error.reason, str(error)), file=sys.stderr)  # noqa: T201
    termination.leave_word(error.reason, str(error))
