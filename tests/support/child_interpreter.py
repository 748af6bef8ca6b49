"""Runs a script of this folder with TRITON_INTERPRET=1, in a child: the choice is made when kernels are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from patience import PATIENCE_SECONDS

SUPPORT = Path(__file__).parent


def interpret(script: str, *arguments: str, limit: float = 2 * PATIENCE_SECONDS) -> Any:
    """What the script says, which is JSON; `limit` in seconds."""
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(SUPPORT / script), *arguments]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    return json.loads(answer.stdout)
