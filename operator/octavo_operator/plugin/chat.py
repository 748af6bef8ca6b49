"""`kubectl octavo chat`: a conversation with a service from the terminal, through a forwarded port."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from octavo_operator import names
from octavo_operator.counted import counted
from octavo_operator.plugin.kubectl import Kubectl, KubectlError

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")
_TIMEOUT = 600.0


class ChatError(KubectlError):
    """The service answered with an error; the message is its own."""


@contextmanager
def forwarded(kubectl: Kubectl, namespace: str, service: str) -> Iterator[str]:
    """The base URL of a service's API while a port is forwarded to it."""
    command = kubectl.command(
        "port-forward", "--namespace", namespace, f"service/{names.child_name(service)}", f":{names.API_PORT}"
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        found = _FORWARDING.search(process.stdout.readline())
        if found is None:
            raise KubectlError(process.stderr.read().strip() or "the port could not be forwarded")
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait(10)


@dataclass
class Figures:
    """What a reader feels: how long until the first word, and how fast the others."""

    began: float = field(default_factory=time.monotonic)
    first: float | None = None
    tokens: int = 0

    def words(self) -> str:
        """One line."""
        if self.first is None:
            return "no text came"
        spent = time.monotonic() - self.first
        speed = f", {(self.tokens - 1) / spent:.0f} tokens/s" if self.tokens > 1 and spent > 0 else ""
        return f"first word after {self.first - self.began:.2f} s, {counted(self.tokens, 'token')}{speed}"


def answer(base: str, body: dict[str, Any], key: str, figures: Figures) -> Iterator[str]:
    """The pieces of a streamed chat answer.

    Raises:
        ChatError: the service refused or broke off; the message is its own.
    """
    whole = body | {"stream": True, "stream_options": {"include_usage": True}}
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(f"{base}/v1/chat/completions", json.dumps(whole).encode(), headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:  # noqa: S310 - the port forwarded above
            yield from _pieces(reply, figures)
    except urllib.error.HTTPError as error:
        raise ChatError(_words(error.read(), error.code)) from error
    except OSError as error:
        raise ChatError(f"the connection broke off: {error}") from error


def _pieces(lines: Iterable[bytes], figures: Figures) -> Iterator[str]:
    for line in lines:
        data = line.decode(errors="replace").removeprefix("data:").strip()
        if not data or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise ChatError(str(event["error"].get("message", event["error"])))
        if usage := event.get("usage"):
            figures.tokens = usage["completion_tokens"]
        for choice in event["choices"]:
            if text := choice["delta"].get("content"):
                figures.first = figures.first or time.monotonic()
                yield text


def _words(body: bytes, status: int) -> str:
    try:
        return f"{json.loads(body)['error']['message']} ({status})"
    except (ValueError, KeyError, TypeError):
        return f"the service answered {status}"
