"""Builds a ready engine from a config: device, weights, cache, scheduler. The one place where those rooms meet."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from octavo_engine.config import EngineConfig
from octavo_engine.engine import Engine, Recorder
from octavo_engine.errors import InvalidConfiguration, ModelUnsupported
from octavo_engine.kernels.attention import Backend
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library
from octavo_engine.kernels.stored import cache_type
from octavo_engine.memory import plan_cache
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.loading import load_model, resolve_dtype
from octavo_engine.model.spec import read_spec
from octavo_engine.model.tensors.costs import cached_width, cost_of, geometry_of, needs_of
from octavo_engine.model.tensors.kept import as_kept
from octavo_engine.model.tensors.sharding import heaviest
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.parallel.assignment import Assignment
from octavo_engine.parallel.leading import LeadingRunner, RecordedTogether
from octavo_engine.parallel.ranks import Loaded, Ranks, SharedProgress
from octavo_engine.request import Request
from octavo_engine.roofline import Machine, ModelCost
from octavo_engine.runtime import host
from octavo_engine.runtime.cuda_recorder import CudaRecorder
from octavo_engine.runtime.graph_capture import GraphCapture
from octavo_engine.runtime.graphs import GraphedSteps
from octavo_engine.runtime.host_pages import HostPages
from octavo_engine.runtime.identity import identity_of
from octavo_engine.runtime.kv_store import LayerCache, allocate
from octavo_engine.runtime.measurement import machine_of
from octavo_engine.runtime.room import as_loaded, room_of
from octavo_engine.runtime.runner import Runner, Steps
from octavo_engine.runtime.sampler import Sampler
from octavo_engine.scheduling.drafts import Drafter
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.pace import Least, Pacer
from octavo_engine.scheduling.policy import make_policy
from octavo_engine.scheduling.scheduler import Scheduler
from octavo_engine.tokenizer import Detokenizer, Tokenizer
from octavo_engine.turns import Turns

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
Phase = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Assembly:
    """A ready engine and the facts about it that others report."""

    engine: Engine
    spec: ModelSpec
    cost: ModelCost  # of the part of the model that the slowest rank has
    machine: Machine  # what that device can do at best
    device: torch.device
    dtype: torch.dtype
    identity: str  # of that device, among all of its node
    attention_backend: str
    max_model_len: int
    num_blocks: int
    cache_bytes: int
    weight_bytes: int  # of all ranks
    ranks: Ranks | None = None  # the others that share the model
    graphs: GraphedSteps | None = None  # this rank's
    errand: Callable[[bool], bool] | None = None  # of the step thread, once the server is ready: see AsyncEngine

    def circumstances(self) -> str:
        """What whoever looks for the cause of a step that does not end should know, in words to add to a complaint:
        the device and its rank, what it was given last, and which ranks the others wait for. Takes no lock."""
        device = f"; {self.identity}" if self.device.type != "cpu" else ""
        launched = f"; launched last: {self.graphs.latest}" if self.graphs is not None else ""
        if self.ranks is None:
            return device + launched
        return f"{device}; rank 0 of {self.ranks.team.size}{launched}{self.ranks.awaited()}"

    def show_stacks(self) -> None:
        """Have the other ranks write to the log where their threads are, whatever they hang in."""
        if self.ranks is not None:
            self.ranks.team.show_stacks()

    def close(self) -> None:
        """End the other ranks; the engine steps no more."""
        if self.graphs is not None:
            self.graphs.forget_all()
        if self.ranks is not None:
            self.ranks.close()


def assemble(
    config: EngineConfig,
    tokenizer: Tokenizer,
    metrics: Recorder,
    *,
    pages: HostPages | None = None,
    on_progress: Progress = lambda _done, _total: None,
    on_phase: Phase = lambda _name, _seconds: None,
) -> Assembly:
    """Load the model and build everything behind `Engine.step`; raises StartupError with a remedy.

    `on_progress(bytes, total)` follows the weights, `on_phase(name, seconds)` reports each finished phase. `pages` are
    memory for a cache on this host that somebody has begun to make, for a guess at its size.
    """
    torch.set_num_threads(config.threads or max(1, host.cpu_limit() // config.tensor_parallel_size))
    spec = read_spec(config.model)
    check_vocabulary(tokenizer, spec)
    with timed(on_phase, "kernels"):  # compiled, at the first start on a machine
        platform = choose_platform(config, spec)
    spec = as_kept(spec, few_bits=platform.multiplies_codes)
    device, dtype = platform.device, platform.dtype
    on_host, twice = device.type == "cpu", platform.keeps_embedding_twice
    needs = needs_of(spec, config, width=dtype.itemsize, tied_twice=twice, on_host=on_host)
    plan = plan_cache(needs, room_of(config, device))  # what cannot fit is refused before a weight is read
    if pages is not None:
        pages.expect(plan.cache_bytes if on_host else 0)
    tell_of(spec, config, needs.max_model_len)
    device_rates = None if on_host else measured(platform, on_phase)  # before weights and cache take its memory
    ranks = start_ranks(config, spec, platform, on_phase)
    with ended_on_error(ranks):
        with timed(on_phase, "weights"):
            decoder, others = load_parts(config, platform, needs.max_model_len, ranks, on_progress)
        check_invariance(config, decoder, platform)
        with timed(on_phase, "kv_cache"):
            if others is None or not on_host:  # what other ranks hold of a host would count as strangers'
                plan = plan_cache(as_loaded(needs, device), room_of(config, device))
            if others is not None and others.blocks is not None:
                plan = replace(plan, blocks=min(plan.blocks, others.blocks))
            caches = make_caches(config, platform, decoder.spec, num_blocks=plan.blocks, ranks=ranks, pages=pages)
    machine = device_rates or measured(platform, on_phase)  # a host's pages are all there by now
    cost = cost_of_a_rank(spec, config, dtype.itemsize)
    graphs = graphed_steps(config, platform, decoder, caches, needs.max_model_len)
    engine = build_engine(
        config,
        tokenizer,
        metrics,
        decoder,
        caches=caches,
        max_model_len=needs.max_model_len,
        least=Least(cost.decode([1]).least_seconds(machine), cost.token_flops / machine.flops),
        ranks=ranks,
        graphs=graphs,
    )
    return Assembly(
        engine=engine,
        spec=spec,
        cost=cost,
        machine=machine,
        device=device,
        dtype=dtype,
        identity=identity_of(device),
        attention_backend=platform.backend,
        max_model_len=needs.max_model_len,
        num_blocks=plan.blocks,
        cache_bytes=plan.cache_bytes,
        weight_bytes=decoder.parameter_bytes + (0 if others is None else others.weight_bytes),
        ranks=ranks,
        graphs=graphs,
        errand=None if graphs is None else capture_of(graphs, engine, on_phase, ranks),
    )


def cost_of_a_rank(spec: ModelSpec, config: EngineConfig, width: int) -> ModelCost:
    """Of the one that the others wait for."""
    return cost_of(heaviest(spec, config.tensor_parallel_size).spec, width, cached=cached_width(config, width))


def tell_of(spec: ModelSpec, config: EngineConfig, max_model_len: int) -> None:
    """Log what of the checkpoint is used in another way than one might think."""
    if max_model_len > spec.max_positions:
        log.info("dynamic rope scaling: all sequences are turned as one of %d tokens is", max_model_len)
    if spec.kv_scales and config.kv_cache_dtype == "auto":
        log.info("the checkpoint's scales for keys and values of 8 bits are used with --kv-cache-dtype fp8 alone")


def make_caches(
    config: EngineConfig,
    platform: Platform,
    spec: ModelSpec,
    *,
    num_blocks: int,
    ranks: Ranks | None,
    pages: HostPages | None,
) -> list[LayerCache]:
    """This rank's cache of so many blocks, and the others' theirs; raises InsufficientMemory."""
    geometry = geometry_of(spec, config, platform.dtype.itemsize)
    blocks = num_blocks + (1 if platform.graph_sizes_of(config) else 0)  # one is what pads graphs
    caches = allocate(geometry, blocks, dtype=platform.cached, device=platform.device, pages=pages)
    if ranks is not None:
        ranks.allocate(blocks)
    return caches


def measured(platform: Platform, on_phase: Phase) -> Machine:
    """What the device can do at best."""
    with timed(on_phase, "machine"):
        return machine_of(platform.device, platform.dtype)


def start_ranks(config: EngineConfig, spec: ModelSpec, platform: Platform, on_phase: Phase) -> Ranks | None:
    """The other ranks, if the model is to be shared: they have begun to load. Raises StartupError or EngineDead."""
    if config.tensor_parallel_size == 1:
        return None
    own = Assignment(
        rank=0,
        config=config,
        device=platform.device.type,
        dtype=str(platform.dtype).removeprefix("torch."),
        cached=str(platform.cached).removeprefix("torch."),
        backend=platform.backend,
        threads=torch.get_num_threads(),
        log_level=log.getEffectiveLevel(),
    )
    with timed(on_phase, "ranks"):
        return Ranks.start(own, spec)


def load_parts(
    config: EngineConfig, platform: Platform, max_model_len: int, ranks: Ranks | None, on_progress: Progress
) -> tuple[Decoder, Loaded | None]:
    """The model, or this rank's part of it, and what the others have loaded meanwhile; raises StartupError."""
    progress = SharedProgress(on_progress, None if ranks is None else ranks.team)
    decoder = load_model(
        config.model,
        dtype=platform.dtype,
        device=platform.device,
        kernels=choose_attention(platform.backend),
        max_model_len=max_model_len,
        split=None if ranks is None else ranks.split,
        on_progress=progress,
    )
    return decoder, None if ranks is None else ranks.loaded(progress)


