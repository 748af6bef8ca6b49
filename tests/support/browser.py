"""A real browser without a window, and what a page looks like in it: Debian's headless Chromium, told over a pipe.

The DevTools protocol, as little of it as pages need: https://chromedevtools.github.io/devtools-protocol. What a page
fetches, and what it writes to its console, is kept.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from node.prerequisites import BROWSER, find
from patience import PATIENCE_SECONDS

DEADLINE_SECONDS = PATIENCE_SECONDS
Json = dict[str, Any]
Scheme = Literal["light", "dark"]

# As root it has no sandbox to offer; what is opened here was written here. A container's /dev/shm may be small.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
    "--remote-debugging-pipe",
)
# It reads commands from descriptor 3 and answers on 4: a shell puts our ends of two pipes there.
INTO_PLACE = 'exec "$0" "$@" 3<&{} 4>&{}'


class Refused(Exception):
    """The browser did not do what it was told; the message has its words."""


@dataclass(slots=True)
class Page:
    """One tab."""

    browser: Browser
    session: str
    fetched: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    loaded: set[str] = field(default_factory=set)

    def open(self, path: Path, *, width: int, scheme: Scheme, height: int = 900) -> None:
        """Show a file, and wait until all of it is there."""
        self.fetched.clear()
        self.complaints.clear()
        self._do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        loader = self._do("Page.navigate", url=path.absolute().as_uri())["loaderId"]
        while loader not in self.loaded:
            self.browser.hear(self)

    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript, which is not the page's."""
        answer = self._do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Refused(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """All of the page, as PNG."""
        size = self._do("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self._do("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(answer["data"])

    def heard(self, event: Json) -> None:
        """What the browser tells of this tab."""
        told = event["params"]
        match event["method"]:
            case "Page.lifecycleEvent" if told["name"] == "load":
                self.loaded.add(told["loaderId"])
            case "Network.requestWillBeSent":
                self.fetched.append(told["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(f"{told['entry']['level']}: {told['entry']['text']}")
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(str(told["args"]))

    def _do(self, method: str, **params: Any) -> Json:
        return self.browser.do(method, params, self)


@dataclass(slots=True)
class Browser:
    """A browser that is up; a context manager."""

    _process: subprocess.Popen[bytes] = field(init=False)
    _commands: int = field(init=False)
    _answers: int = field(init=False)
    _profile: tempfile.TemporaryDirectory[str] = field(init=False)
    _rest: bytes = b""
    _number: int = 0

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(prefix="octavo-browser-", ignore_cleanup_errors=True)
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        program = [find(BROWSER), *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", INTO_PLACE.format(commands, answers), *program],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_SECONDS)
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def page(self) -> Page:
        """A new tab."""
        target = self.do("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.do("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable", {}, page)
        self.do("Page.setLifecycleEventsEnabled", {"enabled": True}, page)
        return page

    def do(self, method: str, params: Mapping[str, Any], page: Page | None = None) -> Json:
        """One command; what happens meanwhile is told to the page."""
        self._number += 1
        session = {} if page is None else {"sessionId": page.session}
        command = {"id": self._number, "method": method, "params": dict(params)} | session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                if "error" in message:
                    raise Refused(f"{method}: {message['error']}")
                result: Json = message["result"]
                return result
            self._tell(message, page)

    def hear(self, page: Page) -> None:
        """Wait for the next thing that happens, and tell the tab if it is its own."""
        self._tell(self._next(), page)

    @staticmethod
    def _tell(message: Json, page: Page | None) -> None:
        if page is not None and message.get("sessionId") == page.session and "method" in message:
            page.heard(message)

    def _next(self) -> Json:
        """The next message; raises Refused when the browser has ended, or says nothing."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], DEADLINE_SECONDS)
            data = os.read(self._answers, 1 << 16) if ready else b""
            if not data:
                raise Refused("the browser has ended" if ready else "the browser says nothing")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found: Json = json.loads(message)
        return found
