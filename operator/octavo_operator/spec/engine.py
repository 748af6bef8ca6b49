"""The engine's flags as fields."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from octavo_operator import cel
from octavo_operator.spec.base import ATOMIC, BY_NAME, Line, Part


class EnvVar(Part):
    """An environment variable of the engine."""

    name: str = Field(
        min_length=1,
        max_length=253,
        pattern="^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the variable. LD_*, PYTHON*, OCTAVO_* and the cache locations are not yours to set.",
        json_schema_extra=cel.ENV_NAME,
    )
    value: str = Field(default="", max_length=4096, description="Value of the variable, taken literally.")


class Engine(Part):
    """The engine's flags under their own names. An absent field leaves the engine's default."""

    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$",
        description="Engine image. Default: the image the operator was installed with.",
    )
    max_model_len: int | None = Field(
        default=None, ge=2, le=10_000_000, description="Longest prompt plus answer, in tokens."
    )
    max_num_seqs: int | None = Field(
        default=None, ge=1, le=4096, description="Most requests that run together in one replica."
    )
    max_num_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Token budget of one engine step, decodes and prefill chunks together.",
    )
    gpu_memory_utilization: float | None = Field(
        default=None, ge=0.05, le=1, description="Share of the accelerator's memory the engine may use, 0.05 to 1."
    )
    kv_cache_memory_bytes: int | None = Field(
        default=None, ge=1_048_576, le=1 << 50, description="Size of the KV cache in bytes; on CPU this bounds it."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = Field(
        default=None, description="Number format of weights and activations."
    )
    block_size: int | None = Field(default=None, ge=1, le=256, description="Tokens in one KV cache block.")
    enable_prefix_caching: bool | None = Field(
        default=None, description="Reuse the KV cache of a prompt prefix that was computed before."
    )
    enable_chunked_prefill: bool | None = Field(
        default=None, description="Split long prompts over several steps, so that running answers keep their pace."
    )
    scheduling_policy: Literal["fcfs", "cache-aware", "priority"] | None = Field(
        default=None,
        description="Order in which waiting requests are admitted: as they came, the longest cached prefix first, or"
        " by the field priority of each request.",
    )
    prefix_cache_scope: Literal["key", "server"] | None = Field(
        default=None,
        description="Who shares cached prefixes: requests with the same API key, or all (one trusted tenant).",
    )
    extra_args: list[Line] | None = Field(
        default=None,
        max_length=64,
        description="Further flags of `octavo serve`, each as --flag or --flag=value, none that Octavo sets.",
        json_schema_extra=ATOMIC | cel.EXTRA_ARGS,
    )
    env: list[EnvVar] | None = Field(
        default=None,
        max_length=64,
        description="Environment variables of the engine container.",
        json_schema_extra=BY_NAME,
    )
