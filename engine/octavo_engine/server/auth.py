"""API keys: who may come in, and whose prefixes are whose."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from octavo_engine.server.key_file import NO_LIMITS, Key, KeyLimits, KeysInvalid, bare_key, digest_of, parse_keys
from octavo_engine.server.watched_files import Stamp, stamp

log = logging.getLogger(__name__)

RELOAD_SECONDS = 1.0  # how long a key file may have changed before that is seen


class KeyRing:
    """The accepted keys, kept as digests. The file is read again when it changes; while it is gone or wrong, its keys
    stay."""

    def __init__(
        self,
        keys: Iterable[str],
        path: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        limits: KeyLimits = NO_LIMITS,
        on_reload: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`limits` are those of keys of which nothing else is said; `on_reload` is told whether a changed file was
        taken.

        Raises OSError or ValueError when the file cannot be read the first time.
        """
        self._limits = limits
        self._fixed = tuple({key.digest: key for key in (bare_key(key, limits) for key in keys)}.values())
        self._path = None if path is None else Path(path)
        self._clock = clock
        self._on_reload = on_reload
        self._from_file: tuple[Key, ...] = ()
        self._seen: Stamp | None = None
        self._checked = clock()
        if self._path is not None:
            self._seen = stamp(self._path)
            self._read(self._path)

    @property
    def required(self) -> bool:
        """True when a key is needed, even if the file has become empty."""
        return bool(self._fixed) or self._path is not None

    def identify(self, authorization: str) -> Key | None:
        """The bearer's key, or None for one that is not accepted. Takes as long for any key.

        What the file says of a key holds, also where a flag names the same.
        """
        self._look()
        scheme, _, key = authorization.partition(" ")
        digest = digest_of(key.strip())
        matches = [known for known in (*self._from_file, *self._fixed) if hmac.compare_digest(digest, known.digest)]
        return matches[0] if matches and scheme.lower() == "bearer" else None

    def _look(self) -> None:
        """Read the file again if it is another; not with each request, and of a wrong one not again and again."""
        if self._path is None or self._clock() - self._checked < RELOAD_SECONDS:
            return
        self._checked = self._clock()
        seen, self._seen = self._seen, stamp(self._path)
        if seen == self._seen:
            return
        try:
            self._read(self._path)
        except (OSError, ValueError) as error:
            log.error("the API key file has changed and cannot be read: %s; the keys read before stay", why(error))
            self._on_reload(False)
        else:
            self._on_reload(True)

    def _read(self, path: Path) -> None:
        self._from_file = parse_keys(path.read_text("utf-8"), self._limits)
        log.info("API key file: %d keys", len(self._from_file))


def why(error: OSError | ValueError) -> str:
    """What is wrong with a file of keys, without a word of what is in it."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error) if isinstance(error, KeysInvalid) else "it is not UTF-8"
