"""What of a checkpoint stays in few bits in memory. No torch."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.values.quantization import GGUF

DTYPES = ("bfloat16", "float32")  # of models whose products a processor computes from codes


def as_kept(spec: ModelSpec, *, few_bits: bool) -> ModelSpec:
    """The spec of what will be in memory: GGUF's weights are expanded where no kernel multiplies their codes.

    Checkpoints of other methods stay as they are: a device that has room for their codes may have none for the weights.

    Args:
        few_bits: whether there are such kernels.
    """
    if few_bits or spec.quantization is None or spec.quantization.method != GGUF:
        return spec
    return replace(spec, quantization=None)


def keeps_few_bits(dtype: str, *, on_host: bool) -> bool:
    """Whether the kernels for a processor or an accelerator multiply GGUF's codes, in a model of that type."""
    return on_host and dtype in DTYPES
