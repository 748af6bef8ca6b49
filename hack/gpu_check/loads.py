"""What is measured: the model's sizes, and the batches."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from octavo_engine.runtime.host import cpu_limit

GB = 10**9
LAYERS, ENOUGH_MEMORY, LEAST_LAYERS = 32, 70 * GB, 4


@dataclass(frozen=True)
class Load:
    """Requests that come at once: prompts of one length, then one token each for so many steps."""

    batch: int
    prompt: int  # tokens
    steps: int

    @property
    def context(self) -> int:
        """Tokens of a sequence in the middle of its steps."""
        return self.prompt + self.steps // 2

    def prompts(self, vocab: int) -> list[list[int]]:
        """Random token ids, above the special ones."""
        draw = random.Random(self.batch)  # noqa: S311 (nothing secret)
        return [[draw.randrange(3, vocab) for _ in range(self.prompt)] for _ in range(self.batch)]


@dataclass(frozen=True)
class Plan:
    """A run of the whole check."""

    sizes: dict[str, Any]  # of the model that is timed, as transformers names them
    loads: tuple[Load, ...]
    exact_sizes: dict[str, Any]  # of the one whose tokens are compared, in float32
    exact_load: Load
    tests: str = "tests/gpu"
    workers: int = min(8, cpu_limit())  # processes for those: most of their time is Triton's compiler


LLAMA = {"tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
EIGHT_BILLION = LLAMA | {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
SMALL = LLAMA | {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,  # large enough that the likeliest token is not a matter of rounding
}
TINY = SMALL | {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
FULL_PLAN = Plan(
    sizes=EIGHT_BILLION,
    loads=tuple(Load(batch, 512, 64) for batch in (1, 8, 64, 256)),
    exact_sizes=SMALL,
    exact_load=Load(4, 100, 48),
)
TINY_PLAN = Plan(
    sizes=TINY,
    loads=(Load(1, 24, 5), Load(3, 24, 5)),
    exact_sizes=TINY,
    exact_load=Load(2, 20, 8),
    tests="tests/gpu/test_launches_cuda.py",  # the quickest to skip
    workers=0,
)


def fitted(plan: Plan, memory_bytes: int) -> Plan:
    """With fewer layers where a device cannot hold all beside 256 sequences: shares of limits stay meaningful."""
    layers = plan.sizes["num_hidden_layers"]
    if memory_bytes >= ENOUGH_MEMORY:
        return plan
    fewer = max(min(LEAST_LAYERS, layers), layers * memory_bytes // ENOUGH_MEMORY)
    return replace(plan, sizes=plan.sizes | {"num_hidden_layers": min(layers, fewer)})
