"""API keys: who may come in, and whose prefixes are whose."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

log = logging.getLogger(__name__)

RELOAD_SECONDS = 1.0  # how long a key file may have changed before that is seen


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class KeyRing:
    """The accepted keys, kept as digests. The file is read again when it changes; while it is gone, its keys stay."""

    def __init__(
        self, keys: Iterable[str], path: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises OSError when the file cannot be read the first time."""
        self._fixed = frozenset(map(_digest, keys))
        self._path = None if path is None else Path(path)
        self._clock = clock
        self._from_file: frozenset[bytes] = frozenset()
        self._seen: tuple[int, int, int] | None = None
        self._checked = clock()
        if self._path is not None:
            self._read(self._path)

    @property
    def required(self) -> bool:
        """True when a key is needed, even if the file has become empty."""
        return bool(self._fixed) or self._path is not None

    def identify(self, authorization: str) -> str | None:
        """The namespace of the bearer's key, or None for a key that is not accepted. Takes as long for any key."""
        self._reload()
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._fixed | self._from_file]
        return digest.hex()[:32] if any(matches) and scheme.lower() == "bearer" else None

    def _reload(self) -> None:
        if self._path is None or self._clock() - self._checked < RELOAD_SECONDS:
            return
        self._checked = self._clock()
        try:
            self._read(self._path)
        except OSError as error:
            log.warning("the API key file cannot be read (%s); the keys read before stay", error.strerror)

    def _read(self, path: Path) -> None:
        status = os.stat(path)
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen == self._seen:
            return
        lines = (line.strip() for line in path.read_text("utf-8").splitlines())
        self._from_file = frozenset(_digest(line) for line in lines if line and not line.startswith("#"))
        self._seen = seen
        log.info("API key file: %d keys", len(self._from_file))
