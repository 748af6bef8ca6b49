"""Which tensors of a GGUF file stay in few bits, as a Quantization: those whose blocks are scales, offsets and codes.

Others (`Q5_0`, `Q2_K` and more) are expanded as they are read, and so are all of them where no kernel multiplies codes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from octavo_engine.model.gguf.file import GgufFile
from octavo_engine.model.gguf.tensors import tensors_of
from octavo_engine.model.tensors.parameters import WEIGHT
from octavo_engine.model.values.name_patterns import NamePattern
from octavo_engine.model.values.quantization import GGUF, Packing, Quantization, Rule, Scheme

SCHEMES: Mapping[int, Scheme] = MappingProxyType(  # by ggml's number of the type
    {
        2: Scheme(Packing.Q4_0, 4, 32, zero_points=False),
        3: Scheme(Packing.Q4_1, 4, 32),
        8: Scheme(Packing.Q8_0, 8, 32, zero_points=False),
        12: Scheme(Packing.Q4_K, 4, 32),
        14: Scheme(Packing.Q6_K, 6, 16, zero_points=False),
    }
)


def read_gguf_quantization(file: GgufFile) -> Quantization | None:
    """Of the file's matrices; None where all are plain, or of types that are expanded."""
    modules: dict[int, list[str]] = {}
    for name, info in tensors_of(file).items():
        if info.kind in SCHEMES and len(info.shape) == 2:
            modules.setdefault(info.kind, []).append(name.removesuffix(WEIGHT))
    rules = tuple(Rule(_any_of(names), SCHEMES[kind]) for kind, names in modules.items())
    return Quantization(GGUF, rules, embedding=True) if rules else None


def _any_of(names: list[str]) -> NamePattern:
    return NamePattern(rf"(?:{'|'.join(map(re.escape, names))})\Z")