@contextmanager
def ended_on_error(ranks: Ranks | None) -> Iterator[None]:
    """End the other ranks if the block fails."""
    try:
        yield
    except BaseException:
        if ranks is not None:
            ranks.close()
        raise


@dataclass(frozen=True, slots=True)
class Platform:
    """Where the model runs, in which type, with which attention."""

    device: torch.device
    dtype: torch.dtype
    backend: Backend
    cached: torch.dtype  # of keys and values

    def graph_sizes_of(self, config: EngineConfig) -> tuple[int, ...]:
        """Sequences of the decodes that are replayed as CUDA graphs, ascending; none where there is no CUDA."""
        return config.graph_sizes if self.device.type == "cuda" else ()

    @property
    def multiplies_codes(self) -> bool:
        """Weights in few bits need not be expanded."""
        return self.device.type == "cpu" and self.dtype in library.SUFFIXES and library.load() is not None

    @property
    def keeps_embedding_twice(self) -> bool:
        """A tied embedding is packed by oneDNN for the head, in a layout that nobody can look rows up in."""
        return self.device.type == "cpu" and self.dtype == torch.bfloat16 and library.load() is None


def choose_platform(config: EngineConfig, spec: ModelSpec) -> Platform:
    """What the config and this machine allow; raises InvalidConfiguration naming the flag."""
    device = choose_device(config.device)
    dtype = resolve_dtype(spec, config.dtype, on_host=device.type == "cpu")
    backend = choose_backend(config.attention_backend, device)
    if backend == "cpu" and dtype == torch.bfloat16 and config.block_size % 2:
        raise InvalidConfiguration(
            f"--block-size is {config.block_size}; it must be even here, because a CPU reads bfloat16 tokens in pairs"
        )
    return Platform(device, dtype, backend, cache_type(config, dtype, device, backend))


