"""Whether a checkpoint can be quantized as asked. Looks at headers alone, so that hours are not spent before a no."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from octavo_engine.config import EngineConfig
from octavo_engine.errors import InvalidConfiguration, ModelUnsupported
from octavo_engine.model.huggingface.quantization_methods.facts import WHOLE_ROW
from octavo_engine.model.spec import find_checkpoint
from octavo_engine.model.tensors.parameters import parameters_of
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.preflight.checkpoint import Checkpoint, look_at_path
from octavo_engine.preflight.command import check
from octavo_engine.quantize.settings import QuantizeConfig

LAYERS = "model.layers."
WORD_OF_CODES = 32  # inputs and outputs come in so many: fewer would leave words of codes half empty
OUTPUTS = {"gptq": WORD_OF_CODES, "awq": 64}  # which the search for awq's clipping takes side by side
LEFT_BY_TOOLS = ("quantize_config.json", "quant_config.json")  # by which a library takes a checkpoint for quantized


def look(config: QuantizeConfig) -> Checkpoint:
    """The checkpoint, if it can become what `config` says; raises StartupError, naming what to do instead."""
    if "://" in config.model:
        raise InvalidConfiguration(
            f"{config.model} is an address: fetch it first (octavo fetch), then name its directory"
        )
    place = find_checkpoint(config.model)
    if place.is_file():
        raise ModelUnsupported(
            f"{place.name} is a GGUF file, whose weights are in few bits or tied to its own types: start from the"
            " safetensors that it was made of"
        )
    for name in LEFT_BY_TOOLS:
        if (place / name).exists():
            raise ModelUnsupported(f"the checkpoint holds {name}, as quantized ones do: start from the plain model")
    found = look_at_path(config.model)
    check(found, EngineConfig(model=config.model), memory_bytes=None)
    if found.spec.quantization is not None:
        raise ModelUnsupported(
            f"the checkpoint is quantized already ({found.spec.quantization}): start from the plain model"
        )
    check_shapes(found.spec, config)
    return found


def weights_of(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, int]]]:
    """What is quantized, as name and `[out, in]`: the products of the layers. Pure."""
    for parts in parameters_of(spec).values():
        for part in parts:
            if part.module.startswith(LAYERS) and len(part.shape) == 2:
                outputs, inputs = part.shape
                yield part.module, (outputs, inputs)


def check_shapes(spec: ModelSpec, config: QuantizeConfig) -> None:
    """Raise unless every weight can be cut into words and groups; names the first that cannot. Pure."""
    for name, (outputs, inputs) in weights_of(spec):
        if outputs % OUTPUTS[config.method] or inputs % WORD_OF_CODES:
            raise ModelUnsupported(
                f"{name} has {outputs} outputs and {inputs} inputs; for {config.method} these must be multiples of"
                f" {OUTPUTS[config.method]} and {WORD_OF_CODES}"
            )
        if config.group_size != WHOLE_ROW and inputs % config.group_size:
            raise InvalidConfiguration(
                f"--group-size is {config.group_size}, but {name} has {inputs} inputs, which are no multiple of it;"
                f" use {_fitting(inputs)}"
            )


def _fitting(inputs: int) -> int:
    """The largest group that divides a multiple of WORD_OF_CODES."""
    return next(size for size in (128, 64, 32) if inputs % size == 0)


def same_place(model: str, out: str) -> bool:
    """Whether the result would lie in the model's directory, or the model in its."""
    source, target = Path(model).resolve(), Path(out).resolve()
    return source == target or source in target.parents or target in source.parents
