"""The description of a decoder: sizes, switches, positions. Values only; nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from octavo_engine.errors import CheckpointInvalid, ModelUnsupported

MAX_DIMENSION = 1 << 24  # far above any real width: a config that claims more is damaged or hostile
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class Family:
    """What distinguishes one architecture from plain Llama, unless the checkpoint's config says otherwise."""

    name: str  # as in config.json's `architectures`
    qkv_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head of query and key, before the rotation
    gguf_permuted: bool = False  # llama.cpp stores query and key rows in another order


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family("LlamaForCausalLM", gguf_permuted=True),
            Family("MistralForCausalLM", gguf_permuted=True),
            Family("Qwen2ForCausalLM", qkv_bias=True),
            Family("Qwen3ForCausalLM", qk_norm=True),
        )
    }
)


def family_of(name: object) -> Family:
    """The family of that architecture; raises ModelUnsupported naming the known ones."""
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    raise ModelUnsupported(f"architecture {name!r} is not supported; supported are {', '.join(FAMILIES)}")


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the low frequencies (https://arxiv.org/abs/2407.21783, section 3.4.2)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (https://arxiv.org/abs/2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """Each frequency divided by its own factor: what GGUF stores in place of Llama3Scaling."""

    factors: tuple[float, ...]  # head_dim / 2


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: `theta ** (-2 i / head_dim)` radians a position, then scaled."""

    theta: float
    scaling: Llama3Scaling | LinearScaling | FactorScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer, complete: two models with equal specs compute the same function of their weights."""

    architecture: str  # a name in FAMILIES
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int  # width of the logits
    eps: float  # of every RMSNorm
    rope: RopeSpec
    tied: bool  # the embedding is also the output projection
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...]  # sliding window of each layer, in tokens
    max_positions: int
    eos_ids: tuple[int, ...]  # tokens that end a generation
    dtype: str  # of the checkpoint's weights: float32, bfloat16, float16; quantized ones count as bfloat16

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_positions"):
            _check(0 < getattr(self, name) <= MAX_DIMENSION, name, getattr(self, name), f"must be 1 to {MAX_DIMENSION}")
        _check(0 < self.layers <= MAX_LAYERS, "layers", self.layers, f"must be 1 to {MAX_LAYERS}")
        _check(self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, f"must divide heads ({self.heads})")
        _check(self.head_dim % 2 == 0, "head_dim", self.head_dim, "must be even")
        _check(0 < self.eps < 1, "eps", self.eps, "must lie between 0 and 1")
        _check(1 < self.rope.theta < 1e12, "rope theta", self.rope.theta, "must lie between 1 and 1e12")
        _check(len(self.windows) == self.layers, "windows", len(self.windows), "must be one for each layer")
        _check(all(w is None or w > 0 for w in self.windows), "sliding_window", self.windows, "must be positive")

    @property
    def sliding_window(self) -> int | None:
        """The window that every layer has, in tokens; None when at least one layer sees everything."""
        return None if None in self.windows else max(window for window in self.windows if window)

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_dim


def _check(sound: bool, name: str, value: object, rule: str) -> None:
    if not sound:
        raise CheckpointInvalid(f"the checkpoint's config has {name} = {value}; it {rule}")
