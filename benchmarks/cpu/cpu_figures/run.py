"""Measures what is not kept yet. The servers take turns in each round, and one is stopped while another is measured."""

from __future__ import annotations

import hashlib
import json
import math
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from .client import ClientFailed, LoadClient
from .loads import Load
from .results import Figures, Kept, Start, middle
from .servers import Recipe, Server

WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Contender:
    """A server to measure. `identity` changes with anything that could change its figures.

    Of one that differs from another only in how it goes on with an answer, `only_decodes` are measured: start, memory
    and loads with answers of one token would be the other's again.
    """

    recipe: Recipe
    identity: str
    only_decodes: bool = False

    @property
    def name(self) -> str:
        """As in tables."""
        return self.recipe.name

    def is_asked(self, load: Load) -> bool:
        """Whether a load could tell something new of it."""
        return load.output_tokens > 1 or not self.only_decodes


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: every load on every contender that is asked it, `rounds` times, or as often as there is time.

    seconds: for all together. A round after the first is begun if it should end within them.
    """

    contenders: Sequence[Contender]
    loads: Sequence[Load]
    rounds: int
    threads: int
    client: LoadClient
    seconds: float = math.inf

    def start_key(self, contender: Contender) -> dict[str, Any]:
        """Of a contender's start."""
        return {"what": "start", "server": contender.name, "identity": contender.identity, "threads": self.threads}

    def load_key(self, contender: Contender, load: Load, number: int) -> dict[str, Any]:
        """Of one run."""
        names = [field.name for field in fields(Figures)]  # an older cell may lack one
        return self.start_key(contender) | {"what": "load", "load": load.key, "round": number, "fields": names}


class Run:
    """A plan in progress."""

    def __init__(self, plan: Plan, kept: Kept, say: Callable[[str], None]) -> None:
        self._plan, self._kept, self._say = plan, kept, say

    def measure(self) -> None:
        """Everything that is missing; raises RuntimeError or ClientFailed, and keeps what was measured before."""
        began = time.monotonic()
        missing = [contender for contender in self._plan.contenders if self._misses(contender)]
        weighed = [contender for contender in missing if not contender.only_decodes]
        if not missing:
            return
        with self._plan.client as client, ExitStack() as stack:
            servers = {contender.name: self._start(stack, contender) for contender in weighed}
            with ExitStack() as beside:  # a page of two servers counts half for each: these end before one is weighed
                servers |= {each.name: self._start(beside, each) for each in missing if each.only_decodes}
                self._ask_all(client, servers, began + self._plan.seconds)
            for contender in weighed:
                self._weigh(servers[contender.name], contender)

    def figures(self, contender: Contender) -> dict[str, Figures]:
        """The medians, by load."""
        found: dict[str, Figures] = {}
        for load in filter(contender.is_asked, self._plan.loads):
            keys = (self._plan.load_key(contender, load, number) for number in range(self._plan.rounds))
            runs = [value for value in map(self._kept.find, keys) if value is not None]
            found[load.name] = middle(Figures(**value) for value in runs)
        return found

    @property
    def rounds(self) -> int:
        """How often every load was measured."""
        keys = (
            [self._plan.load_key(contender, load, number) for number in range(self._plan.rounds)]
            for contender in self._plan.contenders
            for load in filter(contender.is_asked, self._plan.loads)
        )
        return min(sum(self._kept.find(key) is not None for key in each) for each in keys)

    def start(self, contender: Contender) -> Start:
        """How it started, and how large it became."""
        value = self._kept.find(self._plan.start_key(contender))
        assert value is not None, "measure first"
        return Start(**value)

    def _misses(self, contender: Contender) -> bool:
        keys = [
            self._plan.load_key(contender, load, number)
            for load in filter(contender.is_asked, self._plan.loads)
            for number in range(self._plan.rounds)
        ]
        return any(self._kept.find(key) is None for key in (self._plan.start_key(contender), *keys))

    def _start(self, stack: ExitStack, contender: Contender) -> Server:
        """Alone: those started before are stopped by now."""
        if contender.only_decodes:
            self._say(f"starting {contender.name}")
        else:
            self._read_files(contender)
        server = stack.enter_context(Server(contender.recipe))
        start = Start(server.ready_seconds, server.memory())
        self._kept.keep(self._plan.start_key(contender), asdict(start))
        self._say(f"{contender.name} is ready after {start.ready_seconds:.1f} s, {start.ready_bytes / 1e9:.2f} GB")
        for _ in range(WARM_UPS):
            _ask_once(server.port)
        server.pause()
        return server

    def _read_files(self, contender: Contender) -> None:
        """By a first start, which is not the one that counts: a kernel may have taken its files out of memory while
        another server was started."""
        self._say(f"starting {contender.name}, twice")
        with Server(contender.recipe) as first:
            self._say(f"{contender.name} is ready after {first.ready_seconds:.1f} s, with its files to be read")

    def _ask_all(self, client: LoadClient, servers: Mapping[str, Server], until: float) -> None:
        took = 0.0
        for number in range(self._plan.rounds):
            began = time.monotonic()
            if number and began + took > until:
                self._say(f"no time for round {number + 1}, which would take {took / 60:.0f} minutes")
                return
            for load in self._plan.loads:
                for contender in self._plan.contenders:
                    key = self._plan.load_key(contender, load, number)
                    if contender.is_asked(load) and self._kept.find(key) is None:
                        self._ask(client, servers[contender.name], contender, load, number)
            took = time.monotonic() - began

    def _ask(self, client: LoadClient, server: Server, contender: Contender, load: Load, number: int) -> None:
        server.resume()
        try:
            found = client.ask(load, port=server.port, seed=load.seed(number))
        except ClientFailed as error:
            raise ClientFailed(f"{contender.name}, {load.name}: {error}\n{server.log()}") from None
        finally:
            server.pause()
        self._kept.keep(self._plan.load_key(contender, load, number), asdict(found))
        self._say(
            f"round {number + 1}, {load.name}, {contender.name}: {found.tokens_per_second:.0f} tokens/s, first token"
            f" {found.ttft_mean * 1e3:.0f} ms, each token after it {found.tpot_mean * 1e3:.1f} ms"
        )

    def _weigh(self, server: Server, contender: Contender) -> None:
        start = replace(self.start(contender), loaded_bytes=server.memory())
        self._kept.keep(self._plan.start_key(contender), asdict(start))


def _ask_once(port: int) -> None:
    """A short answer, so that what is lazy has been done."""
    body = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:  # noqa: S310 (a server of our own)
        reply.read()


def identity_of(folder: Path) -> str:
    """A digest of all sources under a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
