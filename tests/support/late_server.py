"""`octavo serve` that loads nothing for as long as a file is there: its ports are open, and all else is still to come.

python late_server.py FILE [flags of octavo serve]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from octavo_engine import assembly, cli

LOOK_SECONDS = 0.01


def wait_before_loading(file: Path) -> None:
    """From now on, no model of this process is begun to be read while `file` is there."""
    assemble = assembly.assemble

    def late(*given: Any, **named: Any) -> assembly.Assembly:
        while file.exists():
            time.sleep(LOOK_SECONDS)
        return assemble(*given, **named)

    assembly.assemble = late


if __name__ == "__main__":
    wait_before_loading(Path(sys.argv[1]))
    sys.exit(cli.main(["serve", *sys.argv[2:]]))
