"""Kubernetes objects kept current: list, then watch, again after every failure. Standard library only."""

from __future__ import annotations

import http.client
import json
import logging
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

_WATCH_SECONDS = 300
_RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Store:
    """The objects of one kind, by UID; `changed` is called after each change, from the thread that watches."""

    def __init__(self, server: str, context: ssl.SSLContext, path: str, changed: Callable[[], None]) -> None:
        self._address = urllib.parse.urlsplit(server).netloc
        self._context = context
        self._path = path
        self._changed = changed
        self._objects: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.listed = threading.Event()

    def start(self) -> Store:
        """Watch in a thread of its own, as long as the process lives."""
        threading.Thread(target=self._run, name=f"watch {self._path}", daemon=True).start()
        return self

    def snapshot(self) -> list[dict[str, Any]]:
        """All objects as they are now."""
        with self._lock:
            return list(self._objects.values())

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            try:
                self._follow(self._list())
            except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                _log.warning("%s: %s; listing again", self._path, error)
                pause.wait(_RETRY_SECONDS)

    def _list(self) -> str:
        answer = json.loads(next(self._lines({})))
        with self._lock:
            self._objects = {item["metadata"]["uid"]: item for item in answer["items"]}
        self.listed.set()
        self._changed()
        return str(answer["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> None:
        """Watch from `version` on until the server says that it is too old."""
        while True:
            query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_SECONDS)}
            for line in self._lines({**query, "resourceVersion": version}):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ValueError(event["object"].get("message", "the watch failed"))
                version = event["object"]["metadata"]["resourceVersion"]
                self._apply(event["type"], event["object"])

    def _apply(self, kind: str, item: dict[str, Any]) -> None:
        if kind == "BOOKMARK":
            return
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(item["metadata"]["uid"], None)
            else:
                self._objects[item["metadata"]["uid"]] = item
        self._changed()

    def _lines(self, query: dict[str, str]) -> Iterator[bytes]:
        connection = http.client.HTTPSConnection(self._address, context=self._context, timeout=_WATCH_SECONDS + 30)
        try:
            connection.request("GET", f"{self._path}?{urllib.parse.urlencode(query)}")
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise http.client.HTTPException(f"{response.status} {response.reason}")
            yield from response
        finally:
            connection.close()
