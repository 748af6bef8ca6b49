"""instructor against a server: pydantic models out of answers, in two modes, with several seeds; prints JSON."""

import json

# docs: begin
import os
from typing import Annotated, Literal

import instructor
import openai
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: Annotated[str, Field(min_length=1, max_length=20)]
    age: Annotated[int, Field(ge=0, le=120)]
    languages: Annotated[list[Literal["de", "en", "fr"]], Field(min_length=1, max_length=2)]


def people(mode: instructor.Mode) -> instructor.Instructor:
    """The server holds answers to the schema in both modes, so that no answer is asked for twice."""
    server = openai.OpenAI(
        base_url=os.environ["OCTAVO_URL"],  # http://HOST:8000/v1
        api_key=os.environ["OCTAVO_API_KEY"],
        max_retries=0,
    )
    return instructor.from_openai(server, mode=mode)


# docs: end

MODES = (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS)
SEEDS = range(3)


def person(client: instructor.Instructor, seed: int) -> dict:
    made = client.create(
        model=os.environ["OCTAVO_MODEL"],
        response_model=Person,
        messages=[{"role": "user", "content": "Anna is 31 and speaks German and English. Who is she?"}],
        temperature=0.9,
        seed=seed,
        max_tokens=120,
        max_retries=1,
    )
    return made.model_dump()


clients = {mode.name: people(mode) for mode in MODES}
print(json.dumps({name: [person(client, seed) for seed in SEEDS] for name, client in clients.items()}))
