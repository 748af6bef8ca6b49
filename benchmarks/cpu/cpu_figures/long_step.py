"""A step of 32 decodes at 1,024 tokens of context, by the engine itself: over HTTP, others' prompts lie in most steps.

In a process of its own, which lets its memory go before servers are started.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .results import Kept

STREAMS, CONTEXT, STEPS = 32, 1024, 32
SECONDS = 600  # for all of it: mostly prompts


def measure(model: Path, threads: int, identity: str, kept: Kept, say: Callable[[str], None]) -> float:
    """Seconds, kept as the other cells are; `identity` changes with the engine."""
    key = {"what": "long step", "streams": STREAMS, "context": CONTEXT, "threads": threads, "identity": identity}
    if kept.find(key) is None:
        say(f"a step of {STREAMS} streams at {CONTEXT:,} tokens, without HTTP")
    return float(kept.get_or(key, lambda: {"seconds": _of_a_process(model, threads)})["seconds"])


def _of_a_process(model: Path, threads: int) -> float:
    command = [sys.executable, "-m", "cpu_figures.long_step", str(model), str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Print it."""
    from step_profile import engine_with, middle_step  # noqa: PLC0415 (torch, which who only asks for a cell is spared)

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("threads", type=int)
    options = parser.parse_args()
    print(middle_step(engine_with(options.model, STREAMS, CONTEXT, STEPS, options.threads), STEPS))


if __name__ == "__main__":
    main()
