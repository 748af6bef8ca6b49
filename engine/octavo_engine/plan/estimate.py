"""A model on a device: what fits, and the best that can be expected. Plain values, computed from plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo_engine.config import EngineConfig
from octavo_engine.errors import InsufficientMemory
from octavo_engine.memory import CachePlan, Needs, Room, plan_cache
from octavo_engine.model.tensors.costs import bytes_spared_by_four_bits, cached_width, cost_of, needs_of, width_of
from octavo_engine.model.tensors.kept import as_kept, keeps_few_bits
from octavo_engine.model.tensors.parameters import count_weights, parameters_of
from octavo_engine.model.tensors.sharding import heaviest
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.roofline import Machine, ModelCost, Rate, best_decode, best_prefill, turning_batch

LENGTHS = (128, 1024, 4096, 16384, 65536)  # tokens of prompts and contexts that are looked at, as far as they fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a plan is made for."""

    machine: Machine
    memory_bytes: int
    room: Room
    on_host: bool
    fp8_flops: float | None = None
    doubt: str | None = None  # why its figures may be wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One model, served with one set of flags on one device."""

    spec: ModelSpec
    config: EngineConfig
    target: Target
    context: int  # tokens of each sequence where decoding is looked at, no more than may be served
    dtype: str
    needs: Needs  # of one device; on a host, of all ranks together
    part: ModelSpec  # what the busiest device has of the model, which the others wait for
    cost: ModelCost  # of that part
    cache: CachePlan | None  # None where it does not fit
    refusal: str | None  # then why, and what would help

    @property
    def parameters(self) -> int:
        """Weights of the model, each once."""
        return count_weights(parameters_of(self.spec))

    @property
    def devices(self) -> int:
        """How many share the model; the ranks on a host are one."""
        return 1 if self.target.on_host else self.config.tensor_parallel_size

    @property
    def lengths(self) -> tuple[int, ...]:
        """Contexts and prompts worth a row: round ones, the chosen one, and the longest."""
        longest = self.needs.max_model_len
        return tuple(sorted({self.context, longest, *(length for length in LENGTHS if length < longest)}))

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches worth a row at the chosen context: powers of two, and as many sequences as fit."""
        most = 0 if self.cache is None else self.cache.sequences_of(self.context)
        return tuple(sorted({most, *(1 << power for power in range(most.bit_length()))})) if most else ()

    def decode(self, batch: int, context: int | None = None) -> Rate:
        """The best possible step of `batch` sequences."""
        return best_decode(self.cost, self.target.machine, batch=batch, context=context or self.context)

    def prefill(self, prompt: int) -> Rate:
        """The best possible time of a prompt alone, in this configuration's chunks."""
        budget = self.config.max_num_batched_tokens
        return best_prefill(self.cost, self.target.machine, prompt=prompt, budget=budget)

    def turning_batch(self, context: int) -> float | None:
        """The batch from which on decoding is bound by computing; None when it never is."""
        return turning_batch(self.cost, self.target.machine, context)


@dataclass(frozen=True, slots=True)
class FourBits:
    """What 4-bit weights would change."""

    spared_bytes: int
    blocks: int  # that the spared bytes hold
    single: Rate  # of one stream


def make_plan(spec: ModelSpec, config: EngineConfig, target: Target, *, context: int) -> Plan:
    """The plan; raises InvalidConfiguration where the flags do not suit the model. What does not fit is a plan, too."""
    dtype = spec.numbers(config.dtype, on_host=target.on_host)
    width = width_of(spec, config.dtype)
    spec = as_kept(spec, few_bits=keeps_few_bits(dtype, on_host=target.on_host))
    needs = needs_of(spec, config, width=width, on_host=target.on_host)
    part = spec if target.on_host else heaviest(spec, config.tensor_parallel_size).spec
    cache, refusal = None, config.refused_on_host if target.on_host else None
    try:
        cache = plan_cache(needs, target.room) if refusal is None else None
    except InsufficientMemory as error:
        refusal = str(error)
    return Plan(
        spec=spec,
        config=config,
        target=target,
        context=min(context, needs.max_model_len),
        dtype=dtype,
        needs=needs,
        part=part,
        cost=cost_of(part, width, cached=cached_width(config, width)),
        cache=cache,
        refusal=refusal,
    )


def with_four_bits(plan: Plan) -> FourBits:
    """The same with 4-bit weights of the layers' products: a comparison, whether or not this version runs them."""
    width = width_of(plan.spec, plan.config.dtype)
    spared = bytes_spared_by_four_bits(plan.part, width)
    cost = cost_of(plan.part, width, cached=cached_width(plan.config, width), four_bits=True)
    single = best_decode(cost, plan.target.machine, batch=1, context=plan.context)
    return FourBits(spared, spared // plan.needs.geometry.block_bytes, single)


def curve(plan: Plan, context: int) -> Iterator[Rate]:
    """Decoding at `context` over every batch that a picture shows: to where it turns or what fits, and a bit beyond."""
    assert plan.cache is not None
    most = max(1, plan.cache.sequences_of(context))
    batch = 1.0
    while batch < most:
        yield plan.decode(int(batch), context)
        batch = max(batch + 1, batch * 1.1)
    yield plan.decode(most, context)