def check_vocabulary(tokenizer: Tokenizer, spec: ModelSpec) -> None:
    """Raise ModelUnsupported for a tokenizer of another model."""
    if tokenizer.vocab_size > spec.vocab:
        raise ModelUnsupported(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model's logits only {spec.vocab}:"
            " they do not belong together"
        )


def check_invariance(config: EngineConfig, decoder: Decoder, platform: Platform) -> None:
    """Raise InvalidConfiguration where exactness is wanted and these kernels do not give it."""
    if config.batch_invariant and not decoder.batch_invariant:
        raise InvalidConfiguration(
            f"--batch-invariant is not held by {platform.backend} attention in"
            f" {str(platform.dtype).removeprefix('torch.')} here: it needs the compiled kernels of a CPU"
            " (--attention-backend cpu), and --dtype bfloat16 or float32"
        )


def build_engine(
    config: EngineConfig,
    tokenizer: Tokenizer,
    metrics: Recorder,
    decoder: Decoder,
    *,
    caches: list[LayerCache],
    max_model_len: int,
    least: Least | None = None,
    ranks: Ranks | None = None,
    graphs: GraphedSteps | None = None,
) -> Engine:
    """The engine around a model and its cache, whose tensors have one entry a block, and one more for graphs.

    `least`: what a step takes at least, for its pace until steps were seen.
    """
    eos_ids = frozenset(decoder.spec.eos_ids) | frozenset(tokenizer.eos_ids)
    sampler = Sampler(eos_ids=sorted(eos_ids))
    device, turns = caches[0][0].device, Turns()
    runner = Runner(
        graphs or Steps(decoder, caches, alone=ranks is None),
        block_size=config.block_size,
        device=device,
        sampler=sampler,
        tell=None if ranks is None else ranks.team.tell,
        spread=None if ranks is None else ranks.peers.spread,
        turns=turns if computes_together(device, ranks) else None,
    )
    return Engine(
        scheduler=build_scheduler(
            config,
            num_blocks=len(caches[0][0]) - (0 if graphs is None else 1),
            drafter=make_drafter(config, decoder, max_model_len),
        ),
        runner=runner if ranks is None else LeadingRunner(runner, ranks.team),
        metrics=metrics,
        detokenizer=lambda request: detokenizer(tokenizer, request),
        eos_ids=eos_ids,
        max_model_len=max_model_len,
        pacer=Pacer(config.max_decode_slowdown, longest=config.max_step_seconds, least=least),
        overlap=config.async_scheduling and device.type != "cpu",
        turns=turns,
    )


