"""`hack/tests NAME...` runs these stages of `plan`, side by side where they may, and says what became of them."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from node.config import Settings
from stages import telling
from stages.plan import STAGES
from stages.running import Run, undoing


def main(names: list[str]) -> int:
    """Exit status 0 when all have passed, 130 after an interruption."""
    if unknown := set(names) - STAGES.keys():
        sys.stderr.write(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}\n")
        return 2
    settings = Settings.from_environment()
    stages = [STAGES[name] if settings.kubeconfig is None else STAGES[name].elsewhere() for name in names]
    there = settings.state.exists()
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="octavo-stages-") as folder:
        run = Run(stages, Path(folder))
        try:
            with undoing(run, there=there):
                run.go()
        except KeyboardInterrupt:
            return 130
        finally:
            sys.stdout.write(f"\n{telling.summary(run.outcomes(), time.monotonic() - began)}\n")
    return 0 if run.passed else 1


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """As Ctrl-C: what runs is ended, and the node is taken down."""
    raise KeyboardInterrupt
