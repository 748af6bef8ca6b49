"""One load through the real engine, in one of three ways, watched step by step."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from octavo_engine.assembly import assemble
from octavo_engine.batch import Batch
from octavo_engine.config import EngineConfig
from octavo_engine.engine import Engine
from octavo_engine.model.spec import read_spec
from octavo_engine.request import Request, SamplingParams
from octavo_engine.tokenizer import load_tokenizer

BLOCK = 16
LONGEST = 2_048  # tokens that a request may have: what must be reserved for it when nobody knows how many it will have
POOL_TOKENS = 16_384
RESERVED_SLOTS = POOL_TOKENS // LONGEST


@dataclass(frozen=True, slots=True)
class Way:
    """How the pool is used."""

    name: str
    slots: int  # requests that may run at once
    static: bool  # the next batch begins when the last request of this one has ended
    reserves: bool  # each running request holds room for the longest


WAYS = (
    Way("static batches, reserved", RESERVED_SLOTS, static=True, reserves=True),
    Way("continuous batching, reserved", RESERVED_SLOTS, static=False, reserves=True),
    Way("continuous batching, paged", 64, static=False, reserves=False),
)


@dataclass(frozen=True, slots=True)
class Wish:
    """A request as its client knows it. The server learns `output_tokens` only when they are there."""

    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What was there after a step. `reserved` and `paged` are token slots taken from the pool."""

    seconds: float  # since the first request
    running: int
    tokens: int  # whose keys and values are held
    paged: int
    reserved: int


@dataclass(slots=True)
class Watched:
    """One way, from the first request to the last token."""

    way: Way
    moments: list[Moment] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # until a request's last token, from the common start
    output_tokens: int = 0
    processor_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Until the last token of all."""
        return self.moments[-1].seconds

    @property
    def tokens_per_second(self) -> float:
        """Generated, over the whole time."""
        return self.output_tokens / self.seconds

    @property
    def waste(self) -> float:
        """Share of the taken slots that hold no token, over all steps: reserved or paged, as the way has it."""
        taken = sum(moment.reserved if self.way.reserves else moment.paged for moment in self.moments)
        return 1 - sum(moment.tokens for moment in self.moments) / taken

    @property
    def most_running(self) -> int:
        """Requests that ran at once, at most."""
        return max(moment.running for moment in self.moments)


def wishes(count: int, seed: int = 1) -> list[Wish]:
    """Prompts of 32 to 256 tokens; answers as chats have them: most are short, few are long (log-normal, 8 to 640)."""
    draw = random.Random(seed)  # nothing secret
    found = []
    for _ in range(count):
        prompt = tuple(draw.randrange(1_000, 40_000) for _ in range(draw.randint(32, 256)))
        found.append(Wish(prompt, min(640, max(8, round(draw.lognormvariate(4.2, 0.9))))))
    return found


def serve(model: Path, way: Way, load: Sequence[Wish], threads: int) -> Watched:
    """Run the load, all of which arrives at once."""
    engine, watched = _engine(model, way, threads), Watched(way)
    waiting, ended = deque(_requests(load)), 0
    began, processor = time.monotonic(), time.process_time()
    while waiting or engine.has_work:
        if not (way.static and engine.has_work):
            for _ in range(way.slots if way.static else len(waiting)):
                if waiting:
                    engine.add(waiting.popleft())
        outputs = engine.step()
        now = time.monotonic() - began
        finished = sum(output.delta.finish_reason is not None for output in outputs)
        watched.waits += [now] * finished
        watched.output_tokens += len(outputs)
        ended += finished
        watched.moments.append(_moment(engine, now))
    watched.processor_seconds = time.process_time() - processor
    assert ended == len(load) and watched.output_tokens == sum(wish.output_tokens for wish in load)  # noqa: PT018
    return watched


def _moment(engine: Engine, now: float) -> Moment:
    stats = engine.snapshot
    paged = stats.used_blocks * stats.block_size
    return Moment(now, stats.running, paged - stats.unused_slots, paged, stats.running * LONGEST)


def _requests(load: Sequence[Wish]) -> Iterator[Request]:
    for number, wish in enumerate(load):
        params = SamplingParams(temperature=0.0, max_tokens=wish.output_tokens, ignore_eos=True)
        yield Request(id=str(number), tokens=list(wish.prompt), params=params, arrival=time.monotonic())


def _engine(model: Path, way: Way, threads: int) -> Engine:
    config = EngineConfig(
        model=str(model),
        dtype="bfloat16",
        device="cpu",
        block_size=BLOCK,
        max_model_len=LONGEST,
        max_num_seqs=way.slots,
        max_num_batched_tokens=512,
        kv_cache_memory_bytes=pool_bytes(model),
        enable_prefix_caching=False,  # nothing is shared here; what it gains is another benchmark
        threads=threads,
        num_speculative_tokens=0,  # a step is to give one token of each
        max_step_seconds=3600.0,  # and to begin with all prompts that its tokens allow, however slow the machine
    )
    return assemble(config, load_tokenizer(str(model)), Unrecorded()).engine


def pool_bytes(model: Path) -> int:
    """Bytes of the pool."""
    spec = read_spec(str(model))
    return POOL_TOKENS * 2 * spec.layers * spec.kv_size * 2


class Unrecorded:
    """The engine's metrics, for nobody."""

    def step(self, batch: Batch, seconds: float) -> None:
        """A batch was computed."""

    def token(self, request: Request, at: float) -> None:
        """A token was appended."""

    def finished(self, request: Request, at: float) -> None:
        """A request ended."""
