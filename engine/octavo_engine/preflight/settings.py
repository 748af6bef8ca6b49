"""What `octavo preflight` is told: where the model is, what it shall run on, and the arguments of `octavo serve`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from octavo_engine.config import FlagParser, ServeSettings, add_flags, check_bounds, from_namespace, option
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.fetch.settings import SourceConfig


@dataclass(frozen=True, kw_only=True)
class PreflightConfig(SourceConfig):
    """`octavo preflight`: everything before `--`."""

    memory_bytes: int | None = option(
        None, "memory of the container that will serve on its processor; default: not checked", minimum=1
    )

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class PreflightSettings:
    """The check's own settings, and those that it checks."""

    config: PreflightConfig
    serve: ServeSettings

    @classmethod
    def parse(cls, args: Sequence[str]) -> Self:
        """Read both halves, the second with the parser of `octavo serve`; raises InvalidConfiguration."""
        at = list(args).index("--") if "--" in args else len(args)
        parsed, unknown = preflight_parser().parse_known_args(args[:at])
        if at == len(args) or unknown:
            shown = f" ({unknown[0]} is none of octavo preflight)" if unknown else ""
            raise InvalidConfiguration(f"give the arguments of octavo serve after --{shown}")
        config = from_namespace(PreflightConfig, parsed)
        return cls(config, ServeSettings.parse(args[at + 1 :]))


def preflight_parser() -> argparse.ArgumentParser:
    """The parser of what stands before `--`."""
    parser = FlagParser(
        prog="octavo preflight",
        allow_abbrev=False,
        usage="octavo preflight [options] -- SERVE_ARGUMENTS",
        description="Check a model and the arguments of octavo serve without loading it.",
    )
    add_flags(parser, PreflightConfig)
    return parser
