"""Which weights of a checkpoint are stored in few bits, and how. Values only; `quantization_config` reads them.

A weight `[out, in]` is cut into groups of inputs, which share a scale and, unless they are symmetric, a zero point:
`scale * (code - zero)`. Methods differ in how scales are found, which is over when a checkpoint is written, and in how
codes are laid out (`Packing`), which `packed_tensors` and `quantized_formats` know.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from octavo_engine.model.values.name_patterns import NamePattern

GGUF = "gguf"  # the method of a GGUF file's weights, which no config names


class Packing(StrEnum):
    """A layout of codes, scales and zero points in tensors."""

    AWQ_GEMM = "awq gemm"
    AWQ_GEMV = "awq gemv"
    GPTQ = "gptq"  # zero points stored less one
    GPTQ_V2 = "gptq_v2"
    COMPRESSED_TENSORS = "compressed-tensors pack-quantized"
    Q4_0 = "GGUF Q4_0"
    Q4_1 = "GGUF Q4_1"
    Q4_K = "GGUF Q4_K"
    Q6_K = "GGUF Q6_K"
    Q8_0 = "GGUF Q8_0"


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weight of one module is stored."""

    packing: Packing
    bits: int  # of a code: 2, 3, 4 or 8
    group: int | None  # inputs of a group, of which the last may have fewer; None: all inputs are one
    zero_points: bool = True  # False: stored codes lie around 2 ** (bits - 1)
    by_activation: bool = False  # groups were filled in the order of the inputs' activations, not of the inputs

    @property
    def scattered(self) -> bool:
        """Whether neighbouring inputs may be in any groups: some of them are no matrix of the same form."""
        return self.by_activation and self.group is not None

    def group_of(self, inputs: int) -> int:
        """Inputs of each group but the last, in a weight of so many inputs."""
        return inputs if self.group is None else self.group

    def groups_of(self, inputs: int) -> int:
        """How many groups that makes."""
        return -(-inputs // self.group_of(inputs))

    def code_bits(self, inputs: int) -> Literal[4, 8]:
        """Bits of a code in memory, where only 4 and 8 exist: rows are whole bytes."""
        return 4 if self.bits <= 4 and inputs % 2 == 0 else 8


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for the modules that a pattern names."""

    names: NamePattern
    scheme: Scheme | None  # None: plain weights


@dataclass(frozen=True, slots=True)
class Quantization:
    """A checkpoint's own description of its quantized weights."""

    method: str  # as in the config's `quant_method`
    rules: tuple[Rule, ...]  # the first that names a module decides
    embedding: bool = False  # they hold for the embedding, too, which otherwise is plain
    cut: tuple[str, ...] = ()  # modules, by the last word of their names, of whose inputs only some are wanted

    @property
    def bits(self) -> tuple[int, ...]:
        """Of the codes that there are, fewest first."""
        return tuple(sorted({rule.scheme.bits for rule in self.rules if rule.scheme is not None}))

    def __str__(self) -> str:
        return f"{self.method}, {' and '.join(map(str, self.bits))} bits"

    def scheme_of(self, module: str) -> Scheme | None:
        """How that module's weight is kept; None: plainly. `module`: `model.layers.0.mlp.up_proj`, `lm_head`."""
        scheme = next((rule.scheme for rule in self.rules if rule.names.matches(module)), None)
        expanded = scheme is not None and scheme.scattered and module.rpartition(".")[2] in self.cut
        return None if expanded else scheme
