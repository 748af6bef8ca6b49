"""schemathesis over the API, by the document that a server publishes; and a document cut to what must be taken."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from client_environments import Clients, environment
from patience import PATIENCE_SECONDS

Json = dict[str, Any]
FOR_ALL = (
    # Bodies that are valid and yet too much for this model, and fields that exclude each other, are a 400: no schema
    # says so. What has to be taken is asked with a document of its own.
    "--exclude-checks=positive_data_acceptance",
    "--mode=all",
)
FOR_GOOD = ("--mode=positive",)
# A list of more than 4,096 messages is longer than a body may be: 413 refuses it, too.
SETTINGS = """
hooks = {hooks}

[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422"]
"""
HOOKS = Path(__file__).parents[1] / "clients" / "scripts" / "schemathesis_hooks.py"

# Listed, since 1.0 is an integer for a schema and none for the server.
_LITTLE: Json = {"enum": [1, 2, 3]}
_SEVERAL: Json = {"n": _LITTLE, "top_k": {"enum": [-1, 0, 1, 40, None]}, "seed": {"enum": [-1, 0, 2**63 - 1, None]}}
_OPTIONAL = frozenset({*_SEVERAL, "logprobs"})
_WORDS: Json = {"type": "string", "minLength": 1, "maxLength": 40}
_IDS: Json = {"type": "array", "items": {"enum": [0, 1, 7, 300, 49151]}, "minItems": 1, "maxItems": 20}
_SPOKEN: Json = {
    "type": "object",
    "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": _WORDS},
    "required": ["role", "content"],
    "additionalProperties": False,
}
_SAMPLED = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("stop", "include_stop_str_in_output", "skip_special_tokens", "stream", "user", "cache_salt"),
)
# For each body the fields that never exclude each other, with values that this model has room for.
_GOOD: dict[str, tuple[Json, tuple[str, ...]]] = {
    "ChatBody": (
        {
            "messages": {"type": "array", "items": _SPOKEN, "minItems": 1, "maxItems": 3},
            "max_tokens": _LITTLE,
            **_SEVERAL,
        },
        (*_SAMPLED, "model", "logprobs", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    ),
    "CompletionBody": (
        {
            "prompt": {"anyOf": [_WORDS, _IDS]},
            "max_tokens": _LITTLE,
            "logprobs": {"enum": [0, 5, 20, None]},
            **_SEVERAL,
        },
        (*_SAMPLED, "model", "add_special_tokens"),
    ),
    "ResponsesBody": (
        {"input": _WORDS, "max_output_tokens": _LITTLE},
        ("model", "instructions", "temperature", "top_p", "stream", "metadata", "user"),
    ),
    "EmbeddingBody": (
        {"input": {"anyOf": [_WORDS, _IDS]}},
        ("model", "encoding_format", "add_special_tokens", "cache_salt", "user"),
    ),
    "TokenizeBody": ({"prompt": _WORDS}, ("model", "add_special_tokens")),
    "DetokenizeBody": ({"tokens": _IDS}, ("model",)),
}


def that_must_be_taken(document: Json) -> Json:
    """The document with bodies of which each is good; what remains of a field's values is valid by the whole, too."""
    good = deepcopy(document)
    schemas = good["components"]["schemas"]
    for path, ways in good["paths"].items():
        if "post" in ways:
            name = ways["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            schemas[name] = _narrowed(schemas[name], *_GOOD[name], path)
    return good


def _narrowed(schema: Json, given: Json, kept: tuple[str, ...], path: str) -> Json:
    lost = {*given, *kept} - set(schema["properties"])
    assert not lost, f"{path} has no {lost} any more"
    fields = {name: schema["properties"][name] for name in kept} | given
    required = [*{*schema.get("required", ()), *(given.keys() - _OPTIONAL)}]
    return {"type": "object", "properties": fields, "required": sorted(required), "additionalProperties": False}


def start(clients: Clients, document: Json, url: str, folder: Path, *flags: str) -> subprocess.Popen[str]:
    """Begin a run; what it writes comes out of its standard output. `folder` is its own."""
    described = folder / "openapi.json"
    described.write_text(json.dumps(document))
    (folder / "schemathesis.toml").write_text(SETTINGS.format(hooks=json.dumps(str(HOOKS))))
    command = [
        *(str(clients.program("st")), "run", str(described), f"--url={url}", *flags),
        *("--phases=examples,coverage,fuzzing", "--generation-deterministic"),
        *("--suppress-health-check=all", "--continue-on-failure", "--no-shrink"),
        f"--request-timeout={PATIENCE_SECONDS:g}",
        *("--warnings=off", "--no-color", "--output-sanitize=false"),
    ]
    variables: Mapping[str, str] = environment(str(folder), {})
    return subprocess.Popen(
        command, cwd=folder, env=dict(variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
