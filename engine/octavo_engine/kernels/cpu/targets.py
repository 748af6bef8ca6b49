"""What the kernels are compiled for: processors by their features, best first, and the choice of one. Knows no torch.

`OCTAVO_CPU_KERNELS` names another than the best, or `off`: to compare, to test, or around a fault.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from octavo_engine.errors import InvalidConfiguration

OFF = "off"


@dataclass(frozen=True, slots=True)
class Target:
    """A set of instructions. Another one (AMX, say) is a row of TARGETS and, in `native/vectors.h`, a header."""

    name: str
    features: tuple[str, ...]  # as Linux names them in /proc/cpuinfo

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's names for them."""
        return tuple(f"-m{name.replace('_', '')}" for name in self.features)

    def missing(self, processor: frozenset[str]) -> list[str]:
        """What it needs and a processor with these features does not have."""
        return [name for name in self.features if name not in processor]


_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma")
PLAIN = Target("plain", ())  # the compiler's own vectors: SSE2, NEON, or none
TARGETS = (
    Target("avx512_bf16", (*_AVX512, "avx512_bf16")),  # AMD since Zen 4, Intel since Cooper Lake
    Target("avx512", _AVX512),  # bfloat16 is widened before it is multiplied
    Target("avx2", ("avx2", "fma")),
    PLAIN,
)


def compilable(machine: str = platform.machine()) -> tuple[Target, ...]:
    """The targets that a machine's own compiler knows."""
    return TARGETS if machine in {"x86_64", "AMD64"} else (PLAIN,)


def runnable(processor: frozenset[str]) -> tuple[Target, ...]:
    """The targets that run on a processor with these features, best first; never none."""
    return tuple(target for target in compilable() if not target.missing(processor))


def choose(wanted: str, processor: frozenset[str]) -> Target | None:
    """The target `wanted` ("auto": the best that runs), or None for "off"; raises InvalidConfiguration."""
    if wanted == OFF:
        return None
    if wanted == "auto":
        return runnable(processor)[0]
    for target in compilable():
        if target.name == wanted:
            if missing := target.missing(processor):
                raise InvalidConfiguration(
                    f"OCTAVO_CPU_KERNELS is {wanted}, but this processor lacks {', '.join(missing)};"
                    f" it can run {', '.join(other.name for other in runnable(processor))}"
                )
            return target
    names = ", ".join(target.name for target in compilable())
    raise InvalidConfiguration(f"OCTAVO_CPU_KERNELS is {wanted!r}; choose one of auto, {names}, {OFF}")


def features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What this processor can do; nothing special where it does not say."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())
