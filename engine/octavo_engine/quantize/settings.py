"""What `octavo quantize` is told."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octavo_engine.config import FlagParser, add_flags, check_bounds, from_namespace, option
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.model.huggingface.quantization_methods.facts import WHOLE_ROW

BITS = {"gptq": (4, 8), "awq": (4,)}  # what has kernels here: 2 and 3 bits are kept in 4, and only lose
GROUPS = (32, 64, 128, WHOLE_ROW)
DEVICES = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig:
    """`octavo quantize`."""

    model: str = option("", "checkpoint to start from: a directory of safetensors whose weights are plain")
    out: str = option("", "directory to make; it may be there if it is empty")
    method: Literal["gptq", "awq"] = option(
        "gptq",
        "gptq: each weight makes up for what those before it lost; awq: inputs that matter most are scaled up first",
    )
    bits: int = option(4, "bits of a weight: 4, or 8 with gptq")
    group_size: int = option(
        128, "inputs that share a scale: 32, 64, 128, or -1 for whole rows; fewer are more exact, and take more memory"
    )
    desc_act: bool = option(
        False,
        "gptq: quantize the inputs with the largest activations first; a little more exact, slower to serve, and not"
        " for tensor parallelism",
    )
    calibration: str | None = option(
        None,
        "file with text like what the model will read: paragraphs, or .jsonl with a field text a line; default: a few"
        " pages of plain prose that come with octavo, which is less than a model deserves",
    )
    samples: int = option(256, "how many of its samples are used, spread over the whole file", minimum=1, maximum=65536)
    sample_tokens: int = option(1024, "tokens of a sample that are used at most", minimum=16, maximum=131072)
    device: str = option("auto", "where it is computed: cpu, cuda, cuda:N; auto: CUDA where there is one")

    def __post_init__(self) -> None:
        check_bounds(self)
        _one_of("--bits", self.bits, BITS[self.method], f"--method {self.method}")
        _one_of("--group-size", self.group_size, GROUPS, "groups")
        if self.desc_act and self.method != "gptq":
            raise InvalidConfiguration(f"--desc-act is of gptq: {self.method} has no order of inputs; leave it out")
        if not DEVICES.fullmatch(self.device):
            raise InvalidConfiguration(f"--device is {self.device!r}; choose one of auto, cpu, cuda, cuda:N")

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> QuantizeConfig:
        """Read the arguments; raises InvalidConfiguration naming the flag."""
        parsed = quantize_parser().parse_args(arguments)
        parsed.model = getattr(parsed, "model", None) or parsed.model_argument
        parsed.out = getattr(parsed, "out", None) or parsed.out_argument
        if not parsed.model or not parsed.out:
            raise InvalidConfiguration("name a model and a directory for the result: octavo quantize MODEL OUT")
        return from_namespace(cls, parsed)


def _one_of(name: str, value: int, supported: Sequence[int], what: str) -> None:
    if value not in supported:
        raise InvalidConfiguration(f"{name} is {value}; of {what} there are {', '.join(map(str, supported))}")


def quantize_parser() -> FlagParser:
    """The parser of `octavo quantize`."""
    parser = FlagParser(
        prog="octavo quantize",
        allow_abbrev=False,
        description="Make a checkpoint of 4 or 8 bits out of a plain one, and check that octavo can serve it.",
    )
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="the same as --model")
    parser.add_argument("out_argument", nargs="?", metavar="OUT", help="the same as --out")
    add_flags(parser, QuantizeConfig)
    return parser
