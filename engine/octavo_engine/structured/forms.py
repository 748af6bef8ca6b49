"""Whoever needs a form asks here: it is tried, compiled by a thread of its own, within a time limit, and kept for the
next.

Neither the event loop nor the step loop waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from llguidance import LLTokenizer

from octavo_engine.errors import FormTooComplex, Overloaded, RequestError
from octavo_engine.metrics import FormResult
from octavo_engine.structured.grammar import Grammar, compile_spec
from octavo_engine.structured.kept import Kept
from octavo_engine.structured.spec import Spec
from octavo_engine.structured.trials import PATIENCE, Trials
from octavo_engine.structured.vocabulary import Tokens, grammar_tokenizer
from octavo_engine.structured.watching import Watcher

COMPILE_SECONDS = 2.0  # a hundred times what a schema of ten kilobytes takes
WORKERS = 2  # a form that takes long keeps one of them until it is killed
BUSY = "compile_busy"


class Forms:
    """Compiles forms for one model.

    end_ids: the tokens that end an answer. seconds: the longest that a client waits for one, or, where it is tried, for
    one that is not begun. tried: a form is compiled in another process first, see `Trials`, which bounds its time by
    the processor's clock; else it has the grammar engine's limits alone. on_asked: is told what came of each wish, and
    how long it took.
    """

    def __init__(
        self,
        tokenizer: Tokens,
        end_ids: Iterable[int],
        *,
        seconds: float = COMPILE_SECONDS,
        tried: bool = False,
        on_asked: Callable[[FormResult, float], None] = lambda *_: None,
    ) -> None:
        self._source = tokenizer
        # The engine knows one end, which must be a token of the tokenizer: those that only the model has come last.
        self._end_ids = sorted(end_ids, key=lambda index: (index >= tokenizer.vocab_size, index))
        self._watcher = Watcher(tokenizer, self._end_ids)
        self._seconds = seconds
        self._trials = Trials(tokenizer, self._end_ids, seconds=seconds, places=WORKERS) if tried else None
        self._on_asked = on_asked
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
            self._on_asked(FormResult.KEPT, 0.0)
            return kept
        await asyncio.wrap_future(self._prepared(spec))  # once, and not of this form's time
        began, result = time.monotonic(), FormResult.FAILED
        try:
            grammar = await self._compiled(spec)
            result = FormResult.COMPILED
        except Overloaded:
            result = FormResult.BUSY
            raise
        except RequestError as error:
            result = FormResult.SLOW if isinstance(error, FormTooComplex) else FormResult.REFUSED
            raise
        finally:
            self._on_asked(result, time.monotonic() - began)
        return grammar

    def compile(self, spec: Spec) -> Grammar:
        """The same, untried, at once and in this thread, however long it takes."""
        if (kept := self._kept.find(spec)) is not None:
            return kept
        grammar = compile_spec(spec, self._prepared(spec).result(), self._end_ids)
        if spec.openings is not None:
            tokens = grammar.tokenizer.tokenize_bytes
            grammar = replace(grammar, watches=self._watcher.watches(spec.openings, grammar.starts, tokens))
        self._kept.put(spec, grammar)
        return grammar

    def close(self) -> None:
        """Compile nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._trials is not None:
            self._trials.close()

    @property
    def kept_bytes(self) -> int:
        """About what the kept forms take."""
        return self._kept.bytes

    async def _compiled(self, spec: Spec) -> Grammar:
        job = self._pool.submit(self._tried, spec)
        waiting = asyncio.wrap_future(job)
        done, _ = await asyncio.wait({waiting}, timeout=self._seconds)
        if not done and job.cancel():
            raise Overloaded("forms of other requests are being compiled; try again in 1 s", reason=BUSY, retry_after=1)
        if not done and self._trials is not None:  # a machine that others keep busy does not make a form complex
            done, _ = await asyncio.wait({waiting}, timeout=self._seconds * (PATIENCE - 1))
        if done:
            return waiting.result()
        waiting.add_done_callback(_look_at)
        message = f"{spec.param}: this form takes longer than {self._seconds:g} s to compile; make it simpler"
        raise FormTooComplex(message, param=spec.param)

    def _tried(self, spec: Spec) -> Grammar:
        if self._trials is not None:
            self._trials.check(spec)
        return self.compile(spec)

    def _prepared(self, spec: Spec) -> Future[LLTokenizer]:
        """The vocabulary's tree, begun when the first form is asked for: most servers are asked for none."""
        if not self._end_ids or self._end_ids[0] >= self._source.vocab_size:
            message = f"{spec.param}: the model has no end token, so that an answer of a given form would never end"
            raise RequestError(message, param=spec.param, code="unsupported_parameter")
        with self._lock:
            if self._tokenizer is None or (self._tokenizer.done() and self._tokenizer.exception()):
                self._tokenizer = self._pool.submit(self._prepare)
            return self._tokenizer

    def _prepare(self) -> LLTokenizer:
        if self._trials is not None:
            self._trials.prepare()
        return grammar_tokenizer(self._source, self._end_ids)


def _look_at(job: asyncio.Future[Grammar]) -> None:
    """Nobody waits for it any more, so nobody would see its error."""
    if not job.cancelled():
        job.exception()
