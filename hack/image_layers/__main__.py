"""Writes the parts of requirements/engine.txt, or with `--check` says whether they are up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from image_layers.parts import parts

CHECKOUT = Path(__file__).parents[2]
SOURCE = "requirements/engine.txt"
# A build needs the room of its largest layer about four times, so none is much above a gigabyte and a half.
LAYERS = {
    "requirements/engine-cudnn.txt": r"nvidia-(cudnn|cusparselt|nccl|nvshmem)(-cu\d+)?",
    "requirements/engine-cuda.txt": r"nvidia-.*|cuda-.*",
    "requirements/engine-torch.txt": r"torch",
    "requirements/engine-triton.txt": r"triton",
}


def main() -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m image_layers", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a part is not up to date")
    check = parser.parse_args().check
    made = parts(SOURCE, (CHECKOUT / SOURCE).read_text("utf-8"), LAYERS)
    stale = {file: text for file, text in made.items() if _there(file) != text}
    for file, text in stale.items():
        if check:
            print(f"{file} is not up to date: run `make generate`", file=sys.stderr)
        else:
            (CHECKOUT / file).write_text(text, "utf-8")
            print(f"wrote {file}")
    return 1 if check and stale else 0


def _there(file: str) -> str:
    path = CHECKOUT / file
    return path.read_text("utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
