"""A config's `quantization_config` as a Quantization. What cannot be run is refused here, before a weight is read.

One module for each method: `awq`, `gptq` and `compressed-tensors` write different fields for the same few facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import Fields
from octavo_engine.model.huggingface.quantization_methods import awq, compressed_tensors, gptq
from octavo_engine.model.values.quantization import Quantization

READERS: Mapping[str, Callable[[Fields], Quantization | None]] = MappingProxyType(
    {"awq": awq.read, "gptq": gptq.read, "compressed-tensors": compressed_tensors.read}
)


def read_quantization(config: Fields) -> Quantization | None:
    """How the checkpoint's weights are quantized; None where that is only said of its keys and values.

    Raises ModelUnsupported naming what is not supported, or CheckpointInvalid.
    """
    method = config.values.get("quant_method")
    if not isinstance(method, str) or method not in READERS:
        raise ModelUnsupported(
            f"the checkpoint is quantized by {str(method)[:40]!r}; supported are {', '.join(READERS)}, and GGUF files"
        )
    return READERS[method](config)


def has_kv_scales(config: Fields) -> bool:
    """Whether the checkpoint has scales for keys and values of 8 bits; raises ModelUnsupported for what is not read."""
    return config.values.get("quant_method") == "compressed-tensors" and compressed_tensors.has_kv_scales(config)
