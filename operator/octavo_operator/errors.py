"""The operator's errors. An error's type says what its receiver does next.

OctavoError
├── ConfigError          the process's own settings are wrong: print and exit 2
├── SpecError            the resource cannot be read: write it to status, wait for a new generation
├── LeaseLost            another operator may act now: exit at once
└── ApiError             the API server answered with an error
    ├── Retryable        try again later, with a growing delay
    │   ├── Throttled    ... and not before `retry_after` seconds
    │   └── Conflict     ... after a fresh look at the objects
    └── Refused          the same request will be refused again until a person changes something: show it
        └── Missing      the object or its kind is not there
"""

from __future__ import annotations


class OctavoError(Exception):
    """Root of everything the operator raises on purpose."""


class ConfigError(OctavoError):
    """The operator's own flags or environment cannot be used."""


class SpecError(OctavoError):
    """A stored InferenceService does not fit this version's models."""


class LeaseLost(OctavoError):
    """The Lease could not be renewed in time."""


class ApiError(OctavoError):
    """The API server refused or failed a request.

    Args:
        message: what was asked and what the server said, without any header (they may carry credentials).
        status: HTTP status, 0 when no answer came.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Retryable(ApiError):
    """No answer, a server fault, or contention."""


class Throttled(Retryable):
    """429 or 503 with the delay the server asked for, in seconds."""

    def __init__(self, message: str, status: int, retry_after: float) -> None:
        super().__init__(message, status)
        self.retry_after = retry_after


class Conflict(Retryable):
    """409: the object changed, or another manager owns a field."""


class Refused(ApiError):
    """400, 401, 403, 405, 422: repeating the request does not help."""


class Missing(Refused):
    """404."""
