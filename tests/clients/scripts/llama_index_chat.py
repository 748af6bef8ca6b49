"""LlamaIndex's OpenAILike against a server; prints what it has seen as JSON."""

import json

# docs: begin
import os
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

settings = {
    "model": os.environ["OCTAVO_MODEL"],
    "api_base": os.environ["OCTAVO_URL"],  # http://HOST:8000/v1
    "api_key": os.environ["OCTAVO_API_KEY"],
    "context_window": 1024,
    "temperature": 0,
    "max_tokens": 24,
    "max_retries": 0,
}
llm = OpenAILike(**settings, is_chat_model=True, is_function_calling_model=True)
continuing = OpenAILike(**settings, is_chat_model=False)  # asks /v1/completions


def get_weather(city: Literal["Paris", "Nice", "Lyon"]) -> str:
    """How warm it is in a city."""
    return f"21 degrees in {city}"


weather = FunctionTool.from_defaults(get_weather)
# docs: end

QUESTION = "What is the capital of France?"
MESSAGES = [ChatMessage(role="user", content=QUESTION)]


def completion() -> dict:
    prompt = "The capital of France is"
    pieces = list(continuing.stream_complete(prompt, max_tokens=4))
    text = continuing.complete(prompt, max_tokens=4).text
    return {"text": text, "streamed": "".join(piece.delta for piece in pieces)}


def calls() -> list:
    asked = {"user_msg": QUESTION, "tool_required": True, "max_tokens": 60, "allow_parallel_tool_calls": False}
    whole = llm.chat_with_tools([weather], **asked)
    *_, last = llm.stream_chat_with_tools([weather], **asked)
    found = [llm.get_tool_calls_from_response(response) for response in (whole, last)]
    return [[[call.tool_name, call.tool_kwargs] for call in each] for each in found]


seen = {
    "text": llm.chat(MESSAGES).message.content,
    "streamed": "".join(piece.delta or "" for piece in llm.stream_chat(MESSAGES)),
    "completed": llm.complete(QUESTION).text,
    "completion": completion(),
    "calls": calls(),
}
print(json.dumps(seen))
