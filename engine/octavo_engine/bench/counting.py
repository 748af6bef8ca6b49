"""Who counts the tokens of prompts: the server by `/tokenize` (Octavo and vLLM have it), or a checkpoint at hand."""

from __future__ import annotations

from octavo_engine.bench.client import NotAnswered, fetch_json
from octavo_engine.bench.vocabulary import Count, Json
from octavo_engine.bench.wire import Connections
from octavo_engine.errors import RequestError


def by_server(connections: Connections, model: str) -> Count:
    """Ask the server; it has no answer where it has no such route."""

    async def count(body: Json) -> int | None:
        try:
            counted = (await fetch_json(connections, "POST", "/tokenize", body | {"model": model})).get("count")
        except NotAnswered:
            return None
        return counted if isinstance(counted, int) else None

    return count


def by_checkpoint(path: str) -> Count:
    """Read the tokenizer of a checkpoint, as Octavo serves it; raises StartupError where there is none."""
    from octavo_engine.tokenizer import load_tokenizer  # noqa: PLC0415 (half a second, seldom wanted)

    tokenizer = load_tokenizer(path)

    async def count(body: Json) -> int | None:
        if "messages" not in body:
            return len(tokenizer.encode(body["prompt"], add_special_tokens=body["add_special_tokens"]))
        try:
            return len(tokenizer.render_chat(body["messages"], body["add_generation_prompt"]))
        except RequestError:  # it has no chat template, or one that knows no system message
            return None

    return count
