"""A checkpoint that cannot be served ends the process: its culprit in the last words, exit code 2, nothing served.

What else lies beside the weights (pickles, code, fields that name code) is neither opened nor imported, and nobody is
asked over a network.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import refused_starts
from patience import PATIENCE_SECONDS
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine
WEIGHTS = "model.safetensors"
GATE = "model.layers.2.mlp.gate_proj.weight"


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def edit_config(place: Path, **changes: Any) -> None:
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | changes))


def edit_tensors(place: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(place / WEIGHTS)
    change(tensors)
    save_file(tensors, place / WEIGHTS)


def cut(place: Path) -> None:
    data = (place / WEIGHTS).read_bytes()
    (place / WEIGHTS).write_bytes(data[: len(data) - 100])


def overlap(place: Path) -> None:
    data = (place / WEIGHTS).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header[GATE]["data_offsets"] = header["lm_head.weight"]["data_offsets"]
    text = json.dumps(header).encode()
    (place / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def only_pickles(place: Path) -> None:
    (place / WEIGHTS).unlink()
    tempt(place)


def tempt(place: Path) -> None:
    """Everything that other loaders would run."""
    mark = place / "mark"
    for name in ("pytorch_model.bin", "consolidated.00.pth", "optimizer.pt"):
        (place / name).write_bytes(pickle.dumps(Trap(mark)))
    for name in ("modeling_tiny.py", "configuration_tiny.py", "tokenization_tiny.py", "setup.py", "sitecustomize.py"):
        (place / name).write_text(f"open({str(mark)!r}, 'w').close()\n")
    edit_config(
        place,
        auto_map={
            "AutoConfig": "configuration_tiny.TinyConfig",
            "AutoModelForCausalLM": "org/name--modeling_tiny.Tiny",
        },
        trust_remote_code=True,
        custom_pipelines={"text-generation": {"impl": "modeling_tiny.Pipeline"}},
        _attn_implementation="org/kernels",
        _attn_implementation_internal="org/kernels:attention",
        attn_implementation="org/kernels",
    )
    tokenizer = {"auto_map": {"AutoTokenizer": ["tokenization_tiny.Tiny", None]}, "tokenizer_class": "TinyTokenizer"}
    (place / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def other_decoder(place: Path) -> None:
    tokenizer = json.loads((place / "tokenizer.json").read_text())
    (place / "tokenizer.json").write_text(json.dumps(tokenizer | {"decoder": {"type": "Rot13"}}))


def too_many_tokens(place: Path) -> None:
    (place / "tokenizer.json").write_text(words(250).to_str())


def words(count: int) -> Tokenizer:
    """A tokenizer of so many whole words."""
    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(count)}, unk_token="w0"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.ByteLevel()
    return tokenizer


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (cut, rf"CheckpointInvalid: {WEIGHTS} is damaged"),
    "overlapping": (overlap, rf"CheckpointInvalid: {WEIGHTS} is damaged: .*tensor \S+"),
    "missing": (
        lambda place: edit_tensors(place, lambda t: t.pop(GATE)),
        f"CheckpointInvalid: tensor {GATE} is missing",
    ),
    "extra": (
        lambda place: edit_tensors(place, lambda t: t.update({"model.layers.9.x": torch.zeros(2)})),
        "CheckpointInvalid: tensor model.layers.9.x is in the checkpoint",
    ),
    "wrong shape": (
        lambda place: edit_tensors(place, lambda t: t.update({GATE: torch.zeros(79, 48)})),
        rf"CheckpointInvalid: tensor {GATE} has the shape \[79, 48\]; the config says \[80, 48\]",
    ),
    "unknown architecture": (
        lambda place: edit_config(place, architectures=["MambaForCausalLM"]),
        "ModelUnsupported: architecture 'MambaForCausalLM' .*LlamaForCausalLM, MistralForCausalLM, Qwen2",
    ),
    "negative size": (
        lambda place: edit_config(place, intermediate_size=-80),
        "CheckpointInvalid: .*intermediate = -80",
    ),
    "no number": (
        lambda place: edit_config(place, rms_norm_eps="1e-6"),
        r"CheckpointInvalid: config\.json: rms_norm_eps",
    ),
    "unknown rotation": (
        lambda place: edit_config(place, rope_parameters={"rope_type": "su"}),
        "ModelUnsupported: rope scaling 'su'",
    ),
    "pickles alone": (only_pickles, "ModelUnsupported: .*pickles"),
    "no tokenizer": (lambda place: (place / "tokenizer.json").unlink(), r"ModelUnsupported: .*tokenizer\.json"),
    "unknown decoder": (other_decoder, r"CheckpointInvalid: tokenizer\.json"),
    "special token of another type": (
        lambda place: (place / "tokenizer_config.json").write_text('{"eos_token": 7}'),
        r"CheckpointInvalid: tokenizer_config\.json: eos_token is 7",
    ),
    "template of another type": (
        lambda place: (place / "tokenizer_config.json").write_text('{"chat_template": {"default": "x"}}'),
        r"CheckpointInvalid: tokenizer_config\.json: chat_template",
    ),
    "template that is no text": (
        lambda place: (place / "chat_template.jinja").write_bytes(b"\xff\xfe"),
        r"CheckpointInvalid: chat_template\.jinja is no text",
    ),
    "end token of another type": (
        lambda place: edit_config(place, eos_token_id="</s>") or (place / "generation_config.json").unlink(),
        r"CheckpointInvalid: config\.json: eos_token_id",
    ),
    "too many tokens": (too_many_tokens, "ModelUnsupported: the tokenizer has 250 tokens, but .* only 199"),
    "sampling out of bounds": (
        lambda place: (place / "generation_config.json").write_text('{"temperature": -3}'),
        r"CheckpointInvalid: generation_config\.json: temperature",
    ),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each checkpoint, and of a sound one with temptations in it."""
    home = tmp_path_factory.mktemp("checkpoints")
    model, places = make_model("llama"), {}
    for name, (spoil, _) in {**REFUSED, "sound": (tempt, "")}.items():
        places[name] = save_model(model, home / name.replace(" ", "_"))
        (places[name] / "tokenizer.json").write_text(words(199).to_str())
        spoil(places[name])
    log = home / "termination-log"
    command = [sys.executable, "-O", refused_starts.__file__, str(log), *map(str, places.values())]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OCTAVO_CPU_KERNELS": "off"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=environment
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"code"')]
    assert (done.returncode, len(lines)) == (0, len(places)), done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    marks = [{"marked": (place / "mark").exists()} for place in places.values()]
    return {name: answer | mark for name, answer, mark in zip(places, lines, marks, strict=True)}


@pytest.mark.parametrize("name", REFUSED)
def test_it_ends_with_a_reason_and_serves_nothing(name: str, answers: dict[str, dict[str, Any]]) -> None:
    answer = answers[name]
    assert answer["code"] == 2
    assert re.match(REFUSED[name][1], answer["words"]), answer["words"]
    assert (answer["seen"], answer["served"], answer["marked"]) == ([], [], False)


def test_what_lies_beside_the_weights_is_left_alone(answers: dict[str, dict[str, Any]]) -> None:
    answer = answers["sound"]
    assert (answer["code"], answer["problem"]) == (0, "")
    assert (answer["seen"], answer["marked"]) == ([], False)
