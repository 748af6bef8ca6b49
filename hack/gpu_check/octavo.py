"""Octavo under the check: the engine as it serves, without a server and without text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from gpu_check.loads import Load
from gpu_check.results import OCTAVO, Timing
from octavo_engine.assembly import build_scheduler, choose_backend
from octavo_engine.batch import Batch
from octavo_engine.config import EngineConfig
from octavo_engine.engine import Engine
from octavo_engine.kernels.choice import choose_attention, choose_linear, choose_pointwise
from octavo_engine.memory import CacheGeometry
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.compute.layers import Kernels
from octavo_engine.model.loading import load_model
from octavo_engine.model.tensors.parameters import Part, parameters_of
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.weights.build import build_decoder
from octavo_engine.request import Request, SamplingParams
from octavo_engine.runtime.cuda_recorder import CudaRecorder
from octavo_engine.runtime.graphs import GraphedSteps
from octavo_engine.runtime.kv_store import allocate
from octavo_engine.runtime.runner import Runner, Steps
from octavo_engine.runtime.sampler import Sampler

BLOCK, BUDGET, SPREAD = 16, 8192, 0.02
_ids = count()


class RandomWeights:
    """Parameters that nobody has trained: norms of ones, else small random numbers. See `model.weights.Weights`."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        self._parameters, self.dtype, self._device = parameters_of(spec), dtype, device

    def __getitem__(self, name: str, /) -> Tensor:
        """Made anew each time."""
        return self._made(self._parameters[name])

    def get(self, name: str, /) -> Tensor | None:
        """None for a bias that the model does not have."""
        return self[name] if name in self._parameters else None

    def matrix(self, name: str) -> Sequence[Tensor]:
        """A product's weight, in one piece."""
        return [self[name]]

    def _made(self, parts: Sequence[Part]) -> Tensor:
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        if len(shape) == 1:
            return torch.ones(shape, dtype=self.dtype, device=self._device)
        return torch.empty(shape, dtype=self.dtype, device=self._device).normal_(std=SPREAD)


class NoText:
    """A detokenizer for whoever looks at tokens only."""

    stopped = None

    def push(self, _token_id: int, /) -> str:
        """Nothing."""
        return ""

    def finish(self) -> str:
        """Nothing."""
        return ""


class NoMetrics:
    """Records nothing."""

    def step(self, batch: Batch, seconds: float) -> None:
        """Of a step."""

    def token(self, request: Request, at: float) -> None:
        """Of a token."""

    def finished(self, request: Request, at: float) -> None:
        """Of an end."""


def random_decoder(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> Decoder:
    """A decoder of that shape with the kernels that `octavo serve` would choose."""
    attention = choose_attention(choose_backend("auto", device))
    kernels = Kernels(attention, choose_linear(dtype, device), choose_pointwise(dtype, device, attention))
    with ThreadPoolExecutor(1) as pool:
        return build_decoder(spec, RandomWeights(spec, dtype, device), kernels, pool, lambda: None)


def loaded_decoder(checkpoint: Path, device: torch.device) -> Decoder:
    """One from a checkpoint, in float32."""
    kernels = choose_attention(choose_backend("auto", device))
    return load_model(str(checkpoint), dtype=torch.float32, device=device, kernels=kernels)


def recorded(steps: Steps, batch: int, length: int) -> GraphedSteps:
    """With decodes of that batch as a CUDA graph, for sequences of up to `length` tokens; the cache has a block more
    than requests get."""
    recorder = CudaRecorder(steps.caches[0][0].device)
    graphed = GraphedSteps.over(steps, (batch,), recorder, max_context=length)
    graphed.record(batch)
    return graphed


@dataclass(frozen=True)
class Timed:
    """Times a decoder with a load, as that contender."""

    decoder: Decoder
    contender: str = OCTAVO

    def __call__(self, load: Load) -> Timing:
        """In an engine made for that load."""
        running = Running(self.decoder, load, graphs=self.contender == OCTAVO)
        return Timing(self.contender, load, *running.seconds())


class Running:
    """An engine around a decoder, with a cache that holds one load. On CUDA its decodes are replayed from a graph,
    unless `graphs` is False; that is recorded before anything is measured."""

    def __init__(self, decoder: Decoder, load: Load, *, graphs: bool = True) -> None:
        spec, norm = decoder.spec, decoder.final_norm
        self._spare = 8 + 2 * -(-load.batch * load.prompt // BUDGET)  # tokens that come while others' prompts are read
        length = load.prompt + load.steps + self._spare
        geometry = CacheGeometry(spec.layers, spec.kv_heads, spec.head_dim, norm.element_size(), BLOCK)
        blocks = load.batch * -(-length // BLOCK) + 1
        caches = allocate(geometry, blocks + 1, dtype=norm.dtype, device=norm.device)
        config = EngineConfig(max_num_batched_tokens=BUDGET, max_num_seqs=load.batch, enable_prefix_caching=False)
        steps: Steps | GraphedSteps = Steps(decoder, caches, alone=True)
        if graphs and norm.device.type == "cuda":
            steps = recorded(Steps(decoder, caches, alone=True), load.batch, length)
        self._load, self._vocab = load, spec.vocab
        self._engine = Engine(
            scheduler=build_scheduler(config, num_blocks=blocks),
            runner=Runner(steps, block_size=BLOCK, device=norm.device, sampler=Sampler(eos_ids=())),
            metrics=NoMetrics(),
            detokenizer=lambda _request: NoText(),
            eos_ids=frozenset(),
            max_model_len=length,
            overlap=True,
        )

    def seconds(self) -> tuple[float, float]:
        """Of the prompts until each has a token, and of steps of decodes alone."""
        requests = self._submit(self._load.steps + self._spare)
        waited = set(requests)
        began = time.perf_counter()
        while waited:  # for a token that is told: one that is only promised is not computed yet
            waited.difference_update(output.request for output in self._engine.step())
        first = time.perf_counter()
        tokens = sum(len(self._engine.step()) for _ in range(self._load.steps))
        end = time.perf_counter()
        assert tokens == self._load.steps * self._load.batch, "each step gives each request a token"
        for request in requests:
            self._engine.abort(request.id)
        return first - began, end - first

    def answers(self) -> list[list[int]]:
        """Greedy tokens of the load's prompts."""
        requests = self._submit(self._load.steps)
        while self._engine.has_work:
            self._engine.step()
        return [request.output_ids for request in requests]

    def _submit(self, tokens: int) -> list[Request]:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        requests = [
            Request(id=f"check-{next(_ids)}", tokens=list(prompt), params=params, arrival=0.0)
            for prompt in self._load.prompts(self._vocab)
        ]
        for request in requests:
            self._engine.check(request)
            self._engine.add(request)
        return requests
