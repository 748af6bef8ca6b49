"""`octavo serve` on checkpoints that must be refused, one after another, while an audit hook watches.

    python -O refused_starts.py TERMINATION_LOG CHECKPOINT...

One process for all, since most of a start is importing torch; `-O`, so that nothing depends on an assertion. Writes a
line of JSON for each: the exit code, the last words, whether it ever served, and what it did that no start may do. A
checkpoint that is sound is looked at by preflight and loaded.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from octavo_engine import cli, termination
from octavo_engine.errors import StartupError
from octavo_engine.server.lifecycle import Lifecycle

CODE = (".py", ".pyc", ".so", ".bin", ".pt", ".pkl", ".pth", ".ckpt")
FORBIDDEN = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "pickle.find_class", "os.exec")
OWN_HOSTS = ("127.0.0.1",)  # to listen on


class Watch:
    """What has happened since `begin` that no start of a checkpoint may do. A hook cannot be taken out again."""

    def __init__(self) -> None:
        self.place, self.seen = "/nowhere", list[str]()
        sys.addaudithook(self._hear)

    def begin(self, place: str) -> None:
        self.place, self.seen = place, []

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN and str(arguments[0]) not in OWN_HOSTS:
            self.seen.append(f"{event} {arguments[:2]}")
        if event == "open" and str(arguments[0]).startswith(self.place) and str(arguments[0]).endswith(CODE):
            self.seen.append(f"open {arguments[0]}")
        if event == "import" and "tiny" in str(arguments[0]):
            self.seen.append(f"import {arguments[0]}")


def load(checkpoint: str) -> str:
    """Everything that reads a checkpoint, without serving it; returns why it cannot be."""
    import torch

    from octavo_engine.kernels.choice import choose_attention
    from octavo_engine.model.loading import load_model
    from octavo_engine.tokenizer import load_tokenizer

    try:
        load_tokenizer(checkpoint)
        load_model(checkpoint, dtype=torch.float32, device=torch.device("cpu"), kernels=choose_attention("torch"))
    except StartupError as error:
        return str(error)
    return ""


def main(log: str, *checkpoints: str) -> None:
    importlib.import_module("octavo_engine.server.serve")  # torch looks around when it is imported
    termination.TERMINATION_LOG, watch = Path(log), Watch()
    served: list[str] = []
    Lifecycle.serving = lambda self: served.append(self.model_name)  # type: ignore[method-assign]
    for checkpoint in checkpoints:
        Path(log).write_text("")
        watch.begin(checkpoint)
        if Path(checkpoint).name == "sound":
            code, problem = cli.main(["preflight", "--", checkpoint]), load(checkpoint)
        else:
            code, problem = cli.main(["serve", checkpoint, "--port=0", "--management-port=0", "--device=cpu"]), ""
        answer = {"code": code, "words": Path(log).read_text(), "problem": problem, "seen": watch.seen}
        sys.stdout.write(json.dumps(answer | {"served": list(served)}) + "\n")
        sys.stdout.flush()
    os._exit(0)  # the management ports of all these starts are still open


if __name__ == "__main__":
    main(*sys.argv[1:])
