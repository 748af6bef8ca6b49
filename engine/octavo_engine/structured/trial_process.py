"""Where forms are tried before the server compiles them: `python -m octavo_engine.structured.trial_process SOCKET`.

A process of its own, since nothing else can be ended from outside while the grammar engine works. It has a limit of
processor time for each form and of memory, and ends by itself when it meets one, whoever is still there to see it.
Started by `trials` alone; knows no torch.
"""

from __future__ import annotations

import json
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from llguidance import LLTokenizer

from octavo_engine.errors import FormTooComplex, OctavoError, RequestError
from octavo_engine.structured.grammar import compile_spec
from octavo_engine.structured.matching import FormLost
from octavo_engine.structured.rehearsal import rehearse
from octavo_engine.structured.spec import Kind, Spec
from octavo_engine.structured.trials import Assignment
from octavo_engine.structured.vocabulary import grammar_tokenizer


class TokenTable:
    """As much of a tokenizer as a trial needs: how a forced text is cut makes no difference to what is allowed."""

    def __init__(self, assignment: Assignment) -> None:
        self._tokens = assignment.tokens
        self.vocab_size = len(self._tokens)
        self.special_ids = assignment.special_ids

    def token_bytes(self, index: int) -> bytes:
        """The bytes that one token stands for."""
        return self._tokens[index]

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:  # noqa: ARG002 (see Tokens)
        """Never: the caller then takes the longest tokens."""
        raise OctavoError("this table cannot cut a text")


def main(arguments: Sequence[str]) -> int:
    """Try forms until nobody asks any more; returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):  # for the whole container: it ends with the server
        signal.signal(number, signal.SIG_IGN)
    line = Connection(socket.socket(fileno=int(arguments[0])).detach())
    try:
        assignment = Assignment.from_words(line.recv_bytes())
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (assignment.memory, assignment.memory))
        tokenizer = grammar_tokenizer(TokenTable(assignment), assignment.end_ids)
        line.send_bytes(b"{}")
        while True:
            asked = json.loads(line.recv_bytes())
            line.send_bytes(json.dumps(_tried(asked, tokenizer, assignment)).encode())
    except (EOFError, ConnectionError):
        return 0


def _tried(asked: dict[str, Any], tokenizer: LLTokenizer, assignment: Assignment) -> dict[str, Any]:
    """How long a form took, or why it is refused."""
    spec = Spec(Kind(asked["kind"]), asked["text"], asked["param"])
    signal.setitimer(signal.ITIMER_PROF, assignment.seconds)  # its signal ends the process
    began = time.perf_counter()
    try:
        rehearse(compile_spec(spec, tokenizer, assignment.end_ids))
    except FormTooComplex as error:
        return {"too_complex": str(error)}
    except RequestError as error:
        return {"refused": str(error)}
    except FormLost as error:
        return {"refused": f"{spec.param}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
