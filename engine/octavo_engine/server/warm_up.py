"""One real token before the first request: what compiles or allocates lazily does so now. It is not counted."""

from __future__ import annotations

import time

from octavo_engine.async_engine import AsyncEngine
from octavo_engine.batch import Batch
from octavo_engine.engine import Recorder
from octavo_engine.request import Request, SamplingParams


class Uncounted:
    """Passes what the engine reports on to the metrics once `counting` is true."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.counting = False

    def step(self, batch: Batch, seconds: float) -> None:
        """A batch was computed."""
        if self.counting:
            self._recorder.step(batch, seconds)

    def token(self, request: Request, at: float) -> None:
        """A token was appended."""
        if self.counting:
            self._recorder.token(request, at)

    def finished(self, request: Request, at: float) -> None:
        """A request ended."""
        if self.counting:
            self._recorder.finished(request, at)


async def warm_up(engine: AsyncEngine) -> None:
    """Generate two tokens, so that a prefill and a decode have run; raises what the engine raises."""
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    async for _ in engine.submit(Request(id="warm-up", tokens=[0, 0], params=params, arrival=time.monotonic())):
        pass
