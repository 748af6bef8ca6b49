"""transformers in a process of its own: `generate` with the load as one static batch, and its continuous batching.

Called directly, without a server: what Octavo pays for HTTP and streams, they do not.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from measurement import Answer, Load

ANSWER_SECONDS = 300
CACHE_BLOCKS, MAX_BATCH_TOKENS, MAX_REQUESTS = (
    64,
    2048,
    32,
)  # blocks of 256 tokens; as many requests as the largest load
Run = Callable[[Load, int], list[Answer]]


class Transformers:
    """A worker process that holds the model; a context manager. `prepare` makes the function that answers a load."""

    def __init__(self, name: str, prepare: Callable[[Path], Run], checkpoint: Path, threads: int) -> None:
        self.name = name
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_work, args=(theirs, prepare, checkpoint, threads), daemon=True)
        self._process.start()

    def __enter__(self) -> Self:
        self._receive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join(10)

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._process.pid or 0

    def run(self, load: Load, seed: int) -> list[Answer]:
        """All requests at once; raises RuntimeError when the worker fails or takes too long."""
        self._pipe.send((load, seed))
        answers: list[Answer] = self._receive()
        return answers

    def _receive(self) -> Any:
        if not self._pipe.poll(ANSWER_SECONDS):
            raise RuntimeError(f"{self.name} gave no answer in {ANSWER_SECONDS} s")
        result = self._pipe.recv()
        if isinstance(result, Exception):
            raise RuntimeError(f"{self.name}: {result}") from result
        return result


def static_batch(checkpoint: Path, dtype: str = "bfloat16") -> Run:
    """`generate`: the prompts have one length, so nothing is padded, which is the best case for it."""
    import torch  # noqa: PLC0415 (only in the worker)
    from transformers.generation import StoppingCriteria  # noqa: PLC0415

    model = _model(checkpoint, dtype)

    class StepTimes(StoppingCriteria):  # type: ignore[misc]
        """Notes the time after each token and stops nothing."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            self.times.append(time.perf_counter())
            return torch.zeros(len(input_ids), dtype=torch.bool)

    def run(load: Load, seed: int) -> list[Answer]:
        prompts, steps = torch.tensor(load.prompts(seed)), StepTimes()
        sent = time.perf_counter()
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=load.output_tokens,
            min_new_tokens=load.output_tokens,
            do_sample=False,
            stopping_criteria=[steps],
        )
        return [Answer(sent, steps.times[0], steps.times[-1], len(steps.times))] * load.streams

    return run


def continuous_batch(checkpoint: Path) -> Run:
    """`generate_batch`, with its own paged cache; times are those it records for each token."""
    from transformers import ContinuousBatchingConfig, GenerationConfig  # noqa: PLC0415 (only in the worker)

    model = _model(checkpoint)
    # As many tokens in a step as Octavo's default. Left alone, the cache takes most of the host's memory, and the batch
    # is sized for the first load that comes.
    limits = ContinuousBatchingConfig(
        num_blocks=CACHE_BLOCKS,
        max_batch_tokens=MAX_BATCH_TOKENS,
        max_requests_per_batch=MAX_REQUESTS,
        max_blocks_per_request=2,
    )

    def run(load: Load, seed: int) -> list[Answer]:
        # No token has the id -1: none ends an answer.
        config = GenerationConfig(max_new_tokens=load.output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        sent = time.perf_counter()
        # The manager stays, as a server's would: the cache is not allocated again for each load.
        results = model.generate_batch(
            load.prompts(seed),
            generation_config=config,
            continuous_batching_config=limits,
            record_timestamps=True,
            persistent_manager=True,
        )
        outputs = [output for output in results.values() if output.timestamps]
        return [Answer(sent, out.timestamps[0], out.timestamps[-1], len(out.generated_tokens)) for out in outputs]

    return run


def _model(checkpoint: Path, dtype: str = "bfloat16") -> Any:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
    model.generation_config.pad_token_id = 0
    return model


def _work(pipe: Connection, prepare: Callable[[Path], Run], checkpoint: Path, threads: int) -> None:
    import torch  # noqa: PLC0415 (only in the worker)
    from transformers.utils import logging  # noqa: PLC0415

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    try:
        run = prepare(checkpoint)
        pipe.send("ready")
        while True:
            load, seed = pipe.recv()
            pipe.send(run(load, seed))
    except Exception as error:
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
