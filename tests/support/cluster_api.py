"""The API server as an administrator asks it, over one kept connection: for tests that ask thousands of times."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
import urllib.parse
from functools import cache
from pathlib import Path
from typing import Any

from node import config
from patience import PATIENCE_SECONDS

Object = dict[str, Any]
Kind = tuple[str, str]
"""apiVersion and plural."""

SERVICES: Kind = ("octavo.dev/v1alpha1", "inferenceservices")
KINDS: dict[str, Kind] = {
    "configmap": ("v1", "configmaps"),
    "deployment": ("apps/v1", "deployments"),
    "endpointslice": ("discovery.k8s.io/v1", "endpointslices"),
    "event": ("v1", "events"),
    "job": ("batch/v1", "jobs"),
    "networkpolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "osvc": SERVICES,
    "pod": ("v1", "pods"),
    "poddisruptionbudget": ("policy/v1", "poddisruptionbudgets"),
    "podmonitor": ("monitoring.coreos.com/v1", "podmonitors"),
    "prometheusrule": ("monitoring.coreos.com/v1", "prometheusrules"),
    "service": ("v1", "services"),
    "serviceaccount": ("v1", "serviceaccounts"),
}
"""The kinds that tests ask for, by the names that kubectl knows them by."""


class Unwilling(Exception):
    """The API server said no.

    Attributes:
        status: its status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ClusterApi:
    """Reads and writes of one kubeconfig's first user; threads take turns."""

    def __init__(self, kubeconfig: Path) -> None:
        document = json.loads(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._context = ssl.create_default_context(cadata=authority)
        with tempfile.TemporaryDirectory() as folder:
            pair = Path(folder, "pair")
            pair.touch(mode=0o600)
            pair.write_bytes(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
            self._context.load_cert_chain(pair)
        self._host = urllib.parse.urlsplit(cluster["server"]).netloc
        self._connection: http.client.HTTPSConnection | None = None
        self._turn = threading.RLock()

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str) -> Object | None:
        """An object, or None where there is none."""
        try:
            return self._request("GET", path)
        except Unwilling as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, selector: str = "") -> list[Object]:
        """Objects of a collection."""
        query = f"?labelSelector={urllib.parse.quote(selector)}" if selector else ""
        items: list[Object] = self._request("GET", path + query)["items"]
        return items

    def apply(self, path: str, document: Object, manager: str = "tests") -> Object:
        """Server-side apply. Raises `Unwilling`."""
        query = f"?fieldManager={manager}&force=true&fieldValidation=Strict"
        return self._request("PATCH", path + query, document, "application/apply-patch+yaml")

    def create(self, path: str, document: Object) -> Object:
        """A new object. Raises `Unwilling`."""
        return self._request("POST", path, document)

    def merge(self, path: str, document: Object) -> Object:
        """Merge patch. Raises `Unwilling`."""
        return self._request("PATCH", path, document, "application/merge-patch+json")

    def delete(self, path: str) -> None:
        """Deletes in the background; nothing happens where there is nothing."""
        try:
            self._request("DELETE", path)
        except Unwilling as error:
            if error.status != 404:
                raise

    def _request(self, verb: str, path: str, body: Object | None = None, content: str = "application/json") -> Object:
        payload = json.dumps(body) if body is not None else None
        with self._turn:
            status, answer = self._exchange(verb, path, payload, content)
        if status >= 400:
            raise Unwilling(status, answer.get("message", ""))
        return answer

    def _exchange(self, verb: str, path: str, payload: str | None, content: str) -> tuple[int, Object]:
        for attempt in (1, 2):
            if self._connection is None:
                self._connection = http.client.HTTPSConnection(
                    self._host, context=self._context, timeout=PATIENCE_SECONDS
                )
            try:
                self._connection.request(verb, path, payload, {"Content-Type": content})
                response = self._connection.getresponse()
                return response.status, json.loads(response.read())
            except (OSError, http.client.HTTPException):  # a kept connection that the server has closed meanwhile
                self.close()
                if attempt == 2:
                    raise
        raise AssertionError("an attempt returns or raises")


@cache
def administrator() -> ClusterApi:
    """This process's one connection to the cluster that tests are about."""
    return ClusterApi(config.Settings.from_environment().admin_kubeconfig)


def kind_named(word: str) -> Kind:
    """The kind that a person calls so, in the singular or with an s."""
    return KINDS.get(word) or KINDS[word.removesuffix("s")]


def path_of(kind: Kind, namespace: str, name: str = "") -> str:
    """The path of a collection of a namespace or, with a name, of an object."""
    root = f"/apis/{kind[0]}" if "/" in kind[0] else f"/api/{kind[0]}"
    return f"{root}/namespaces/{namespace}/{kind[1]}" + (f"/{name}" if name else "")


def has_condition(found: Object | None, kind: str) -> bool:
    """True if there is an object whose condition of that type is True."""
    conditions = (found or {}).get("status", {}).get("conditions") or []
    return any((condition["type"], condition["status"]) == (kind, "True") for condition in conditions)