def computes_together(device: torch.device, ranks: Ranks | None) -> bool:
    """A forward pass waits for others, asleep: for ranks, or for threads of this process."""
    return ranks is not None or (device.type == "cpu" and torch.get_num_threads() > 1)


def graphed_steps(
    config: EngineConfig, platform: Platform, decoder: Decoder, caches: list[LayerCache], max_model_len: int
) -> GraphedSteps | None:
    """The model with its decodes as CUDA graphs, of which none is recorded yet; None where they are not used."""
    if platform.device.type == "cuda" and config.why_eager:
        log.info("decodes are not replayed from CUDA graphs: %s", config.why_eager)
    if not (sizes := platform.graph_sizes_of(config)):
        return None
    steps = Steps(decoder, caches, alone=config.tensor_parallel_size == 1)
    return GraphedSteps.over(steps, sizes, CudaRecorder(platform.device), max_context=max_model_len)


def capture_of(graphs: GraphedSteps, engine: Engine, on_phase: Phase, ranks: Ranks | None = None) -> GraphCapture:
    """What records the graphs while the engine serves, on all ranks at the same place among their steps."""
    record = graphs.record if ranks is None else RecordedTogether(graphs, ranks.team)
    return GraphCapture(record, graphs.sizes, pulse=engine.pulse, on_phase=on_phase)


def make_drafter(config: EngineConfig, decoder: Decoder, max_model_len: int) -> Drafter | None:
    """Who guesses tokens; None where nobody does.

    A guess that comes true must leave the same bits as its token alone would have: only kernels for which a row is the
    same beside any others can promise that.
    """
    if not config.num_speculative_tokens or not decoder.batch_invariant or decoder.spec.vocab > sys.maxunicode:
        return None
    return Drafter(config.num_speculative_tokens, max_model_len)


def build_scheduler(config: EngineConfig, num_blocks: int, drafter: Drafter | None = None) -> Scheduler:
    """The scheduler over its block accounts."""
    cache = KVCache(num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching)
    return Scheduler(
        cache,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        enable_chunked_prefill=config.enable_chunked_prefill,
        policy=make_policy(config.scheduling_policy, config.scheduling_ageing_seconds),
        drafter=drafter,
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


@contextmanager
def timed(report: Phase, name: str) -> Iterator[None]:
    """Report how many seconds the block took."""
    began = time.monotonic()
    yield
    report(name, time.monotonic() - began)
