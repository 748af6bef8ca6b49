"""From a path to a Decoder: the spec, a check of every tensor's name and shape, then the weights, in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

import torch
from torch import Tensor

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.attention import AttentionKernels
from octavo_engine.kernels.linear import choose_linear
from octavo_engine.kernels.pointwise import choose_pointwise
from octavo_engine.model.architecture import ModelSpec
from octavo_engine.model.config_json import spec_from_config
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.gguf_file import GgufFile
from octavo_engine.model.gguf_source import GgufSource
from octavo_engine.model.gguf_spec import spec_from_gguf
from octavo_engine.model.parameters import Parameters, check_tensors, parameters_of
from octavo_engine.model.safetensors_source import SafetensorsSource
from octavo_engine.model.spec import find_checkpoint
from octavo_engine.model.weights import TensorSource, build_decoder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_READERS = 8
Progress = Callable[[int, int], None]


def resolve_dtype(spec: ModelSpec, name: str) -> torch.dtype:
    """The type of weights and cache: `auto` is the checkpoint's own."""
    wanted = spec.dtype if name == "auto" else name
    if wanted not in DTYPES:
        raise InvalidConfiguration(f"--dtype is {name!r}; choose one of auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def open_checkpoint(path: str) -> tuple[ModelSpec, TensorSource]:
    """The spec and the tensors of a checkpoint; only headers are read."""
    place = find_checkpoint(path)
    if place.is_dir():
        spec = spec_from_config(place)  # first: what cannot run is refused before any weight file is opened
        return spec, SafetensorsSource(place)
    file = GgufFile.open(place)
    spec = spec_from_gguf(file)
    return spec, GgufSource(file, spec)


def load_model(
    path: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kernels: AttentionKernels,
    on_progress: Progress | None = None,
) -> Decoder:
    """Load a checkpoint. `on_progress(bytes read, bytes in all)` is called from this thread, as tensors arrive.

    Raises ModelNotFound, ModelUnsupported or CheckpointInvalid, the last naming the tensor or the file.
    """
    spec, source = open_checkpoint(path)
    parameters = parameters_of(spec)
    check_tensors(spec, parameters, source.shapes)
    weights = _read_parameters(parameters, source, dtype, device, on_progress)
    return build_decoder(spec, weights, kernels, choose_linear(dtype, device), choose_pointwise(dtype, device))


def _read_parameters(
    parameters: Parameters, source: TensorSource, dtype: torch.dtype, device: torch.device, on_progress: Progress | None
) -> dict[str, Tensor]:
    """Read every part into its rows of its parameter, a few at a time: reading and dequantizing release the GIL."""
    names = [part.name for parts in parameters.values() for part in parts]
    done, total = 0, sum(source.sizes[name] for name in names)
    weights: dict[str, Tensor] = {}
    with ThreadPoolExecutor(min(MAX_READERS, len(os.sched_getaffinity(0))), "weights") as pool:
        pending: dict[Future[None], int] = {}
        for target, parts in parameters.items():
            rows = [part.shape[0] for part in parts]
            weights[target] = torch.empty((sum(rows), *parts[0].shape[1:]), dtype=dtype, device=device)
            for part, place in zip(parts, torch.split(weights[target], rows), strict=True):
                pending[pool.submit(_copy, source, part.name, place)] = source.sizes[part.name]
        try:
            for future in as_completed(pending):
                future.result()
                done += pending[future]
                if on_progress is not None:
                    on_progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # the first failure is the answer; do not read the rest
            raise
    return weights


def _copy(source: TensorSource, name: str, place: Tensor) -> None:
    place.copy_(source.read(name, place.dtype))
