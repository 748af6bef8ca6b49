"""Whoever needs a form asks here: it is compiled by a thread of its own, within a time limit, and kept for the next.

Neither the event loop nor the step loop waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLTokenizer

from octavo_engine.errors import Overloaded, RequestError
from octavo_engine.structured.grammar import Grammar, compile_spec
from octavo_engine.structured.kept import Kept
from octavo_engine.structured.spec import Spec
from octavo_engine.structured.vocabulary import Tokens, grammar_tokenizer

COMPILE_SECONDS = 2.0  # a hundred times what a schema of ten kilobytes takes
WORKERS = 2  # a form that takes long keeps one of them until it meets a limit of the grammar engine
BUSY = "compile_busy"


class Forms:
    """Compiles forms for one model.

    end_ids: the tokens that end an answer. seconds: the longest that a client waits for one.
    """

    def __init__(self, tokenizer: Tokens, end_ids: Iterable[int], *, seconds: float = COMPILE_SECONDS) -> None:
        self._source = tokenizer
        # The engine knows one end, which must be a token of the tokenizer: those that only the model has come last.
        self._end_ids = sorted(end_ids, key=lambda index: (index >= tokenizer.vocab_size, index))
        self._seconds = seconds
        self._kept = Kept()
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="octavo-forms")
        self._lock = threading.Lock()
        self._tokenizer: Future[LLTokenizer] | None = None

    async def grammar(self, spec: Spec) -> Grammar:
        """The grammar of a form.

        Raises RequestError for one that cannot be enforced or takes too long, and Overloaded where others take all the
        time that there is for it.
        """
        if (kept := self._kept.find(spec)) is not None:
            return kept
        await asyncio.wrap_future(self._prepared(spec))  # once, and not of this form's time
        job = self._pool.submit(self.compile, spec)
        waiting = asyncio.wrap_future(job)
        done, _ = await asyncio.wait({waiting}, timeout=self._seconds)
        if done:
            return waiting.result()
        if job.cancel():
            raise Overloaded("forms of other requests are being compiled; try again in 1 s", reason=BUSY, retry_after=1)
        waiting.add_done_callback(_look_at)
        message = f"{spec.param}: this form takes longer than {self._seconds:g} s to compile; make it simpler"
        raise RequestError(message, param=spec.param)

    def compile(self, spec: Spec) -> Grammar:
        """The same, at once and in this thread, however long it takes."""
        if (kept := self._kept.find(spec)) is not None:
            return kept
        grammar = compile_spec(spec, self._prepared(spec).result(), self._end_ids)
        self._kept.put(spec, grammar)
        return grammar

    def _prepared(self, spec: Spec) -> Future[LLTokenizer]:
        """The vocabulary's tree, begun when the first form is asked for: most servers are asked for none."""
        if not self._end_ids or self._end_ids[0] >= self._source.vocab_size:
            message = f"{spec.param}: the model has no end token, so that an answer of a given form would never end"
            raise RequestError(message, param=spec.param, code="unsupported_parameter")
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._pool.submit(grammar_tokenizer, self._source, self._end_ids)
            return self._tokenizer


def _look_at(job: asyncio.Future[Grammar]) -> None:
    """Nobody waits for it any more, so nobody would see its error."""
    if not job.cancelled():
        job.exception()
