"""Every error the engine raises on purpose; the type says what the caller does next.

OctavoError
├── StartupError               the process cannot serve: print `reason: message`, exit non-zero
│   ├── InvalidConfiguration   a flag, a variable or a combination of them is wrong
│   ├── ModelNotFound          the path or the source holds no checkpoint
│   ├── ModelAccessDenied      the source refuses us: a token or credentials are missing or wrong
│   ├── ModelSourceUnreachable the source does not answer, or no longer: a later try may succeed
│   ├── ModelChanged           the source holds other files than the revision that was asked for
│   ├── ModelCorrupt           what arrived, twice, is not what the source announced
│   ├── DiskFull               the model does not fit where it is to be written
│   ├── ModelUnsupported       a checkpoint we read but cannot run (architecture, quantization, ...)
│   ├── CheckpointInvalid      a checkpoint that is damaged or contradicts its own config
│   └── InsufficientMemory     weights or the smallest useful cache do not fit
├── RequestError               the client's fault: answer 400 with `param`, nothing reached the engine
│   ├── PromptTooLong          the same, for a prompt that can never fit
│   └── FormTooComplex         the same, for a form of an answer that meets a limit, which may be in its midst
├── Overloaded                 answer 429 with Retry-After: a later try may succeed
│   └── RateLimited            the same for one API key, which has had its share
├── Draining                   answer 503 with Retry-After: another replica may take it
├── Interrupted                the same for an answer that was begun; a stream gets it as its last event
├── RequestFailed              answer 500 with the request's id: this request alone failed
└── EngineDead                 answer 503: the step loop has ended; the process exits and is restarted
"""

from __future__ import annotations


class OctavoError(Exception):
    """Base of all deliberate errors; `str(error)` is safe to show to a client: no path, secret or traceback."""


class StartupError(OctavoError):
    """The process cannot serve. `reason` is one CamelCase word that the operator copies into a condition."""

    @property
    def reason(self) -> str:
        """The machine-readable cause: the type's own name."""
        return type(self).__name__


class InvalidConfiguration(StartupError):
    """A flag, a variable, or a combination of them is wrong; the message names it and the remedy."""


class ModelNotFound(StartupError):
    """The given path or source holds no checkpoint that can be read; the message says what was looked for."""


class ModelAccessDenied(StartupError):
    """The source refuses us; the message names the field that gives a token or credentials."""


class ModelSourceUnreachable(StartupError):
    """The source does not answer, or stopped answering; trying again later may succeed."""


class ModelChanged(StartupError):
    """The source holds other files than the revision that was asked for, or changes while it is read."""


class ModelCorrupt(StartupError):
    """What arrived is not what the source announced: size or hash differ, and did again when fetched anew."""


class DiskFull(StartupError):
    """The destination is too small; the message says what is needed and what is there."""


class ModelUnsupported(StartupError):
    """The checkpoint is sound but cannot be run here; the message names what is supported."""


class CheckpointInvalid(StartupError):
    """The checkpoint is truncated, inconsistent or lacks a tensor; the message names the tensor or the file."""


class InsufficientMemory(StartupError):
    """It does not fit; the message names the setting and the value that would."""


class RequestError(OctavoError):
    """The client's request is wrong. `param` is the field as the client wrote it, e.g. `messages[0].role`."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class PromptTooLong(RequestError):
    """The prompt, or prompt plus `max_tokens`, exceeds what one sequence may hold."""


class FormTooComplex(RequestError):
    """The form of an answer takes more time, memory or work than it may: before there is an answer, or, unlike the
    other errors of its kind, on the way through it."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "form_too_complex") -> None:
        super().__init__(message, param=param, code=code)


class Overloaded(OctavoError):
    """The bounded queue is full, or no place became free in time. `reason` is a RejectReason, or QUEUE_DEADLINE;
    `retry_after` is in whole seconds, at least 1."""

    def __init__(self, message: str, *, reason: str, retry_after: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class RateLimited(Overloaded):
    """This API key has had its share of the server. `kind` is what there were too many of: `requests` or `tokens`."""

    def __init__(self, message: str, *, kind: str, reason: str, retry_after: int) -> None:
        super().__init__(message, reason=reason, retry_after=retry_after)
        self.kind = kind


class Draining(OctavoError):
    """The server is shutting down and takes no new work."""


class Interrupted(OctavoError):
    """The server stops before this answer is complete: it took longer than the drain."""


class RequestFailed(OctavoError):
    """An internal failure ended this one request; details are in the log under its id."""


class EngineDead(OctavoError):
    """The step loop has ended; no request can be served by this process any more."""
