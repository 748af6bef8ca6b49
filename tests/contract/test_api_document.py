"""docs/API.md names every field and every flag-like promise that the schemas make."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_engine.server.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

DOCUMENT = (Path(__file__).parents[2] / "docs" / "API.md").read_text("utf-8")


@pytest.mark.contract
@pytest.mark.parametrize("schema", [ChatBody, CompletionBody, TokenizeBody, DetokenizeBody])
def test_every_field_is_documented(schema: type[ChatBody]) -> None:
    names = {*schema.model_fields, *schema.unsupported}
    assert {name for name in names if f"`{name}`" not in DOCUMENT} == set()
