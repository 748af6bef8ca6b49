"""The OpenAI API's routes. Each is: read, check, make requests, run them, write the answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from octavo_engine.errors import Draining, Overloaded, RequestError
from octavo_engine.request import EventKind
from octavo_engine.request import Request as EngineRequest
from octavo_engine.server.answering import Answering, Events, Write
from octavo_engine.server.answers import ChatForm, CompletionForm, Writer
from octavo_engine.server.body import read_json
from octavo_engine.server.call_form import call_form
from octavo_engine.server.chunks import Chunks
from octavo_engine.server.completion_tokens import Echo
from octavo_engine.server.context import Context
from octavo_engine.server.counted_chunks import CountedChunks
from octavo_engine.server.embeddings import TEXTS_AT_ONCE, EmbeddingBody, EmbeddingWriter, embedding_requests
from octavo_engine.server.exchange import Exchange
from octavo_engine.server.fields import Body, parse_body
from octavo_engine.server.forms import check_calls, hold_to_form, spec_of, thought_before
from octavo_engine.server.intake import Caller, check_ids, make_requests
from octavo_engine.server.prompt_logprobs import scored_requests, scores_field
from octavo_engine.server.prompts import chat_prompts, completion_prompts, echoes, reading_of
from octavo_engine.server.replies import Refusal
from octavo_engine.server.response_events import ResponseWriter
from octavo_engine.server.responses import ResponsesBody, as_chat, in_our_names, our_name
from octavo_engine.server.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from octavo_engine.server.tools import Reading
from octavo_engine.structured import Spec

T = TypeVar("T")
B = TypeVar("B", bound=Body)


def build_routes(context: Context) -> APIRouter:
    """All routes of the API port."""
    router, routes = APIRouter(), Routes(context)
    router.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"])
    router.add_api_route("/v1/completions", routes.completions, methods=["POST"])
    router.add_api_route("/v1/responses", routes.responses, methods=["POST"])
    router.add_api_route("/v1/embeddings", routes.embeddings, methods=["POST"])
    router.add_api_route("/v1/models", routes.models, methods=["GET"])
    router.add_api_route("/v1/models/{name:path}", routes.model, methods=["GET"])
    router.add_api_route("/tokenize", routes.tokenize, methods=["POST"])
    router.add_api_route("/detokenize", routes.detokenize, methods=["POST"])
    router.add_api_route("/health", routes.health, methods=["GET"])
    return router


@dataclass(frozen=True, slots=True)
class Posted(Generic[B]):
    """A checked body and the request that brought it."""

    body: B
    request: Request
    long: bool

    async def work(self, job: Callable[[], T]) -> T:
        """Do `job` here, or in a thread when the body is long: tokenizing a megabyte takes a second."""
        return await asyncio.to_thread(job) if self.long else job()


class Routes:
    """The handlers, bound to what they work with."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        posted = await self._read(request, ChatBody)
        body, caller = posted.body, self._caller("chatcmpl", request)
        requests, reading = await posted.work(lambda: self._of_chat(body, caller))
        await self._keep_to_form(posted, body, requests, reading)
        form = ChatForm(
            self._context.tokenizer,
            logprobs=bool(body.logprobs),
            reader=None if reading.verbatim else lambda index: reading.reader(f"{caller.name}-{index}"),
            reasoning=body.include_reasoning,
        )
        writer = Writer(
            id=caller.name,
            model=self._context.model_name,
            form=form,
            beside=lambda: scores_field(requests[0], body.prompt_logprobs, self._context.tokenizer),
        )
        return await self._written(posted, requests, writer)

    async def completions(self, request: Request) -> Response:
        """Continue prompts."""
        posted = await self._read(request, CompletionBody)
        body, caller = posted.body, self._caller("cmpl", request)
        requests, echoed = await posted.work(lambda: self._of_completion(body, caller))
        await self._keep_to_form(posted, body, requests, Reading())
        tokenizer, scored = self._context.tokenizer, scored_requests(requests, body)
        form = CompletionForm(
            tokenizer,
            logprobs=body.logprobs is not None,
            top=body.logprobs or 0,
            skip_special_tokens=body.skip_special_tokens,
            echoes=echoed,
            beside=lambda index: scores_field(scored[index], body.prompt_logprobs, tokenizer),
        )
        return await self._written(posted, requests, Writer(id=caller.name, model=self._context.model_name, form=form))

    async def responses(self, request: Request) -> Response:
        """Answer a conversation, in OpenAI's newer form."""
        posted = await self._read(request, ResponsesBody)
        body, caller = posted.body, self._caller("resp", request)
        try:
            chat = await posted.work(lambda: as_chat(body))
            requests, reading = await posted.work(lambda: self._of_chat(chat, caller))
            await self._keep_to_form(posted, chat, requests, reading, our_name)
            reader = reading.reader(f"{caller.name}-0")
            writer = ResponseWriter(caller.name, self._context.model_name, body, reader)
            answering = Answering(self._context.engine, requests, request.receive)
            return await self._answer(request, answering, writer.answer, writer if body.stream else None)
        except RequestError as error:
            raise in_our_names(error) from None

    async def embeddings(self, request: Request) -> Response:
        """Embed texts."""
        posted = await self._read(request, EmbeddingBody)
        body, caller, context = posted.body, self._caller("embd", request), self._context
        requests = await posted.work(
            lambda: embedding_requests(body, context.tokenizer, caller, context.limits, context.embeddings)
        )
        writer = EmbeddingWriter(context.model_name, body, requests)
        # Of a long list, no more at a time than leave room in the queue for others.
        at_once = max(1, min(TEXTS_AT_ONCE, context.engine.max_waiting_requests // 2))
        answering = Answering(context.engine, requests, request.receive, at_once=at_once)
        return await self._answer(request, answering, writer.answer, None)

    async def models(self) -> dict[str, Any]:
        """The one model there is."""
        return {"object": "list", "data": [self._model()]}

    async def model(self, name: str) -> dict[str, Any]:
        """The one model, by its name."""
        self._check_model(name)
        return self._model()

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a prompt or a conversation."""
        posted = await self._read(request, TokenizeBody)
        ids = await posted.work(lambda: self._token_ids(posted.body))
        request.state.visit.spend(len(ids))
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": self._context.limits.max_model_len})

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        posted = await self._read(request, DetokenizeBody)
        check_ids(posted.body.tokens, "tokens", self._context.limits)
        request.state.visit.spend(len(posted.body.tokens))
        tokenizer, ids = self._context.tokenizer, posted.body.tokens
        return JSONResponse({"prompt": await posted.work(lambda: tokenizer.decode(ids, skip_special_tokens=False))})

    async def health(self) -> Response:
        """For load balancers: 200 while new requests are welcome."""
        lifecycle = self._context.lifecycle
        return JSONResponse({"status": lifecycle.state.value}, 200 if lifecycle.ready and lifecycle.alive else 503)

    # -- the steps -----------------------------------------------------------------------------------------------------

    async def _read(self, request: Request, schema: type[B]) -> Posted[B]:
        request.state.visit.begin()  # before any work is done for it
        raw = await read_json(request, self._context.max_body_bytes, self._context.body_seconds)
        body = await asyncio.to_thread(parse_body, schema, raw.value) if raw.long else parse_body(schema, raw.value)
        name = getattr(body, "model", None)
        if name is not None:
            self._check_model(name)
        return Posted(body, request, raw.long)

    def _check_model(self, name: str) -> None:
        if name != self._context.model_name:
            message = f"the model {name[:128]!r} is not served here; ask GET /v1/models"
            raise Refusal(404, message, param="model", code="model_not_found")

    def _caller(self, kind: str, request: Request) -> Caller:
        """Who asks, under the id that the answer will have."""
        state = request.state
        namespace = "" if self._context.share_prefixes else state.namespace
        name = f"{kind}-{uuid.uuid4().hex}"
        return Caller(name=name, arrival=state.arrival, namespace=namespace, x_request_id=state.request_id)

    def _of_chat(self, body: ChatBody, caller: Caller) -> tuple[list[EngineRequest], Reading]:
        """The requests of a conversation, and how their answers are read."""
        context = self._context
        prompts = chat_prompts(body, context.tokenizer, context.limits, context.formats)
        reading = reading_of(body, prompts[0], context.tokenizer, context.formats)
        return make_requests(body, prompts, caller, context.limits, show_special=reading.special), reading

    def _of_completion(self, body: CompletionBody, caller: Caller) -> tuple[list[EngineRequest], list[Echo]]:
        """The requests of prompts, and what each choice begins with."""
        context = self._context
        prompts = completion_prompts(body, context.tokenizer, context.limits)
        requests = make_requests(body, prompts, caller, context.limits)
        texts = echoes(body, prompts, context.tokenizer)
        return requests, [Echo(*pair) for pair in zip(texts, scored_requests(requests, body), strict=False)]

    async def _keep_to_form(
        self,
        posted: Posted[B],
        body: ChatBody | CompletionBody,
        requests: list[EngineRequest],
        reading: Reading,
        named: Callable[[str], str] = str,
    ) -> None:
        """Give the requests the form that a body asks for, if it does. `named`: the field, as the client knows it."""
        form = await posted.work(lambda: self._form_of(body, reading))
        thought = thought_before(form, self._context.tokenizer, thinking=reading.thinking)
        form = form and replace(form, param=named(form.param))
        await hold_to_form(form, requests, self._context.forms, thought)

    def _form_of(self, body: ChatBody | CompletionBody, reading: Reading) -> Spec | None:
        form = spec_of(body)
        check_calls(form, calls=reading.calls)
        if form is not None or not isinstance(body, ChatBody):
            return form
        return call_form(body, reading.format, self._context.tokenizer)

    async def _written(
        self, posted: Posted[ChatBody] | Posted[CompletionBody], requests: list[EngineRequest], writer: Writer
    ) -> Response:
        """The answer to a chat or a completion."""
        body, receive = posted.body, posted.request.receive
        answering = Answering(self._context.engine, requests, receive, copies=body.copies, kept=body.kept)
        # A client that asked for the usage finds the field in every chunk, empty until the last.
        chunks = Chunks(writer, {"usage": None} if body.include_usage else {})
        if body.continuous_usage:
            chunks = CountedChunks(writer, requests, body.copies)
        return await self._answer(posted.request, answering, writer.answer, chunks if body.stream else None)

    async def _answer(self, request: Request, answering: Answering, write: Write, events: Events | None) -> Response:
        """Streamed if there are `events` to write, else plain."""
        exchange: Exchange = request.state.exchange
        exchange.requests, exchange.copies = answering.requests, answering.copies
        exchange.streams = events is not None
        try:
            request.state.visit.reserve(exchange)
            return await (answering.plain(write) if events is None else answering.stream(events, exchange.fail))
        except (Overloaded, Draining):
            if answering.requests[0].events[-1].what is EventKind.REJECTED:  # else taken, and dismissed by the drain
                self._context.on_refused(answering.requests)
            raise

    def _token_ids(self, body: TokenizeBody) -> list[int]:
        tokenizer = self._context.tokenizer
        if body.messages is None:
            return tokenizer.encode(body.prompt or "", add_special_tokens=body.add_special_tokens)
        tools = [tool.for_template() for tool in body.tools or ()]
        messages = [message.for_template() for message in body.messages]
        return tokenizer.render_chat(messages, body.add_generation_prompt, tools=tools)

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._context.model_name,
            "object": "model",
            "created": self._context.created,
            "owned_by": "octavo",
            "max_model_len": self._context.limits.max_model_len,
        }
