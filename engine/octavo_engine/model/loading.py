"""From a path to a Decoder: the spec, a check of every tensor's name and shape, then the weights, in parallel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

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
from octavo_engine.model.gguf_spec import spec_from_gguf
from octavo_engine.model.layers import Kernels, LayersLoop
from octavo_engine.model.parameters import Parameters, check_tensors, parameters_of
from octavo_engine.model.safetensors_source import SafetensorsSource, check_tied_head
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
    from octavo_engine.model.gguf_source import GgufSource  # noqa: PLC0415 (a fifth of a second, for others nothing)

    return spec, GgufSource(file, spec)


def load_model(
    path: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kernels: AttentionKernels,
    loop: LayersLoop = "auto",
    max_model_len: int | None = None,
    on_progress: Progress | None = None,
) -> Decoder:
    """Load a checkpoint. `on_progress(bytes read, bytes in all)` is called from this thread, as tensors arrive.

    loop: how the layers are run; all ways give the same numbers.
    max_model_len: the longest sequence that will be computed, in tokens; None: the model's own.

    Raises ModelNotFound, ModelUnsupported or CheckpointInvalid, the last naming the tensor or the file.
    """
    spec, source = open_checkpoint(path)
    spec = spec.for_length(max_model_len or spec.max_positions)
    parameters = parameters_of(spec)
    check_tensors(spec, parameters, source.shapes)
    weights = LazyWeights(parameters, source, dtype, device)
    chosen = Kernels(kernels, choose_linear(dtype, device), choose_pointwise(dtype, device), loop)
    total = sum(source.sizes[part.name] for parts in parameters.values() for part in parts)

    def report() -> None:
        if on_progress is not None:
            on_progress(weights.read_bytes, total)

    with _readers() as pool:
        decoder = build_decoder(spec, weights, chosen, pool, report)
    report()
    _give_back()
    return decoder


class LazyWeights(Mapping[str, Tensor]):
    """The parameters of a checkpoint. Each look-up reads one anew, and keeps nothing of it; from any thread."""

    def __init__(self, parameters: Parameters, source: TensorSource, dtype: torch.dtype, device: torch.device) -> None:
        self._parameters, self._source, self._dtype, self._device = parameters, source, dtype, device
        self._read: list[int] = []  # bytes of each tensor that was read; appending is atomic

    def __getitem__(self, name: str) -> Tensor:
        """Every part in its rows; raises KeyError, or CheckpointInvalid for a tensor that cannot be read."""
        parts = self._parameters[name]
        rows = [part.shape[0] for part in parts]
        weight = torch.empty((sum(rows), *parts[0].shape[1:]), dtype=self._dtype, device=self._device)
        for part, place in zip(parts, torch.split(weight, rows), strict=True):
            place.copy_(self._source.read(part.name, self._dtype))
            self._read.append(self._source.sizes[part.name])
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    @property
    def read_bytes(self) -> int:
        """Bytes of the checkpoint that were read so far."""
        return sum(self._read)


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
