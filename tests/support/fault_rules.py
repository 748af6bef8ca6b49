"""What goes wrong between an operator and its API server, as values: which calls, and what happens to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

_WRITES = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Call:
    """One request as the API server's authorizer sees it; `resource` has the subresource behind a slash."""

    verb: str
    resource: str
    namespace: str
    name: str
    target: str

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.verb in _WRITES.values()

    @property
    def renews_the_lease(self) -> bool:
        """Leases are read and written all the time."""
        return self.resource == "leases"

    @property
    def counts(self) -> bool:
        """Whether it changes what a service is made of: the lease does not, nor do Events that tell of it."""
        return self.writes and self.resource not in ("leases", "events")


def read_call(method: str, target: str) -> Call:
    """Reads a request line; a path that names no resource (discovery) gets an empty `resource`."""
    parts = urlsplit(target)
    names = [part for part in parts.path.split("/") if part]
    names = names[2:] if names[:1] == ["api"] else names[3:]
    namespace = ""
    if len(names) > 2 and names[0] == "namespaces":
        namespace, names = names[1], names[2:]
    resource, name, sub = (*names, "", "", "")[:3]
    watching = parse_qs(parts.query).get("watch", [""])[0] in ("1", "true", "True")
    reading = "watch" if watching else "get" if name or not resource else "list"
    verb = _WRITES.get(method, reading)
    return Call(verb, f"{resource}/{sub}" if sub else resource, namespace, name, target)


@dataclass(frozen=True)
class Answer:
    """The proxy answers by itself, as an API server in trouble would; nothing reaches the real one."""

    status: int
    retry_after: int | None = None


@dataclass(frozen=True)
class Garbage:
    """A success whose body is no JSON."""

    body: bytes = b"<html>a captive portal</html>"


@dataclass(frozen=True)
class Reset:
    """The connection breaks; with `done` only after the API server has done what was asked."""

    done: bool = False


@dataclass(frozen=True)
class Delay:
    """The call goes through, late."""

    seconds: float


@dataclass(frozen=True)
class Silence:
    """No answer until the rules are cleared; then the connection breaks."""


@dataclass(frozen=True)
class HalfBody:
    """The answer ends in its middle."""


@dataclass(frozen=True)
class OldAnswer:
    """The first answer that was ever given to the same request, as a cache that is behind would."""


@dataclass(frozen=True)
class Stream:
    """Something is wrong with the lines of a watch.

    Attributes:
        how: a name in `fault_watch.STREAMS`.
    """

    how: str


Fault = Answer | Garbage | Reset | Delay | Silence | HalfBody | OldAnswer | Stream


@dataclass
class Rule:
    """A fault for some of the calls. An empty choice of verbs or resources means all.

    Attributes:
        leases: whether a rule without resources means leases too; without them the operator stops as it should.
        about: hits only calls whose target holds this text: a service's name, which its children carry as well.
        skip: so many matching calls pass first.
        times: so many are hit after that; None: all.
        hits: how many were hit.
    """

    fault: Fault
    verbs: Collection[str] = ()
    resources: Collection[str] = ()
    about: str = ""
    skip: int = 0
    times: int | None = None
    leases: bool = False
    seen: int = field(default=0, init=False)
    hits: int = field(default=0, init=False)

    def claims(self, call: Call) -> bool:
        """Whether this call is hit; counts it."""
        if isinstance(self.fault, Stream) and call.verb != "watch":
            return False
        if (self.verbs and call.verb not in self.verbs) or self.about not in call.target:
            return False
        if self.resources and call.resource not in self.resources:
            return False
        if not self.resources and call.renews_the_lease and not self.leases:
            return False
        self.seen += 1
        if self.seen <= self.skip or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True


REASONS: Mapping[int, str] = {
    403: "Forbidden",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


def status_document(status: int) -> dict[str, object]:
    """The body of a Kubernetes error."""
    words = {"reason": REASONS.get(status, "Unknown"), "message": f"injected {status}", "code": status}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", **words}
