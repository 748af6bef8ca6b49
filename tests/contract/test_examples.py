"""Every example: explained, in the index, valid for the operator, and with arguments that the engine's parser takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from node.config import CHECKOUT
from octavo_engine import config as engine_config
from octavo_operator import engine_args
from octavo_operator.spec import read_spec

pytestmark = pytest.mark.contract

FOLDER = CHECKOUT / "examples"
FILES = sorted(FOLDER.rglob("*.yaml"))
INDEX = (FOLDER / "README.md").read_text()


def name_of(path: Path) -> str:
    return str(path.relative_to(FOLDER))


def services(path: Path) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all(path.read_text())
    return [item for item in documents if item and item["kind"] == "InferenceService"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_it_begins_with_an_explanation(path: Path) -> None:
    first = path.read_text().partition("apiVersion")[0].splitlines()
    assert first
    assert all(line.startswith("# ") for line in first)


def test_the_index_names_each_file_once() -> None:
    for path in FILES:
        name = name_of(path)
        assert INDEX.count(f"]({name})") == (0 if name.startswith("kustomize/team-") else 1), name
    linked = {part.partition(")")[0] for part in INDEX.split("](")[1:]}
    assert linked <= {name_of(path) for path in FILES}


def test_names_are_distinct() -> None:
    """Whoever applies several into one namespace gets several services."""
    names = [service["metadata"]["name"] for path in FILES for service in services(path)]
    assert len(names) == len(set(names)) >= 12


@pytest.mark.parametrize("path", [path for path in FILES if services(path)], ids=name_of)
def test_operator_and_engine_read_it(path: Path) -> None:
    """The operator's models take it, and the engine's parser takes what the operator makes of it."""
    for service in services(path):
        assert service["apiVersion"] == "octavo.dev/v1alpha1"
        spec = read_spec(service)
        arguments = engine_args.container_args(spec, service["metadata"]["name"])
        settings = engine_config.ServeSettings.parse(arguments)
        engine_config.check_bounds(settings.engine)
        engine_config.check_bounds(settings.server)
