"""`kubectl octavo validate`: what the API server would say of a file, without one.

The same sources speak as in the cluster: the models that the schema is generated from, and the CEL rules of the
generated definition, run by a CEL interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cel
from pydantic import ValidationError

from octavo_operator import names
from octavo_operator.crd import spec_schema
from octavo_operator.spec import Spec

Object = dict[str, Any]
_RULES = "x-kubernetes-validations"


def problems(resource: Object) -> list[str]:
    """What is wrong with an InferenceService, each with the field's path; empty when nothing is."""
    found = list(_head_problems(resource))
    spec = resource.get("spec")
    if not isinstance(spec, dict):
        return [*found, "spec: is missing; it needs at least model.source"]
    try:
        Spec.model_validate(spec)
    except ValidationError as error:
        found += [f"spec.{_place(item['loc'])}: {item['msg']}" for item in error.errors(include_url=False)]
        return found  # rules are written for values of the right form
    return [*found, *rule_problems(spec_schema(), spec, "spec")]


def rule_problems(schema: Object, value: Any, path: str) -> Iterator[str]:
    """Rules of the schema that do not hold for a value of the schema's form; null is absent, as for the API server."""
    if isinstance(value, dict):
        value = {key: part for key, part in value.items() if part is not None}
    for rule in schema.get(_RULES, ()):
        if not _holds(rule["rule"], value):
            yield f"{path}: {rule['message']}"
    if isinstance(value, dict):
        for key, part in value.items():
            below = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(below, dict):
                yield from rule_problems(below, part, f"{path}.{key}")
    elif isinstance(value, list) and "items" in schema:
        for index, part in enumerate(value):
            yield from rule_problems(schema["items"], part, f"{path}[{index}]")


def _head_problems(resource: Object) -> Iterator[str]:
    if resource.get("apiVersion") != names.API_VERSION:
        yield f"apiVersion: {resource.get('apiVersion')!r} is not served; write {names.API_VERSION}"
    if not (resource.get("metadata") or {}).get("name"):
        yield "metadata.name: is missing"


def _holds(rule: str, value: Any) -> bool:
    context = cel.Context()
    context.add_variable("self", value)
    # Kubernetes adds functions to CEL's own; of those our rules use one.
    context.add_function("split", lambda text, separator: text.split(separator))
    return bool(cel.evaluate(rule, context))


def _place(parts: tuple[int | str, ...]) -> str:
    """A pydantic location as a path: `engine.env[0].name`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
