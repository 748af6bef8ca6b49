"""`octavo serve` around a model that fails on demand; started by `test_server_faults`.

    python faulty_server.py GGUF TERMINATION_LOG GATE [flags of octavo serve]

GGUF gives the tokenizer. No step ends before the file GATE exists. The first token of a prompt is the fault it asks
for.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from octavo_engine import termination
from octavo_engine.assembly import Assembly
from octavo_engine.batch import Batch, Known
from octavo_engine.config import EngineConfig, ServeSettings
from octavo_engine.engine import Recorder
from octavo_engine.model.spec import read_spec
from octavo_engine.model.tensors.costs import cost_of
from octavo_engine.prompt_reading import PromptReading
from octavo_engine.request import Sampled
from octavo_engine.roofline import Machine
from octavo_engine.server.serve import serve
from octavo_engine.tokenizer import Tokenizer
from scripted_server import WINDOW, ScriptedModel, engine_around

FOREVER = 3600
SLOW_SECONDS = 2.5  # of two requests in one step it is still less than a prompt may take
FREEZE, DEADLOCK, DIE, HANG_PYTHON, SLOW_PREFILL, FAIL, HANG_DEVICE = range(100, 107)
GPU = "NVIDIA H200 (cuda:0, GPU-00000000-0000-0000-0000-000000000001)"


def take_the_lock_for_good() -> None:
    """Another thread takes the engine's lock and never gives it back."""
    lock = threading.current_thread()._target.__self__._wake  # type: ignore[attr-defined] # this is the step thread
    taken = threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            time.sleep(FOREVER)

    threading.Thread(target=hold, daemon=True).start()
    taken.wait()


FAULTS: dict[int, Callable[[], object]] = {
    FREEZE: lambda: time.sleep(FOREVER),
    DEADLOCK: take_the_lock_for_good,
    DIE: lambda: sys.exit("killed"),
    HANG_PYTHON: lambda: ctypes.PyDLL(None).sleep(FOREVER),  # called through PyDLL, it lets no other thread run
}


def errand(nobody_waits: bool) -> bool:
    """What the step thread is to do once the server is ready."""
    logging.info("an errand, nobody waits: %s", nobody_waits)
    return False


class NeverEnds(NamedTuple):
    """A launched batch of which a device tells nothing, ever."""

    def wait(self) -> list[Sampled]:
        """As an event that a device never reaches."""
        threading.Event().wait()
        raise AssertionError("nobody sets it")

    def readings(self) -> list[PromptReading]:
        """Nothing is read."""
        return []


class FaultyModel:
    """Follows the script, and fails in the first decode of a request that asks for it, or in its first step (FAIL)."""

    def __init__(self, script: ScriptedModel, gate: Path) -> None:
        self._script, self._gate = script, gate

    def launch(self, batch: Batch) -> Known | NeverEnds:
        while not self._gate.exists():
            time.sleep(0.01)
        for request in (piece.request for piece in batch.slices):
            wanted = request.tokens[0]
            if wanted == SLOW_PREFILL and not request.num_output:
                time.sleep(SLOW_SECONDS)
            if wanted == FAIL:
                raise RuntimeError("a step that fails")
            if wanted == HANG_DEVICE and request.num_output:
                return NeverEnds()
            if wanted in FAULTS and request.num_output:
                FAULTS[wanted]()
        return self._script.launch(batch)


def main(gguf: str, termination_log: str, gate: str, *flags: str) -> int:
    logging.basicConfig(level="INFO", format="%(levelname)s %(message)s", stream=sys.stderr)
    termination.TERMINATION_LOG = Path(termination_log)
    termination.leave_on_signal()

    def build(config: EngineConfig, tokenizer: Tokenizer, recorder: Recorder, **_: Any) -> Assembly:
        model = FaultyModel(ScriptedModel.of(tokenizer), Path(gate))
        return Assembly(
            engine=engine_around(model, tokenizer, recorder, config),
            spec=read_spec(gguf),
            cost=cost_of(read_spec(gguf), 4),
            machine=Machine(name="none", bandwidth=1e9, flops=1e9),
            device=torch.device("cuda"),  # so the script says; nothing is put there
            dtype=torch.float32,
            identity=GPU,
            attention_backend="none",
            max_model_len=WINDOW,
            num_blocks=256,
            cache_bytes=0,
            weight_bytes=0,
            errand=errand,
        )

    return serve(ServeSettings.parse([gguf, *flags]), {}, build)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
