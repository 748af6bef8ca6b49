"""One real token before the first request: what compiles or allocates lazily does so now. It is not counted."""

from __future__ import annotations

import time

from octavo_engine.async_engine import AsyncEngine
from octavo_engine.request import Request, SamplingParams


async def warm_up(engine: AsyncEngine) -> None:
    """Generate two tokens, so that a prefill and a decode have run; raises what the engine raises."""
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    async for _ in engine.submit(Request(id="warm-up", tokens=[0, 0], params=params, arrival=time.monotonic())):
        pass
