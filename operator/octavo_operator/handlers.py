"""kopf as the informer, and nothing more: events become keys. The only importer of kopf.

`on.event` handlers with posting off leave no finalizer, no annotation and no Event behind; selectors are applied by
the API server, so that a namespace full of other people's pods costs nothing.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from octavo_operator import names
from octavo_operator.config import OperatorConfig
from octavo_operator.names import Key

_CHILDREN = (("apps", "v1", "deployments"), ("", "v1", "services"), ("policy", "v1", "poddisruptionbudgets"))
_PODS = ("", "v1", "pods")
_RELOGIN = datetime.timedelta(minutes=10)  # projected service account tokens are rotated; kopf must read them anew


def parent_key(body: Any) -> Key | None:
    """The service that an object belongs to: by its controller reference, for pods by the annotation they are given."""
    head = body["metadata"]
    for owner in head.get("ownerReferences", ()):
        if owner.get("controller") and owner["kind"] == names.KIND:
            return Key(head["namespace"], owner["name"])
    parent = head.get("annotations", {}).get(names.PARENT_ANNOTATION)
    return Key(head["namespace"], parent) if parent else None


def registry(enqueue: Callable[[Key], None], login: Callable[[], Awaitable[Any]]) -> kopf.OperatorRegistry:
    """Handlers that put keys into the queue.

    Args:
        login: gives the Kubernetes client's configuration, so that both clients use the same credentials.
    """
    made = kopf.OperatorRegistry()

    async def on_login(**_: Any) -> kopf.ConnectionInfo:
        return _connection(await login())

    async def on_service(body: kopf.Body, **_: Any) -> None:
        enqueue(Key(str(body["metadata"]["namespace"]), str(body["metadata"]["name"])))

    async def on_child(body: kopf.Body, **_: Any) -> None:
        if key := parent_key(body):
            enqueue(key)

    kopf.on.login(registry=made)(on_login)
    kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=made)(on_service)
    for group, version, plural in (*_CHILDREN, _PODS):
        kopf.on.event(group, version, plural, registry=made, id=f"on_{plural}")(on_child)
    return made


def settings() -> kopf.OperatorSettings:
    """kopf's settings for an observer without traces."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.scanning.disabled = True  # no grant for CRDs and namespaces
    for kind in (*_CHILDREN, _PODS):
        made.watching.label_selectors[kind] = names.SERVICE_LABEL
    return made


async def watch(
    config: OperatorConfig,
    enqueue: Callable[[Key], None],
    login: Callable[[], Awaitable[Any]],
    stop: asyncio.Event,
) -> None:
    """Runs until `stop` is set."""
    await kopf.operator(
        registry=registry(enqueue, login),
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
