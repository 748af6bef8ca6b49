"""API keys as they are written down: one a line, bare or as JSON with a name and limits. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAX_KEYS = 1024  # each is compared with each request's
NAME_DIGITS = 8  # of a key's digest, which name a key without a name
NAMESPACE_DIGITS = 32

Most = Annotated[int, Field(ge=1, le=2**53)]


class KeysInvalid(ValueError):
    """What is written is not a list of keys. The message names the line, and nothing that stands on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What one key may take of one server; None: as much as there is."""

    max_concurrent_requests: int | None = None  # that wait or run
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers

    @property
    def any(self) -> bool:
        """True when there is one."""
        return self != NO_LIMITS


NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One that is accepted. The key itself is not kept."""

    digest: bytes = field(repr=False)
    name: str  # of who has it; several keys may have the same name, and then share its limits
    limits: KeyLimits = NO_LIMITS

    @property
    def namespace(self) -> str:
        """Whose cached prefixes are its own."""
        return self.digest.hex()[:NAMESPACE_DIGITS]


class Entry(BaseModel):
    """A line of JSON. A limit that is left out is the server's; null is none."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    key: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^\S+$")]
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = None
    max_concurrent_requests: Most | None = None
    requests_per_minute: Most | None = None
    tokens_per_minute: Most | None = None


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def bare_key(key: str, limits: KeyLimits) -> Key:
    """A key of which nothing else is said."""
    digest = digest_of(key)
    return Key(digest=digest, name=digest.hex()[:NAME_DIGITS], limits=limits)


def parse_keys(text: str, defaults: KeyLimits) -> tuple[Key, ...]:
    """The keys of a file. Empty lines and those that begin with # say nothing; a key twice is one.

    Raises KeysInvalid: a line that cannot be read, too many, or two that contradict each other.
    """
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    keys = list(_of_lines(((number, line) for number, line in lines if line and not line.startswith("#")), defaults))
    if len(keys) > MAX_KEYS:
        raise KeysInvalid(f"more than {MAX_KEYS} keys")
    return tuple(keys)


def _of_lines(lines: Iterable[tuple[int, str]], defaults: KeyLimits) -> Iterator[Key]:
    by_digest: dict[bytes, Key] = {}
    limits: dict[str, KeyLimits] = {}
    for number, line in lines:
        key = _of_json(number, line, defaults) if line.startswith("{") else bare_key(line, defaults)
        if by_digest.setdefault(key.digest, key) != key:
            raise KeysInvalid(f"line {number}: a line before has the same key, with another name or other limits")
        if limits.setdefault(key.name, key.limits) != key.limits:
            raise KeysInvalid(f"line {number}: a line before has the same name, with other limits")
    yield from by_digest.values()


def _of_json(number: int, line: str, defaults: KeyLimits) -> Key:
    try:
        entry = Entry.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"] if step in Entry.model_fields)
        # Of a field with an unknown name not even that is told: it may be a key in the wrong place.
        message = f"{where}: {first['msg']}" if where else "it is no JSON object of key, name and limits"
        raise KeysInvalid(f"line {number}: {message}") from None
    said = {name: getattr(entry, name) for name in KeyLimits.__dataclass_fields__ if name in entry.model_fields_set}
    given = {name: said.get(name, getattr(defaults, name)) for name in KeyLimits.__dataclass_fields__}
    bare = bare_key(entry.key, KeyLimits(**given))
    return bare if entry.name is None else Key(digest=bare.digest, name=entry.name, limits=bare.limits)
