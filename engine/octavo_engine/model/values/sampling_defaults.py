"""What a model's authors set for sampling, for requests that do not say: `generation_config.json`, or GGUF metadata.

Bounds are those of the API's fields of the same names. What else such a file holds steers transformers alone (beams,
lengths that count the prompt, output switches) and has no counterpart here; end tokens are read with the spec.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from octavo_engine.model.fields import Fields

MAX_TEMPERATURE = 2.0
MAX_REPETITION_PENALTY = 2.0
GGUF = "general.sampling."


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Used where a request leaves the field out. Without a word from the model they are OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None  # None: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None  # of a chat; None: what the window leaves

    def __str__(self) -> str:
        """Those that are not OpenAI's: `temperature 0.6, top_p 0.9`."""
        set_by_model = [item.name for item in fields(self) if getattr(self, item.name) != item.default]
        return ", ".join(f"{name} {getattr(self, name):g}" for name in set_by_model)


OPENAI = SamplingDefaults()


def from_generation_config(config: Fields) -> SamplingDefaults:
    """From `generation_config.json`; raises CheckpointInvalid naming the field.

    `do_sample: false`, where somebody wrote it, means the likeliest token. Where it is left out the fields beside it
    count all the same: many published models have a temperature and no word on sampling.
    """
    greedy = not config.flag("do_sample", True)
    return SamplingDefaults(
        temperature=0.0 if greedy else config.between("temperature", 0.0, MAX_TEMPERATURE, 1.0),
        top_p=config.positive("top_p", 1.0, 1.0),
        top_k=_top_k(config, "top_k"),
        min_p=config.between("min_p", 0.0, 1.0, 0.0),
        repetition_penalty=config.positive("repetition_penalty", MAX_REPETITION_PENALTY, 1.0),
        max_tokens=_max_tokens(config),
    )


def from_gguf(metadata: Fields) -> SamplingDefaults:
    """From a GGUF file's `general.sampling.*`; raises CheckpointInvalid naming the key."""
    return SamplingDefaults(
        temperature=metadata.between(GGUF + "temp", 0.0, MAX_TEMPERATURE, 1.0),
        top_p=metadata.positive(GGUF + "top_p", 1.0, 1.0),
        top_k=_top_k(metadata, GGUF + "top_k"),
        min_p=metadata.between(GGUF + "min_p", 0.0, 1.0, 0.0),
        repetition_penalty=metadata.positive(GGUF + "penalty_repeat", MAX_REPETITION_PENALTY, 1.0),
    )


def _top_k(source: Fields, key: str) -> int | None:
    """0 and -1 are two spellings of "all"."""
    value = source.integer(key, 0)
    if value < -1:
        raise source.wrong(key, value, "must be -1, 0 or more")
    return value if value > 0 else None


def _max_tokens(config: Fields) -> int | None:
    value = config.integer("max_new_tokens", 0)
    if value < 0:
        raise config.wrong("max_new_tokens", value, "must be positive")
    return value or None
