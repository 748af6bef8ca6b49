"""Who is told of each HTTP request when it is over: the traces first, whose ids the access log has, then the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from octavo_engine.config import ServerConfig, read_traces_endpoint
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.server.access_log import JsonAccessLog, TextAccessLog
from octavo_engine.server.exchange import Exchange, Watcher, watched_by


class Closing(Protocol):
    """A Watcher with something to finish."""

    def __call__(self, exchange: Exchange) -> None:
        """It is over."""

    def close(self) -> None:
        """The process is about to end."""


@dataclass(frozen=True, slots=True)
class Watchers:
    """All of them, opened before the model is loaded, so that what cannot work is known at once."""

    each: Sequence[Closing]

    @property
    def tell(self) -> Watcher:
        """What is called with each exchange."""
        return watched_by(self.each)

    def close(self) -> None:
        """Let each finish, within seconds."""
        for watcher in self.each:
            watcher.close()


def open_watchers(server: ServerConfig, model: str, environment: Mapping[str, str], out: TextIO) -> Watchers:
    """As the flags and the environment say. Raises InvalidConfiguration."""
    each: list[Closing] = []
    if (endpoint := read_traces_endpoint(server.otlp_traces_endpoint, environment)) is not None:
        each.append(_traces(endpoint, model))
    match server.access_log:
        case "json":
            each.append(JsonAccessLog(out, model=model, clients=server.log_client_addresses))
        case "text":
            each.append(TextAccessLog(clients=server.log_client_addresses))
    return Watchers(each)


def _traces(endpoint: str, model: str) -> Closing:
    try:
        from octavo_engine.server.traces import Traces, exporter_to  # noqa: PLC0415 (what most servers do without)
    except ImportError as error:
        raise InvalidConfiguration(
            "traces need OpenTelemetry's packages: pip install 'octavo[engine,otel]', or leave out"
            " --otlp-traces-endpoint and OTEL_EXPORTER_OTLP_ENDPOINT"
        ) from error
    return Traces(exporter_to(endpoint), model)
