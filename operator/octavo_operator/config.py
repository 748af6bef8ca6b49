"""The operator's settings: one flat frozen value, read once from flags and environment, with its defaults."""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.errors import ConfigError

ENV_PREFIX = "OCTAVO_OPERATOR_"
_GROUP = re.compile(r"^([1-9][0-9]{0,8}|1[0-9]{9})?$")  # within 31 bits
_LABEL = re.compile(r"^[A-Za-z0-9][-A-Za-z0-9_./]{0,315}=[-A-Za-z0-9_.]{1,63}$")


def _option(default: Any, help: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True)
class OperatorConfig:
    """What an operator process needs to know.

    The flag `--some-field` wins over the variable `OCTAVO_OPERATOR_SOME_FIELD`, which wins over the default.
    """

    engine_image: str = _option("octavo-engine:latest", "engine image of services that name none")
    namespaces: str = _option("", "comma-separated namespaces to serve; empty: the whole cluster")
    lease_namespace: str = _option("default", "namespace of the Lease that lets one operator act at a time")
    lease_name: str = _option("octavo-operator", "name of that Lease")
    lease_seconds: float = _option(15.0, "a standby takes over when the holder has been silent this long, s")
    identity: str = _option("", "holder name in the Lease; empty: the host name")
    health_host: str = _option("0.0.0.0", "address of /livez, /readyz and /metrics")  # noqa: S104 - the kubelet and Prometheus ask it
    health_port: int = _option(8080, "port of /livez, /readyz and /metrics")
    workers: int = _option(8, "resources reconciled at the same time; each waits for the API server most of its time")
    resync_seconds: float = _option(300.0, "everything is listed and reconciled again this often, s")
    heartbeat_seconds: float = _option(30.0, "what the watches told is held against a list this often, s")
    scrape_seconds: float = _option(5.0, "period of the engines' queue samples, s")
    scrape_timeout_seconds: float = _option(2.0, "an engine that does not answer within this time has no data, s")
    scale_down_seconds: float = _option(300.0, "replicas fall to the highest count wanted within this window, s")
    api_timeout_seconds: float = _option(30.0, "one request to the API server may take this long, s")
    operator_pods: str = _option(
        "app.kubernetes.io/name=octavo-operator",
        "labels of the operator's pods in the Lease's namespace, which reach the engines' management port",
    )
    prometheus_pods: str = _option(
        "app.kubernetes.io/name=prometheus", "labels of Prometheus' pods, which reach the engines' management port"
    )
    prometheus_namespaces: str = _option("", "labels of the namespaces of those Prometheus pods; empty: any namespace")
    management_addresses: str = _option(
        "", "comma-separated CIDR ranges that reach the engines' management port as well; for an operator outside pods"
    )
    cache_group: str = _option(
        "65532", "group that may write into a cache's volume; empty: the cluster's choice, which OpenShift insists on"
    )
    log_level: str = _option("info", "least severe log line", ("debug", "info", "warning", "error"))
    log_format: str = _option("json", "log lines for machines or for people", ("json", "plain"))
    kubeconfig: str = _option("", "kubeconfig file; empty: the pod's own service account, else the default file")

    @property
    def namespace_list(self) -> tuple[str, ...]:
        """The namespaces to serve, sorted; empty means all of them."""
        return tuple(sorted({part.strip() for part in self.namespaces.split(",") if part.strip()}))

    @property
    def address_list(self) -> tuple[str, ...]:
        """The ranges that reach the management port."""
        return tuple(part.strip() for part in self.management_addresses.split(",") if part.strip())

    @property
    def cache_group_id(self) -> int | None:
        """The group of a cache's volume; None leaves it to the cluster."""
        return int(self.cache_group) if self.cache_group else None

    @property
    def holder(self) -> str:
        """This process's name in the Lease."""
        return self.identity or socket.gethostname()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per field; flags have no default of their own, so that the environment can come between."""
    for option in dataclasses.fields(OperatorConfig):
        parser.add_argument(
            "--" + option.name.replace("_", "-"),
            metavar=option.name.upper(),
            help=f"{option.metadata['help']} (default: {option.default!r}, or {ENV_PREFIX}{option.name.upper()})",
        )


def read_config(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> OperatorConfig:
    """Builds the settings from parsed flags and the environment.

    Raises:
        ConfigError: a value does not parse or is out of range; the message names the flag.
    """
    values = {}
    for option in dataclasses.fields(OperatorConfig):
        text = flags.get(option.name)
        if text is None:
            text = environment.get(ENV_PREFIX + option.name.upper())
        if text is not None:
            values[option.name] = _parse(option, text)
    config = OperatorConfig(**values)
    _check_peers(config)
    if not _GROUP.match(config.cache_group):
        raise ConfigError(f"--cache-group: {config.cache_group!r} is not the number of a group other than root's")
    return config


def labels(text: str) -> dict[str, str]:
    """Labels written as `key=value,key=value`."""
    pairs = [part.strip() for part in text.split(",") if part.strip()]
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def _check_peers(config: OperatorConfig) -> None:
    """What goes into network policies: a mistake there would be refused for every service at once."""
    for name in ("operator_pods", "prometheus_pods", "prometheus_namespaces"):
        for key, value in labels(getattr(config, name)).items():
            if not _LABEL.match(f"{key}={value}"):
                raise ConfigError(f"--{name.replace('_', '-')}: {key!r} is not a label as KEY=VALUE")
    for item in config.address_list:
        try:
            ipaddress.ip_network(item)
        except ValueError as error:
            raise ConfigError(f"--management-addresses: {error}") from error


def _parse(option: dataclasses.Field[Any], text: str) -> Any:
    flag = "--" + option.name.replace("_", "-")
    kind: Any = type(option.default)
    try:
        value = kind(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {text!r} is not a valid {kind.__name__}") from error
    if kind is not str and not 0 < value < 1e6:
        raise ConfigError(f"{flag}: {text} must be greater than zero and below a million")
    choices: Sequence[str] = option.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(f"{flag}: {text!r} is not one of {', '.join(choices)}")
    return value
