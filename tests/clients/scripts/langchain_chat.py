"""LangChain's ChatOpenAI against a server; prints what it has seen as JSON."""

import json
from functools import reduce
from operator import add

from langchain_core.messages import HumanMessage, ToolMessage

# docs: begin
import os
from typing import Literal

from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

llm = ChatOpenAI(
    model=os.environ["OCTAVO_MODEL"],
    base_url=os.environ["OCTAVO_URL"],  # http://HOST:8000/v1
    api_key=os.environ["OCTAVO_API_KEY"],
    temperature=0,
    max_retries=0,
)


class GetWeather(BaseModel):
    """How warm it is in a city."""

    city: Literal["Paris", "Nice", "Lyon"]


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    size: Literal["small", "large"]


# A server without a model that calls tools by itself is still held to calls that have to be.
with_tools = llm.bind_tools([GetWeather], tool_choice="required", parallel_tool_calls=False)
of_a_form = llm.with_structured_output(City, method="json_schema")

embeddings = OpenAIEmbeddings(
    model=os.environ["OCTAVO_MODEL"],
    base_url=os.environ["OCTAVO_URL"],
    api_key=os.environ["OCTAVO_API_KEY"],
    check_embedding_ctx_length=False,  # else texts are cut into tokens of one of OpenAI's models
)
# docs: end

QUESTION = "What is the capital of France?"


def calls() -> dict:
    whole = with_tools.invoke(QUESTION, max_tokens=60)
    pieces = list(with_tools.stream(QUESTION, max_tokens=60))
    results = [ToolMessage("21", tool_call_id=call["id"]) for call in whole.tool_calls]
    after = llm.bind_tools([GetWeather]).invoke([HumanMessage(QUESTION), whole, *results], max_tokens=3)
    told = [[[call["name"], call["args"]] for call in message.tool_calls] for message in (whole, reduce(add, pieces))]
    return {"plain": told[0], "streamed": told[1], "pieces": len(pieces), "after": after.text}


answer = llm.invoke(QUESTION)
chunks = list(llm.stream(QUESTION, stream_usage=True))
seen = {
    "text": answer.text,
    "streamed": "".join(chunk.text for chunk in chunks),
    "usage": [answer.usage_metadata["output_tokens"], reduce(add, chunks).usage_metadata["output_tokens"]],
    "batch": [each.text for each in llm.batch([QUESTION, "Say hello."], max_tokens=12)],
    "calls": calls(),
    "structured": of_a_form.invoke("Describe Paris.").model_dump(),
    "embeddings": embeddings.embed_documents(["a text", "another"]),
    "long list": [vector[:1] for vector in embeddings.embed_documents(["a text", "another"] * 40)],
}
print(json.dumps(seen))
