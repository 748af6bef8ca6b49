"""A whole engine around a loaded decoder, in one line, with every logit it sampled from kept for comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from no_text import NoText
from octavo_engine.batch import Batch
from octavo_engine.engine import Engine
from octavo_engine.memory import CacheGeometry
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.request import Request, SamplingParams
from octavo_engine.runtime.drawn import Draw
from octavo_engine.runtime.kv_store import allocate
from octavo_engine.runtime.runner import Runner, Steps
from octavo_engine.runtime.sampler import Sampler
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.policy import Policy
from octavo_engine.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
_ids = count()


class NoMetrics:
    """A recorder for tests that look at tokens only."""

    def step(self, batch: Batch, seconds: float) -> None: ...

    def token(self, request: Request, at: float) -> None: ...

    def finished(self, request: Request, at: float) -> None: ...


@dataclass
class RecordingSampler:
    """Samples as the real one does, and keeps the logits of each request's tokens by their place in its answer."""

    inner: Sampler
    logits: dict[str, dict[int, torch.Tensor]] = field(default_factory=dict)

    def sample(
        self, logits: torch.Tensor, requests: Sequence[Request], guesses: Sequence[Sequence[int]] | None = None
    ) -> Draw:
        rows: Counter[str] = Counter()  # of a request: each but the first follows a guess, and may be wanted again
        for row, request in zip(logits, requests, strict=True):
            self.logits.setdefault(request.id, {})[request.num_output + rows[request.id]] = row.clone()
            rows[request.id] += 1
        return self.inner.sample(logits, requests, guesses)


@dataclass
class Answered:
    """What a request got: its tokens, and the logits that each was sampled from."""

    request: Request
    tokens: list[int]
    logits: list[torch.Tensor]


def assert_same_bits(found: Sequence[Answered], wanted: Sequence[Answered]) -> None:
    """The same tokens, from the same logits."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.tokens == theirs.tokens
        assert torch.equal(torch.stack(ours.logits), torch.stack(theirs.logits))


class Harness:
    """An engine over `decoder`. `fill` poisons the cache, so that a slot read before it is written shows."""

    def __init__(self, decoder: Decoder, **overrides: Any) -> None:
        options = {"blocks": 512, "block_size": 16, "budget": 2048, "seqs": 64, "chunked": True, "caching": True}
        options |= overrides
        spec = decoder.spec
        cached = options.get("cached", decoder.final_norm.dtype)  # the type of keys and values
        geometry = CacheGeometry(spec.layers, spec.kv_heads, spec.head_dim, cached.itemsize, options["block_size"])
        device = decoder.final_norm.device
        spare = options.get("spare_blocks", 0)  # that no request gets
        caches = allocate(geometry, options["blocks"] + spare, dtype=cached, device=device)
        for pair in caches:
            for tensor in pair:
                tensor.fill_(float("nan"))
        self.sampler = RecordingSampler(Sampler(eos_ids=spec.eos_ids))
        cache = KVCache(options["blocks"], options["block_size"], enable_prefix_caching=options["caching"])
        self.scheduler = Scheduler(
            cache,
            max_num_batched_tokens=options["budget"],
            max_num_seqs=options["seqs"],
            enable_chunked_prefill=options["chunked"],
            policy=options.get("policy", Policy()),
            drafter=options.get("drafter"),
        )
        self.runner = Runner(
            options.get("wrap", lambda steps: steps)(Steps(decoder, caches, alone=options.get("tell") is None)),
            block_size=options["block_size"],
            device=device,
            sampler=self.sampler,  # type: ignore[arg-type]
            tell=options.get("tell"),
            spread=options.get("spread"),
        )
        self.engine = Engine(
            scheduler=self.scheduler,
            runner=self.runner,
            metrics=NoMetrics(),
            detokenizer=lambda request: NoText(),
            eos_ids=frozenset(spec.eos_ids),
            max_model_len=spec.max_positions,
            overlap=options.get("overlap", False),
            pacer=options.get("pacer"),
        )

    def submit(self, prompt: Sequence[int], params: SamplingParams = GREEDY, **fields: Any) -> Request:
        request = Request(id=f"h{next(_ids)}", tokens=list(prompt), params=params, arrival=0.0, **fields)
        self.engine.check(request)
        self.engine.add(request)
        return request

    def finish(self, requests: Sequence[Request], limit: int = 20_000) -> list[Answered]:
        """Step until all work is done."""
        for _ in range(limit):
            if not self.engine.has_work:
                break
            self.engine.step()
        assert not self.engine.has_work
        return [Answered(item, item.output_ids, self._logits_of(item)) for item in requests]

    def _logits_of(self, request: Request) -> list[torch.Tensor]:
        kept = self.sampler.logits[request.id]
        return [kept[place] for place in range(request.num_output)]

    def together(self, prompts: Sequence[Sequence[int]], params: SamplingParams = GREEDY) -> list[Answered]:
        """All prompts in one batch."""
        return self.finish([self.submit(prompt, params) for prompt in prompts])

    def alone(self, prompts: Sequence[Sequence[int]], params: SamplingParams = GREEDY) -> list[Answered]:
        """One prompt after the other."""
        return [answer for prompt in prompts for answer in self.finish([self.submit(prompt, params)])]
