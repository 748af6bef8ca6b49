"""What `octavo tune` is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo_engine.config import FlagParser, add_flags, check_bounds, from_namespace, option
from octavo_engine.errors import InvalidConfiguration


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """`octavo tune`."""

    model: str = option("", "checkpoint whose shapes are measured; its weights are not read")
    dtype: Literal["auto", "bfloat16", "float16"] = option("auto", "type of the model's numbers, as for octavo serve")
    block_size: int = option(16, "tokens in one KV block, as for octavo serve", minimum=1, maximum=256)
    context: int = option(2048, "tokens of each sequence where attention is measured", minimum=16, maximum=1 << 20)
    milliseconds: int = option(
        20, "how long one launch is repeated; more is steadier: clocks and other work move the figures", minimum=1
    )
    tensor_parallel_size: int = option(1, "devices that share each layer, as for octavo serve", minimum=1, maximum=64)

    def __post_init__(self) -> None:
        check_bounds(self)

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> TuneConfig:
        """Read the arguments; raises InvalidConfiguration naming the flag."""
        parsed = tune_parser().parse_args(arguments)
        parsed.model = getattr(parsed, "model", None) or parsed.model_argument
        if not parsed.model:
            raise InvalidConfiguration("name a model, whose shapes are measured: octavo tune MODEL")
        return from_namespace(cls, parsed)


def tune_parser() -> FlagParser:
    """The parser of `octavo tune`."""
    parser = FlagParser(
        prog="octavo tune",
        allow_abbrev=False,
        description="Measure this GPU's fastest launch of each kernel for a model's shapes, and keep it for starts.",
    )
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="the same as --model")
    add_flags(parser, TuneConfig)
    return parser
