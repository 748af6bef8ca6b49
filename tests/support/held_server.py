"""`octavo serve` whose steps stand still for as long as a file is there: to all but the step, a device that hangs.

python held_server.py FILE [flags of octavo serve]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from octavo_engine import cli
from octavo_engine.batch import Batch
from octavo_engine.runtime.runner import Runner

LOOK_SECONDS = 0.01


def hold_steps(file: Path) -> None:
    """From now on, no batch of this process is begun while `file` is there."""
    begin = Runner.launch

    def launch(self: Runner, batch: Batch) -> Any:
        while file.exists():
            time.sleep(LOOK_SECONDS)
        return begin(self, batch)

    Runner.launch = launch  # type: ignore[method-assign]


if __name__ == "__main__":
    hold_steps(Path(sys.argv[1]))
    sys.exit(cli.main(["serve", *sys.argv[2:]]))
