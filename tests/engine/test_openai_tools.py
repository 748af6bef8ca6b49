"""Calls that have to be made, by the real engine and the real model, in the process that users start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from patience import PATIENCE_SECONDS
from scripted_talk import HERMES
from serving_process import serving_process

pytestmark = pytest.mark.engine

CITIES = ["Paris", "Nice", "Lyon"]
CITY = {"type": "object", "properties": {"city": {"enum": CITIES}}, "required": ["city"], "additionalProperties": False}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY, "strict": True}}]


def test_a_model_that_knows_no_tools_calls_one_when_it_has_to(smollm2_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text(HERMES)
    flags = (f"--chat-template={tmp_path}/template.jinja", "--max-model-len=512", "--max-num-seqs=4")
    with serving_process(smollm2_gguf, "--served-model-name=smollm2", *flags) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_SECONDS)
        asked: Any = {"model": "smollm2", "messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS}
        asked |= {
            "temperature": 1.0,
            "seed": 3,
            "max_tokens": 60,
            "tool_choice": "required",
            "parallel_tool_calls": False,
        }
        choice = client.chat.completions.create(**asked).choices[0]
        (call,) = choice.message.tool_calls or ()
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
        assert json.loads(call.function.arguments)["city"] in CITIES
        chunks = client.chat.completions.create(**asked, stream=True)
        parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
        assert "".join(part.function.arguments for part in parts) == call.function.arguments
