"""A measurement as JSON, all of it: what was asked, the figures, and each request, so that it can be judged again.

Times of requests are seconds; `gaps_us` are whole microseconds, since there are many. `read` is the inverse of `write`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo_engine.bench.measurement import Measurement
from octavo_engine.bench.outcome import Failure, Outcome
from octavo_engine.bench.summary import Summary
from octavo_engine.errors import InvalidConfiguration

Json = dict[str, Any]
FORM = 1  # of the document


def write(measurement: Measurement, summary: Summary, serve: Json | None = None) -> Json:
    """The document; `serve` is what a sweep started the server with."""
    return {
        "octavo_bench": FORM,
        "url": measurement.url,
        "model": measurement.model,
        "began": measurement.began,
        "stopped": measurement.stopped,
        "load": measurement.load,
        "serve": serve,
        "prompts_counted": measurement.exact,
        "summary": _rounded(asdict(summary)),
        "client": _rounded(asdict(measurement.cost)) | {"doubt": measurement.cost.doubt},
        "readings": [_rounded(asdict(reading)) for reading in measurement.readings],
        "requests": [_request(outcome) for outcome in measurement.outcomes],
    }


def render(document: Json) -> str:
    """As text: the figures on lines of their own, each request on one."""
    requests = ",\n".join("    " + json.dumps(request, separators=(",", ":")) for request in document["requests"])
    rest = json.dumps(document | {"requests": []}, indent=2, ensure_ascii=False)
    return rest.replace('"requests": []', f'"requests": [\n{requests}\n  ]' if requests else '"requests": []') + "\n"


@dataclass(frozen=True, slots=True)
class Saved:
    """What --compare needs of a document."""

    name: str
    model: str
    load: Mapping[str, Any]
    serve: Mapping[str, Any]
    seconds: float
    failed: int
    outcomes: tuple[Outcome, ...]


def read(path: str) -> Saved:
    """Read a file that `write` made; raises InvalidConfiguration."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfiguration(f"--compare: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidConfiguration(f"--compare: {path} is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("octavo_bench") != FORM:
        raise InvalidConfiguration(f"--compare: {path} was not written by octavo bench --json of this version")
    try:
        return saved(document, Path(path).name)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidConfiguration(f"--compare: {path} is damaged: {error!r}") from error


def saved(document: Json, name: str) -> Saved:
    """The same of a document at hand."""
    summary = document["summary"]
    return Saved(
        name=name,
        model=document["model"],
        load=document["load"],
        serve=document["serve"] or {},
        seconds=summary["seconds"],
        failed=sum(summary["failures"].values()),
        outcomes=tuple(_outcome(request) for request in document["requests"]),
    )


def _request(outcome: Outcome) -> Json:
    fields: Json = _rounded({name: value for name, value in asdict(outcome).items() if name != "gaps"})
    return fields | {"gaps_us": [round(1e6 * gap) for gap in outcome.gaps]}


def _outcome(request: Json) -> Outcome:
    fields = {name: value for name, value in request.items() if name != "gaps_us"}
    failure = fields.pop("failure")
    return Outcome(
        **fields,
        failure=None if failure is None else Failure(failure),
        gaps=tuple(gap / 1e6 for gap in request["gaps_us"]),
    )


def _rounded(value: Any) -> Any:
    """Numbers to the microsecond: more is noise."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    return value
