"""From a path to a Decoder: the spec, a check of every tensor's name and shape, then the weights, in parallel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import torch

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.attention import AttentionKernels, CacheScales
from octavo_engine.kernels.choice import choose_linear, choose_pointwise
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.compute.layers import Kernels, LayersLoop
from octavo_engine.model.gguf.file import GgufFile
from octavo_engine.model.gguf.spec import spec_from_gguf
from octavo_engine.model.huggingface.config import spec_from_config
from octavo_engine.model.huggingface.safetensors_source import SafetensorsSource, check_tied_head
from octavo_engine.model.spec import find_checkpoint
from octavo_engine.model.tensors.kept import as_kept
from octavo_engine.model.tensors.kv_scales import names_in, read_scales
from octavo_engine.model.tensors.parameters import check_tensors, parameters_of
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.weights.build import TensorSource, build_decoder
from octavo_engine.model.weights.joined import Split
from octavo_engine.model.weights.lazy import LazyWeights, check_spare_biases

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_READERS = 8
Progress = Callable[[int, int], None]


def resolve_dtype(spec: ModelSpec, name: str, *, on_host: bool = True) -> torch.dtype:
    """The type of plain weights and cache that `--dtype` means."""
    wanted = spec.numbers(name, on_host=on_host)
    if wanted not in DTYPES:
        raise InvalidConfiguration(f"--dtype is {name!r}; choose one of auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def open_checkpoint(path: str) -> tuple[ModelSpec, TensorSource]:
    """The spec and the tensors of a checkpoint. Only headers are read, and a head that should not be there."""
    place = find_checkpoint(path)
    if place.is_dir():
        spec = spec_from_config(place)  # first: what cannot run is refused before any weight file is opened
        source = SafetensorsSource(place)
        if spec.tied:
            check_tied_head(source)
        return spec, source
    file = GgufFile.open(place)
    spec = spec_from_gguf(file)
    from octavo_engine.model.gguf.source import GgufSource  # noqa: PLC0415 (a fifth of a second, for others nothing)

    return spec, GgufSource(file, spec)


def load_model(
    path: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kernels: AttentionKernels,
    loop: LayersLoop = "auto",
    max_model_len: int | None = None,
    split: Split | None = None,
    on_progress: Progress | None = None,
) -> Decoder:
    """Load a checkpoint. `on_progress(bytes read, bytes in all)` is called from this thread, as tensors arrive.

    loop: how the layers are run; all ways give the same numbers.
    max_model_len: the longest sequence that will be computed, in tokens; None: the model's own.
    split: what of it this rank has, where several share it; None: the whole.

    Raises ModelNotFound, ModelUnsupported or CheckpointInvalid, the last naming the tensor or the file.
    """
    spec, source = open_checkpoint(path)
    linear = choose_linear(dtype, device)
    spec = as_kept(spec, few_bits=linear.multiplies_codes).for_length(max_model_len or spec.max_positions)
    parameters = parameters_of(spec)
    check_tensors(spec, parameters, source.shapes)
    check_spare_biases(parameters, source)
    if split is not None:
        shard = replace(split.shard, whole=spec)
        spec, parameters = shard.spec, shard.parameters
    scales = cache_scales(spec, source)
    weights = LazyWeights(parameters, source, dtype, device)
    chosen = Kernels(kernels, linear, choose_pointwise(dtype, device, kernels), loop)
    total = sum(map(weights.stored_bytes, (part for parts in parameters.values() for part in parts)))

    def report() -> None:
        if on_progress is not None:
            on_progress(weights.read_bytes, total)

    with _readers() as pool:
        decoder = build_decoder(spec, weights, chosen, pool, report, split=split, scales=scales)
    report()
    _give_back()
    return decoder


def cache_scales(spec: ModelSpec, source: TensorSource) -> tuple[CacheScales, ...]:
    """What the checkpoint has for a cache of 8 bits, by layer; none if it has nothing. Raises CheckpointInvalid."""
    if not spec.kv_scales:
        return ()
    names = names_in(source.shapes, spec.layers)
    found = read_scales(names, lambda name: float(source.read(name, torch.float32).item()))
    return tuple(CacheScales(*pair) for pair in found)


@contextmanager
def _readers() -> Iterator[ThreadPoolExecutor]:
    """Threads that read, dequantize and pack side by side, all of which release the GIL.

    Each works alone: the teams that torch would give to every one of them would spin for the same few processors.
    """
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(min(MAX_READERS, threads), "weights", initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)  # the first failure is the answer; do not read the rest
        torch.set_num_threads(threads)  # the setting is the process's, not the thread's


def _give_back() -> None:
    """Give freed memory back to the system. What reading has left in the allocator would be resident for ever."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others keep less
    if trim is not None:
        trim(0)
