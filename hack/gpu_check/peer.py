"""transformers under the check: `generate` with all requests as one static batch, which is the best case for it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.generation import StoppingCriteria

from gpu_check.loads import Load
from gpu_check.results import TRANSFORMERS, Timing


def config_of(sizes: dict[str, Any]) -> Any:
    """A Llama of those sizes, with random weights."""
    config = transformers.AutoConfig.for_model("llama", **sizes)
    config.architectures = ["LlamaForCausalLM"]
    return config


def write_config(sizes: dict[str, Any], dtype: torch.dtype, folder: Path) -> None:
    """The config.json of such a model."""
    config = config_of(sizes)
    config.dtype = dtype
    config.save_pretrained(folder)


def random_model(sizes: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Any:
    """The model itself, made on the device."""
    torch.manual_seed(0)
    with device:
        return transformers.AutoModelForCausalLM.from_config(config_of(sizes), dtype=dtype).eval()


class StepTimes(StoppingCriteria):  # type: ignore[misc]
    """Notes the time after each token, and stops nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        """Waits for the device, as `generate` does by itself after each token."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@dataclass(frozen=True)
class Timed:
    """Times a model with a load."""

    model: Any

    @torch.inference_mode()
    def __call__(self, load: Load) -> Timing:
        """The prompts, then as many tokens as Octavo gives in its steps."""
        steps = StepTimes(self.model.device)
        began = time.perf_counter()
        _generate(self.model, load, load.steps + 1, [steps])
        first, *_, last = steps.times
        return Timing(TRANSFORMERS, load, first - began, last - first)


@torch.inference_mode()
def answers(model: Any, load: Load) -> list[list[int]]:
    """Greedy tokens of the load's prompts."""
    found: list[list[int]] = _generate(model, load, load.steps, [])[:, load.prompt :].tolist()
    return found


def _generate(model: Any, load: Load, tokens: int, criteria: list[StepTimes]) -> torch.Tensor:
    prompts = torch.tensor(load.prompts(model.config.vocab_size), device=model.device)
    output: torch.Tensor = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=criteria,
    )
    return output
