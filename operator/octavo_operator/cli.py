"""The command `octavo-operator`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from octavo_operator import __version__, config, logs, process
from octavo_operator.errors import ConfigError


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="octavo-operator", description="Serves language models on Kubernetes.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the operator until stopped", allow_abbrev=False)
    config.add_flags(run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status, 2 for wrong settings."""
    flags = vars(build_parser().parse_args(arguments))
    try:
        settings = config.read_config(flags, os.environ)
        logs.configure(settings.log_level, settings.log_format)
        return asyncio.run(process.run(settings))
    except ConfigError as error:
        sys.stderr.write(f"octavo-operator: {error}\n")
        return 2
