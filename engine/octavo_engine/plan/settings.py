"""What `octavo plan` is told: a model, a device, and the arguments of `octavo serve` that it would get."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from octavo_engine.config import (
    EngineConfig,
    FlagParser,
    ServerConfig,
    add_flags,
    check_bounds,
    from_namespace,
    option,
)
from octavo_engine.devices import DEVICES, Device
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.fetch.settings import SourceConfig

CPU = "cpu"
NAMES = (*(device.name for device in DEVICES), CPU)


@dataclass(frozen=True, kw_only=True)
class PlanConfig(SourceConfig):
    """`octavo plan`: its own flags; those of `octavo serve` are understood, too."""

    device: str | None = option(
        None, f"one of {', '.join(NAMES)} (the processor it runs on, measured); default: all, side by side"
    )
    memory_bytes: int | None = option(
        None, "memory of the device or the container, instead of the table's or this one's", minimum=1
    )
    held_by_others: int = option(0, "bytes of the device that other processes hold", minimum=0)
    context: int = option(1024, "tokens of each sequence, where decoding is looked at", minimum=1)
    measure: bool = option(False, "measure this processor anew, even if its figures are known")
    json: bool = option(False, "print JSON")
    picture: str | None = option(
        None, "file for a picture, .svg or .png: the roofline, and tokens a second over the batch"
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.device is not None and self.device.casefold() not in (name.casefold() for name in NAMES):
            raise InvalidConfiguration(f"--device is {self.device!r}; choose one of {', '.join(NAMES)}")
        if self.picture is not None and not self.picture.endswith((".svg", ".png")):
            raise InvalidConfiguration(f"--picture is {self.picture!r}; its name must end with .svg or .png")
        if self.picture is not None and self.device is None:
            raise InvalidConfiguration("--picture shows one device: name it by --device")

    @property
    def devices(self) -> tuple[Device | None, ...]:
        """The devices to plan for; None stands for this machine's processor."""
        known = {device.name.casefold(): device for device in DEVICES}
        return (*DEVICES, None) if self.device is None else (known.get(self.device.casefold()),)


@dataclass(frozen=True)
class PlanSettings:
    """Everything `octavo plan` needs."""

    config: PlanConfig
    engine: EngineConfig

    @classmethod
    def parse(cls, args: Sequence[str]) -> Self:
        """Read the arguments; raises InvalidConfiguration naming the flag. An address may stand for the model."""
        parsed = plan_parser().parse_args(args)
        config = from_namespace(PlanConfig, parsed)
        vars(parsed).pop("device", None)  # a device of the table, where that of `octavo serve` is a kind
        model = getattr(parsed, "model", None) or parsed.model_argument
        if model and "://" in model and not config.source:
            config = replace(config, source=model)
        if not model and not config.source:
            raise InvalidConfiguration("name a model: octavo plan MODEL, or --source hf://ORG/NAME")
        parsed.model = model or ""
        from_namespace(ServerConfig, parsed)  # said of a pod, it is checked like one
        return cls(config, from_namespace(EngineConfig, parsed))


def plan_parser() -> argparse.ArgumentParser:
    """The parser of `octavo plan`."""
    parser = FlagParser(
        prog="octavo plan",
        allow_abbrev=False,
        description="Say whether a model fits a device, and the best that the device could do with it.",
    )
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="a checkpoint, its config.json, or a source")
    add_flags(parser, PlanConfig)
    add_flags(parser, EngineConfig, without=("device",))
    add_flags(parser, ServerConfig)
    return parser
