"""litellm against a server, under both of its names for one; prints what it has seen as JSON."""

import json

# docs: begin
import os

import litellm


def ask(provider: str, **more):
    """`hosted_vllm` also passes on what OpenAI has no word for; `openai` is the plain client's."""
    return litellm.completion(
        model=f"{provider}/{os.environ['OCTAVO_MODEL']}",
        api_base=os.environ["OCTAVO_URL"],  # http://HOST:8000/v1
        api_key=os.environ["OCTAVO_API_KEY"],
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_retries=0,
        **more,
    )


# docs: end

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Nice"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]


def calls(provider: str) -> list:
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 60}
    whole = ask(provider, **asked)
    built = litellm.stream_chunk_builder(list(ask(provider, stream=True, **asked)))
    messages = [answer.choices[0].message for answer in (whole, built)]
    return [[[call.function.name, call.function.arguments] for call in message.tool_calls] for message in messages]


def told(provider: str) -> dict:
    answer = ask(provider, max_tokens=24)
    chunks = list(ask(provider, max_tokens=24, stream=True))
    return {
        "text": answer.choices[0].message.content,
        "end": answer.choices[0].finish_reason,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "calls": calls(provider),
        "embeddings": embedded(provider),
    }


def embedded(provider: str) -> list:
    answer = litellm.embedding(
        model=f"{provider}/{os.environ['OCTAVO_MODEL']}",
        api_base=os.environ["OCTAVO_URL"],
        api_key=os.environ["OCTAVO_API_KEY"],
        input=["a text", "another"],
    )
    return [item["embedding"] for item in answer.data]


def refusal() -> list:
    try:
        ask("openai", extra_body={"temperature": 9})
    except litellm.BadRequestError as error:
        return [error.status_code, "temperature" in str(error)]
    return []


print(json.dumps({provider: told(provider) for provider in ("hosted_vllm", "openai")} | {"refusal": refusal()}))
