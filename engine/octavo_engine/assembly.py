"""Builds a ready engine from a config: device, weights, cache, scheduler. The one place where those rooms meet."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from octavo_engine.config import EngineConfig
from octavo_engine.engine import Engine, Recorder
from octavo_engine.errors import InvalidConfiguration, ModelUnsupported
from octavo_engine.kernels.attention import Backend, choose
from octavo_engine.kernels.cpu import library
from octavo_engine.memory import CacheGeometry, device_cache_bytes, host_cache_bytes, plan_blocks
from octavo_engine.model.architecture import ModelSpec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.loading import load_model, resolve_dtype
from octavo_engine.model.spec import read_spec
from octavo_engine.request import Request
from octavo_engine.runtime import host
from octavo_engine.runtime.kv_store import allocate
from octavo_engine.runtime.runner import Runner
from octavo_engine.runtime.sampler import Sampler
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.scheduler import Scheduler
from octavo_engine.tokenizer import Detokenizer, Tokenizer

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
Phase = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Assembly:
    """A ready engine and the facts about it that others report."""

    engine: Engine
    spec: ModelSpec
    device: torch.device
    dtype: torch.dtype
    attention_backend: str
    max_model_len: int
    num_blocks: int
    cache_bytes: int
    weight_bytes: int


def assemble(
    config: EngineConfig,
    tokenizer: Tokenizer,
    metrics: Recorder,
    *,
    on_progress: Progress | None = None,
    on_phase: Phase = lambda _name, _seconds: None,
) -> Assembly:
    """Load the model and build everything behind `Engine.step`; raises StartupError with a remedy.

    `on_progress(bytes, total)` follows the weights, `on_phase(name, seconds)` reports each finished phase.
    """
    torch.set_num_threads(config.threads or host.cpu_limit())
    device = choose_device(config.device)
    spec = read_spec(config.model)
    if tokenizer.vocab_size > spec.vocab:
        raise ModelUnsupported(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model's logits only {spec.vocab}:"
            " they do not belong together"
        )
    dtype, backend = resolve_dtype(spec, config.dtype), choose_backend(config.attention_backend, device)
    max_model_len = config.length_for(spec.max_positions)
    with timed(on_phase, "weights"):
        kernels = choose(backend)
        decoder = load_model(config.model, dtype=dtype, device=device, kernels=kernels, on_progress=on_progress)
    with timed(on_phase, "kv_cache"):
        geometry = CacheGeometry(spec.layers, spec.kv_heads, spec.head_dim, dtype.itemsize, config.block_size)
        num_blocks = plan_blocks(
            geometry,
            budget=cache_budget(config, device, decoder),
            max_model_len=max_model_len,
            max_num_seqs=config.max_num_seqs,
            setting=_cache_setting(config, device),
        )
        caches = allocate(geometry, num_blocks, dtype=dtype, device=device)
    eos_ids = frozenset(spec.eos_ids) | frozenset(tokenizer.eos_ids)
    sampler = Sampler(eos_ids=sorted(eos_ids))
    runner = Runner(decoder, caches, block_size=config.block_size, device=device, sampler=sampler)
    engine = Engine(
        scheduler=build_scheduler(config, num_blocks),
        runner=runner,
        metrics=metrics,
        detokenizer=lambda request: detokenizer(tokenizer, request),
        eos_ids=eos_ids,
        max_model_len=max_model_len,
    )
    return Assembly(
        engine=engine,
        spec=spec,
        device=device,
        dtype=dtype,
        attention_backend=backend,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        cache_bytes=num_blocks * geometry.block_bytes,
        weight_bytes=decoder.parameter_bytes,
    )


def build_scheduler(config: EngineConfig, num_blocks: int) -> Scheduler:
    """The scheduler over its block accounts."""
    cache = KVCache(num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching)
    return Scheduler(
        cache,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        enable_chunked_prefill=config.enable_chunked_prefill,
    )


def detokenizer(tokenizer: Tokenizer, request: Request) -> Detokenizer:
    """The incremental text of one request."""
    params = request.params
    return Detokenizer(
        tokenizer,
        skip_special_tokens=params.skip_special_tokens,
        stop=params.stop,
        include_stop=params.include_stop_str_in_output,
    )


def choose_device(name: str) -> torch.device:
    """CUDA where there is one, else CPU, unless one is named."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InvalidConfiguration("--device is cuda, but there is no CUDA device here; use --device cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def choose_backend(name: str, device: torch.device) -> Backend:
    """The attention kernels for a device, unless some are named."""
    if name == "triton" and device.type != "cuda":
        raise InvalidConfiguration("--attention-backend is triton, which needs a CUDA device; use torch")
    if name == "cpu" and (device.type != "cpu" or library.load() is None):
        raise InvalidConfiguration("--attention-backend is cpu, which cannot run here (see the log); use auto or torch")
    match name:
        case "reference" | "torch" | "cpu" | "triton":
            return name
    if device.type == "cuda":
        return "triton"
    return "torch" if library.load() is None else "cpu"


def cache_budget(config: EngineConfig, device: torch.device, decoder: Decoder) -> int:
    """Bytes for the KV cache."""
    if device.type == "cpu":
        return host_cache_bytes(limit=host.memory_limit(), wanted=config.kv_cache_memory_bytes)
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    _, total = torch.cuda.mem_get_info(device)
    taken = torch.cuda.memory_reserved(device) + activation_bytes(config, decoder)
    return device_cache_bytes(total=total, utilization=config.gpu_memory_utilization, taken_by_us=taken)


def activation_bytes(config: EngineConfig, decoder: Decoder) -> int:
    """An upper bound of what one step needs beside weights and cache: a few widest rows a token, and the logits."""
    spec = decoder.spec
    row = 4 * spec.hidden + 3 * spec.intermediate + 2 * (spec.query_size + 2 * spec.kv_size)
    value = decoder.embedding.dtype.itemsize
    return config.max_num_batched_tokens * row * value + 3 * config.max_num_seqs * spec.vocab * 4


def _cache_setting(config: EngineConfig, device: torch.device) -> str:
    if config.kv_cache_memory_bytes is not None or device.type == "cpu":
        return "--kv-cache-memory-bytes"
    return "--gpu-memory-utilization"


@contextmanager
def timed(report: Phase, name: str) -> Iterator[None]:
    """Report how many seconds the block took."""
    began = time.monotonic()
    yield
    report(name, time.monotonic() - began)
