"""The real scheduler, pacer, engine and metrics in simulated time: what is said of a queue, and how long it lasts.

A step takes what its kind takes on a processor: reading the weights, or multiplying prompts where that takes longer,
and a little for each decode.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from known_models import SMOLLM2_135M
from no_text import NoText
from octavo_engine.batch import Batch, Known
from octavo_engine.engine import Engine
from octavo_engine.metrics import Metrics
from octavo_engine.model.tensors.costs import cost_of
from octavo_engine.request import EventKind, Request, Sampled, SamplingParams
from octavo_engine.roofline import Machine
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.pace import Pacer
from octavo_engine.scheduling.scheduler import Scheduler

EOS = 0
MACHINE = Machine(name="two cores", bandwidth=48e9, flops=600e9)
BASE, DECODE, TOKEN = 0.012, 0.0015, 0.0005
"""Seconds: any step, each decode in it, each prompt token if they are so many that this is more than the first."""


@dataclass(frozen=True)
class Kind:
    """A kind of request: so many tokens in and out; `most`: its limit, where it ends by itself before."""

    prompt: int
    answer: int
    most: int = 0


@dataclass(frozen=True)
class Judged:
    """What was said when a request came, and what it waited for its first token, in seconds."""

    said: float
    waited: float


class SimulatedEngine:
    """An engine that has just started; `now` moves with its steps."""

    def __init__(self, *, seats: int = 8, blocks: int = 4000, step_tokens: int = 512) -> None:
        self.now, self._came = 0.0, 0
        self._kinds: dict[str, Kind] = {}
        self.scheduler = Scheduler(KVCache(blocks, 16), max_num_batched_tokens=step_tokens, max_num_seqs=seats)
        self.metrics = Metrics(
            CollectorRegistry(), model_name="m", stats=self.scheduler.stats, clock=lambda: self.now
        )  # fmt: skip
        self.metrics.know(cost_of(SMOLLM2_135M, 2), MACHINE)
        self.engine = Engine(
            scheduler=self.scheduler,
            runner=self,
            metrics=self.metrics,
            detokenizer=lambda request: NoText(),
            eos_ids=frozenset({EOS}),
            max_model_len=32_768,
            pacer=Pacer(2.0),
            clock=lambda: self.now,
        )

    def launch(self, batch: Batch) -> Known:
        """Compute nothing, and take the time for it."""
        prompt = sum(piece.count for piece in batch.slices if piece.start < piece.request.num_prompt)
        decodes = sum(piece.start >= piece.request.num_prompt for piece in batch.slices)
        self.now += max(BASE, TOKEN * prompt) + DECODE * decodes
        return Known([self._sample(piece.request) for piece in batch.sampling])

    def _sample(self, request: Request) -> Sampled:
        kind = self._kinds[request.id]
        return Sampled(EOS if kind.most and request.num_output + 1 >= kind.answer else 1)

    def said(self) -> float:
        """The estimate now, in seconds."""
        return self.metrics.estimated_queue_seconds(self.scheduler.stats())

    def come(self, kind: Kind) -> Request:
        """One more request, whose prompt begins like no other."""
        self._came += 1
        tokens = [self._came + EOS + 1] * kind.prompt
        params = SamplingParams(max_tokens=kind.most or kind.answer, ignore_eos=not kind.most)
        made = Request(id=str(self._came), tokens=tokens, params=params, arrival=self.now)
        self._kinds[made.id] = kind
        self.engine.add(made)
        return made

    def serve(self, kind: Kind, clients: int, seconds: float) -> None:
        """So many clients, each of which asks again when it has its answer."""
        until, live = self.now + seconds, [self.come(kind) for _ in range(clients)]
        while self.now < until:
            self.engine.step()
            live = [made if made.finish_reason is None else self.come(kind) for made in live]

    def rest(self, seconds: float) -> None:
        """Finish what there is, and then nothing."""
        while self.engine.has_work:
            self.engine.step()
        self.now += seconds

    def burst(self, kind: Kind, number: int) -> list[Judged]:
        """So many come at once; what is said as each comes, and how long it then waits."""
        came = [(self.come(kind), self.said()) for _ in range(number)]
        while any(made.token_at is None for made, _ in came):
            self.engine.step()
        return [Judged(said, _first_token(made) - made.arrival) for made, said in came]


def _first_token(request: Request) -> float:
    return next(event.at for event in request.events if event.what is EventKind.FIRST_TOKEN)
