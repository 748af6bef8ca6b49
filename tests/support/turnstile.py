"""A gate of a scripted model that lets as many steps pass as a test grants, one after the other."""

from __future__ import annotations

import threading


class Turnstile:
    """In the place of a model's gate. `passed` counts the steps that it has let through."""

    def __init__(self) -> None:
        self._steps = threading.Semaphore(0)
        self._open = False
        self.passed = 0

    def grant(self, steps: int = 1) -> None:
        self._steps.release(steps)

    def set(self) -> None:
        """Let all pass from now on."""
        self._open = True
        self._steps.release(100)

    def wait(self, seconds: float) -> bool:
        """Called by the thread that steps."""
        passes = self._open or self._steps.acquire(timeout=seconds)
        self.passed += passes
        return passes
