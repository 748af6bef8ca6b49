"""The OpenAI API's routes. Each is: read, check, make requests, run them, write the answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from octavo_engine.errors import Draining, Overloaded
from octavo_engine.request import EventKind
from octavo_engine.server.answering import Answering
from octavo_engine.server.answers import ChatForm, CompletionForm, Form, Writer
from octavo_engine.server.body import read_json
from octavo_engine.server.context import Context
from octavo_engine.server.intake import Caller, chat_prompts, check_ids, completion_prompts, make_requests
from octavo_engine.server.replies import Refusal
from octavo_engine.server.schemas import Body, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, parse_body

T = TypeVar("T")
B = TypeVar("B", bound=Body)
G = TypeVar("G", ChatBody, CompletionBody)


def build_routes(context: Context) -> APIRouter:
    """All routes of the API port."""
    router, routes = APIRouter(), Routes(context)
    router.add_api_route("/v1/chat/completions", routes.chat, methods=["POST"])
    router.add_api_route("/v1/completions", routes.completions, methods=["POST"])
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
        form = ChatForm(self._context.tokenizer, logprobs=bool(posted.body.logprobs))
        return await self._answer(posted, "chatcmpl", form, self._chat_prompts)

    async def completions(self, request: Request) -> Response:
        """Continue prompts."""
        posted = await self._read(request, CompletionBody)
        form = CompletionForm(self._context.tokenizer, logprobs=posted.body.logprobs is not None)
        return await self._answer(posted, "cmpl", form, self._completion_prompts)

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
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": self._context.limits.max_model_len})

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        posted = await self._read(request, DetokenizeBody)
        check_ids(posted.body.tokens, "tokens", self._context.limits)
        tokenizer, ids = self._context.tokenizer, posted.body.tokens
        return JSONResponse({"prompt": await posted.work(lambda: tokenizer.decode(ids, skip_special_tokens=False))})

    async def health(self) -> Response:
        """For load balancers: 200 while new requests are welcome."""
        lifecycle = self._context.lifecycle
        return JSONResponse({"status": lifecycle.state.value}, 200 if lifecycle.ready and lifecycle.alive else 503)

    # -- the steps -----------------------------------------------------------------------------------------------------

    async def _read(self, request: Request, schema: type[B]) -> Posted[B]:
        raw = await read_json(request, self._context.max_body_bytes)
        body = await asyncio.to_thread(parse_body, schema, raw.value) if raw.long else parse_body(schema, raw.value)
        name = getattr(body, "model", None)
        if name is not None:
            self._check_model(name)
        return Posted(body, request, raw.long)

    def _check_model(self, name: str) -> None:
        if name != self._context.model_name:
            message = f"the model {name[:128]!r} is not served here; ask GET /v1/models"
            raise Refusal(404, message, param="model", code="model_not_found")

    async def _answer(
        self, posted: Posted[G], kind: str, form: Form, prompts: Callable[[G], list[list[int]]]
    ) -> Response:
        context, body, request = self._context, posted.body, posted.request
        writer = Writer(id=f"{kind}-{uuid.uuid4().hex}", model=context.model_name, form=form)
        namespace = "" if context.share_prefixes else request.state.namespace
        state = request.state
        caller = Caller(name=writer.id, arrival=state.arrival, namespace=namespace, x_request_id=state.request_id)
        requests = await posted.work(lambda: make_requests(body, prompts(body), caller, context.limits))
        answering = Answering(context.engine, requests, writer, body.n or 1, request.receive)
        try:
            return await answering.stream(include_usage=body.include_usage) if body.stream else await answering.plain()
        except (Overloaded, Draining):
            if requests[0].events[-1].what is EventKind.REJECTED:  # else it was taken, and dismissed by the drain
                context.on_refused(requests)
            raise

    def _chat_prompts(self, body: ChatBody) -> list[list[int]]:
        return chat_prompts(body, self._context.tokenizer, self._context.limits)

    def _completion_prompts(self, body: CompletionBody) -> list[list[int]]:
        return completion_prompts(body, self._context.tokenizer, self._context.limits)

    def _token_ids(self, body: TokenizeBody) -> list[int]:
        tokenizer = self._context.tokenizer
        if body.messages is None:
            return tokenizer.encode(body.prompt or "", add_special_tokens=body.add_special_tokens)
        return tokenizer.render_chat([turn.for_template() for turn in body.messages], body.add_generation_prompt)

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._context.model_name,
            "object": "model",
            "created": self._context.created,
            "owned_by": "octavo",
            "max_model_len": self._context.limits.max_model_len,
        }
