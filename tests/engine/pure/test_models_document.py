"""docs/MODELS.md tells of every architecture, config field and rope scaling that the code reads, and of no other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.model import fields
from octavo_engine.model.gguf.spec import ARCHITECTURES
from octavo_engine.model.huggingface.config import MAX_WINDOW_LAYERS, WINDOW, spec_from_config
from octavo_engine.model.huggingface.rope_config import KINDS
from octavo_engine.model.values.architecture import FAMILIES, Family

TEXT = (Path(__file__).parents[3] / "docs" / "MODELS.md").read_text("utf-8")
SECTION = TEXT[TEXT.index("## Which models run") : TEXT.index("## Sources")]
SIZES = {
    "vocab_size": 100,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "max_position_embeddings": 128,
}
FACTORS = {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OF_EVERY_ROTATION = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


class Noted(dict[str, Any]):
    """A JSON object that notes who is asked for."""

    def __init__(self, values: dict[str, Any], asked: set[str]) -> None:
        super().__init__(values)
        self.asked = asked

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


class Asked:
    """The fields that reading configs has asked for, by the place they are in."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._place, self.names = place, dict[str, set[str]]()
        plain = fields.Fields

        class Watched(plain):  # type: ignore[misc, valid-type]
            def __init__(watched, values: dict[str, Any], name: str) -> None:  # noqa: N805
                super().__init__(Noted(values, self.names.setdefault(name, set())), name)

        monkeypatch.setattr(fields, "Fields", Watched)

    def read(self, architecture: str, **changes: Any) -> None:
        config = SIZES | {"architectures": [architecture]} | changes
        (self._place / "config.json").write_text(json.dumps(config))
        spec_from_config(self._place)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(tmp_path, monkeypatch)


def table(head: str) -> list[list[str]]:
    """The cells of the table whose first column has that name."""
    begin = SECTION.index(f"| {head} |")
    rows = SECTION[begin : SECTION.index("\n\n", begin)].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def named(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def biases(family: Family) -> str:
    read = {"`attention_bias`": family.reads_attention_bias, "`mlp_bias`": family.reads_mlp_bias}
    always = "query, key, value" if family.qkv_bias else "none"
    return ", ".join(name for name, is_read in read.items() if is_read) or always


def test_every_architecture_has_its_row() -> None:
    rows = {cells[0].strip("`"): cells for cells in table("architecture")}
    assert list(rows) == list(FAMILIES)
    in_gguf = {name: gguf for gguf, name in ARCHITECTURES.items()} | {"MistralForCausalLM": "llama"}
    for name, family in FAMILIES.items():
        _, _, gguf, bias, norms, window = rows[name]
        assert gguf == f"`{in_gguf[name]}`"
        assert (bias, window) == (biases(family), family.window_rule.value)
        assert norms == ("yes" if family.qk_norm else "no")


def test_every_field_that_is_read_is_told_and_no_other(asked: Asked) -> None:
    for name in FAMILIES:
        asked.read(name)
        asked.read(name, use_sliding_window=True, rope_scaling={"type": "yarn", "factor": 2.0})
    told = set[str]().union(*(named(cells[0]) for cells in table("field of `config.json`")))
    assert told | {"architectures"} == asked.names["config.json"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_rotation_is_told_with_its_fields(kind: str, asked: Asked) -> None:
    asked.read("LlamaForCausalLM", rope_parameters={"rope_type": kind} | FACTORS)
    rows = {cells[0].strip("`"): cells[1] for cells in table("`rope_type`, or `type`")}
    assert set(rows) == set(KINDS)
    assert named(rows[kind]) == asked.names["config.json: rope_parameters"] - OF_EVERY_ROTATION


def test_what_is_assumed_of_fields_left_out() -> None:
    rows = {cells[0]: cells[1] for cells in table("field of `config.json`")}
    window = next(text for names, text in rows.items() if "max_window_layers" in names)
    assert window == f"left out: {WINDOW}, false, {MAX_WINDOW_LAYERS}"
    heads = next(text for names, text in rows.items() if "head_dim" in names)
    for name, family in FAMILIES.items():
        if family.kv_heads:
            assert f"{re.split('2|3|For', name)[0]} {family.kv_heads}" in heads
        if family.head_dim:
            assert f"{name.removesuffix('ForCausalLM')} {family.head_dim}" in heads
