"""hack/gpu-check: without a GPU it says so, and all is well."""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gpu_check.loads import FULL_PLAN, TINY_PLAN, fitted

if TYPE_CHECKING:
    from gpu_check.results import Report

LAST_LOAD = 55.0  # seconds for what is begun before the time is over; then the process ends, with all stacks


def main() -> int:
    """0 if all is right, or there is nothing to look at; 1 if a kernel or a token is wrong."""
    parser = argparse.ArgumentParser(prog="hack/gpu-check", description="Look at this machine's GPU, in ten minutes.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only to try this program")
    parser.add_argument("--tiny", action="store_true", help="a model of a few thousand weights, in seconds")
    parser.add_argument("--minutes", type=float, default=9.0, help="when nothing more is begun (default: 9)")
    parser.add_argument("--json", type=Path, default=Path("build/gpu-check.json"), help="default: build/gpu-check.json")
    parser.add_argument("--picture", type=Path, default=Path("build/gpu-check.svg"), help=".svg or .png")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu-check: there is no CUDA device here, so nothing was checked")
        return 0
    from gpu_check.check import check  # noqa: PLC0415 (all that measures takes seconds to import)
    from gpu_check.picture import draw  # noqa: PLC0415
    from gpu_check.text import text  # noqa: PLC0415

    device = torch.device(options.device)
    plan = TINY_PLAN if options.tiny else FULL_PLAN
    if device.type == "cuda":
        plan = fitted(plan, torch.cuda.get_device_properties(device).total_memory)
    for path in (options.json, options.picture):
        path.parent.mkdir(parents=True, exist_ok=True)

    def keep(report: Report) -> None:
        options.json.write_text(json.dumps(report.document(), indent=2) + "\n", encoding="utf-8")

    faulthandler.dump_traceback_later(options.minutes * 60 + LAST_LOAD, exit=True)  # a device may hang for ever
    report = check(plan, device, options.minutes * 60, keep)
    faulthandler.cancel_dump_traceback_later()
    keep(report)
    draw(report, options.picture)
    print(text(report))
    print(f"written: {options.json}, {options.picture}")
    return 0 if report.right else 1


if __name__ == "__main__":
    sys.exit(main())
