"""The description of a decoder: sizes, switches, positions. Values only; nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from octavo_engine.errors import CheckpointInvalid, ModelUnsupported
from octavo_engine.model.values.quantization import Quantization
from octavo_engine.model.values.rope_spec import MAX_POSITIONS, DynamicScaling, RopeSpec
from octavo_engine.model.values.sampling_defaults import OPENAI, SamplingDefaults

MAX_DIMENSION = MAX_POSITIONS  # far above any real width: a config that claims more is damaged or hostile
MAX_LAYERS = 1024


class WindowRule(Enum):
    """Which layers see a window only."""

    NONE = "no layer, whatever the config says"
    ALL = "every layer, unless `sliding_window` is null"
    SWITCHED = "layers from `max_window_layers` on, if `use_sliding_window`"


@dataclass(frozen=True, slots=True)
class Family:
    """What distinguishes an architecture from plain Llama, and what transformers assumes where a config is silent."""

    name: str  # as in config.json's `architectures`
    qkv_bias: bool = False  # always
    reads_attention_bias: bool = False  # `attention_bias`: of query, key, value and output
    reads_mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head of query and key, before the rotation
    window_rule: WindowRule = WindowRule.NONE
    kv_heads: int | None = None  # None: as many as there are heads
    head_dim: int | None = None  # None: hidden size / heads
    gguf_permuted: bool = False  # llama.cpp stores query and key rows in another order


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            Family("LlamaForCausalLM", reads_attention_bias=True, reads_mlp_bias=True, gguf_permuted=True),
            Family("MistralForCausalLM", window_rule=WindowRule.ALL, kv_heads=8, gguf_permuted=True),
            Family("Qwen2ForCausalLM", qkv_bias=True, window_rule=WindowRule.SWITCHED, kv_heads=32),
            Family(
                "Qwen3ForCausalLM",
                reads_attention_bias=True,
                qk_norm=True,
                window_rule=WindowRule.SWITCHED,
                kv_heads=32,
                head_dim=128,
            ),
        )
    }
)


def family_of(name: object) -> Family:
    """The family of that architecture; raises ModelUnsupported naming the known ones."""
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    raise ModelUnsupported(f"architecture {name!r} is not supported; supported are {', '.join(FAMILIES)}")


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
    max_positions: int  # the longest sequence, unless a longer one is asked for: see `longest`
    eos_ids: tuple[int, ...]  # tokens that end a generation
    dtype: str  # of the checkpoint's plain weights: float32, bfloat16, float16; a quantized GGUF file's is bfloat16
    quantization: Quantization | None = None  # which products' weights are stored in few bits, and how
    kv_scales: bool = False  # the checkpoint has numbers by which a cache of 8 bits divides keys and values
    sampling: SamplingDefaults = OPENAI  # for requests that do not say

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "max_positions"):
            _check(0 < getattr(self, name) <= MAX_DIMENSION, name, getattr(self, name), f"must be 1 to {MAX_DIMENSION}")
        _check(0 < self.layers <= MAX_LAYERS, "layers", self.layers, f"must be 1 to {MAX_LAYERS}")
        _check(self.heads % self.kv_heads == 0, "kv_heads", self.kv_heads, f"must divide heads ({self.heads})")
        _check(self.head_dim % 2 == 0, "head_dim", self.head_dim, "must be even")
        _check(0 < self.eps < 1, "eps", self.eps, "must lie between 0 and 1")
        _check(1 < self.rope.theta < 1e12, "rope theta", self.rope.theta, "must lie between 1 and 1e12")
        _check(len(self.windows) == self.layers, "windows", len(self.windows), "must be one for each layer")
        _check(
            all(w is None or 0 < w <= MAX_DIMENSION for w in self.windows),
            "sliding_window",
            self.windows,
            f"must be 1 to {MAX_DIMENSION}",
        )

    def numbers(self, dtype: str, *, on_host: bool) -> str:
        """The type that `--dtype` means: `auto` is the checkpoint's own.

        A processor has no kernels for float16: there a quantized checkpoint, of which that is but a small part, is
        computed in bfloat16.
        """
        if dtype != "auto":
            return dtype
        return "bfloat16" if on_host and self.quantization is not None and self.dtype == "float16" else self.dtype

    @property
    def sliding_window(self) -> int | None:
        """The window that every layer has, in tokens; None when at least one layer sees everything."""
        return None if None in self.windows else max(window for window in self.windows if window)

    @property
    def longest(self) -> int:
        """The longest sequence that may be asked for: with dynamic rope scaling longer than `max_positions`."""
        scaling = self.rope.scaling
        return int(scaling.factor * self.max_positions) if isinstance(scaling, DynamicScaling) else self.max_positions

    def for_length(self, length: int) -> ModelSpec:
        """The model as it serves sequences of up to `length` tokens: another one if its rotation depends on that."""
        if not isinstance(self.rope.scaling, DynamicScaling):
            return self
        return replace(self, rope=replace(self.rope, scaling=replace(self.rope.scaling, length=length)))

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
