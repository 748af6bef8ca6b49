"""How a process ends that serves nobody: by a signal before it does, or with a word on why it cannot go on."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from types import FrameType

log = logging.getLogger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")  # what a pod's status shows of a container that ended


def leave_on_signal(code: int = 0) -> None:
    """From now on SIGTERM and SIGINT end the process with `code` at once: nothing is accepted that could be lost.

    As process 1 of a container it would not even notice them by default.
    """

    def leave(number: int, _: FrameType | None) -> None:
        log.info("asked to stop by %s before serving", signal.Signals(number).name)
        os._exit(code)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


def line(reason: str, message: str) -> str:
    """`Reason: message` in one line, which people read and the operator takes apart."""
    return f"{reason}: {message}".replace("\n", " ")


def leave_word(reason: str, message: str) -> None:
    """Write why the process ends to where Kubernetes looks for it; nowhere outside a container."""
    leave_text(line(reason, message))


def leave_text(text: str) -> None:
    """Write a last line to where Kubernetes looks for it; nowhere outside a container."""
    if TERMINATION_LOG.exists():
        try:
            TERMINATION_LOG.write_text(text + "\n")
        except OSError:
            log.warning("%s cannot be written", TERMINATION_LOG)
