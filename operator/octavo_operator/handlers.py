"""kopf as the informer, and nothing more: it tells what happens to which object. The only importer of kopf.

`on.event` handlers with posting off leave no finalizer, no annotation and no Event behind; selectors are applied by
the API server, so that a namespace full of other people's pods costs nothing.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from octavo_operator.config import OperatorConfig
from octavo_operator.watched import WATCHED, Watched

_RELOGIN = datetime.timedelta(minutes=10)  # projected service account tokens are rotated; kopf must read them anew
_SERVER_SECONDS = 300  # a watch ends this often, and goes on from where it was
_SILENT_SECONDS = 75.0  # the API server sends a bookmark every minute: without one, the stream is dead
_ANSWER_SECONDS = 30.0

Tell = Callable[[Watched, dict[str, Any], bool], None]
"""Told of an object of a watched kind, and whether it is gone."""


class _NoEssence(kopf.AnnotationsDiffBaseStorage):
    """kopf copies and compares each object for handlers of changes; there are none, and it costs more than the rest."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()


def registry(tell: Tell, login: Callable[[], Awaitable[Any]]) -> kopf.OperatorRegistry:
    """Handlers that pass on what they see.

    Args:
        login: gives the Kubernetes client's configuration, so that both clients use the same credentials.
    """
    made = kopf.OperatorRegistry()

    async def on_login(**_: Any) -> kopf.ConnectionInfo:
        return _connection(await login())

    kopf.on.login(registry=made)(on_login)
    for watched in WATCHED:
        handler = _handler(watched, tell)
        kopf.on.event(watched.group, watched.version, watched.plural, registry=made, id=watched.plural)(handler)
    return made


def _handler(watched: Watched, tell: Tell) -> Callable[..., Awaitable[None]]:
    async def on_event(event: kopf.RawEvent, **_: Any) -> None:
        tell(watched, dict(event["object"]), event["type"] == "DELETED")

    return on_event


def settings() -> kopf.OperatorSettings:
    """kopf's settings for an observer without traces that notices silence."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.persistence.diffbase_storage = _NoEssence()
    made.persistence.progress_storage = kopf.StatusProgressStorage()  # the cheapest, and nothing is ever stored
    made.scanning.disabled = True  # no grant for CRDs and namespaces
    made.watching.server_timeout = _SERVER_SECONDS
    made.watching.client_timeout = _SERVER_SECONDS + _ANSWER_SECONDS
    made.watching.connect_timeout = _ANSWER_SECONDS
    made.watching.inactivity_timeout = _SILENT_SECONDS
    made.networking.request_timeout = _ANSWER_SECONDS
    made.networking.error_backoffs = (1, 2, 4, 8, 8)  # then it ends, and is begun anew with a fresh list
    for watched in WATCHED:
        if watched.selector:
            made.watching.label_selectors[watched.group, watched.version, watched.plural] = watched.selector
    return made


async def watch(config: OperatorConfig, tell: Tell, login: Callable[[], Awaitable[Any]], stop: asyncio.Event) -> None:
    """Runs until `stop` is set, or fails. Wants an event loop of its own, see `informer`."""
    await kopf.operator(
        registry=registry(tell, login),
        settings=settings(),
        standalone=True,
        clusterwide=not config.namespace_list,
        namespaces=config.namespace_list,
        stop_flag=stop,
    )


def _connection(configuration: Any) -> kopf.ConnectionInfo:
    token = str(configuration.api_key.get("BearerToken", "")).partition(" ")[2] or None
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        insecure=not configuration.verify_ssl,
        token=token,
        expiration=datetime.datetime.now(datetime.UTC) + _RELOGIN,
    )
