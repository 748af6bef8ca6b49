"""What rank 0 tells a worker that it has started: what to load, where, and with whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from octavo_engine.config import EngineConfig
from octavo_engine.kernels.attention import Backend


@dataclass(frozen=True, slots=True)
class Assignment:
    """One rank's. All but `rank` is the same for all: what rank 0 has decided, nobody decides again."""

    rank: int
    config: EngineConfig
    device: str  # "cpu" or "cuda"
    dtype: str  # a name in torch: "bfloat16"
    cached: str  # the same, of keys and values
    backend: Backend  # of attention
    threads: int
    log_level: int
    place: str = ""  # where the ranks meet: a path

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.config.tensor_parallel_size

    @property
    def words(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_words(cls, words: Mapping[str, Any]) -> Self:
        """From JSON, which knows no tuples."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in words["config"].items()
        }
        return cls(**{**words, "config": EngineConfig(**fields)})
