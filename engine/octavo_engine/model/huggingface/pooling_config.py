"""What a checkpoint's authors make embeddings of: `1_Pooling/config.json`, as sentence-transformers writes it."""

from __future__ import annotations

from pathlib import Path

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import read_json
from octavo_engine.request import Pooling

FILE = "1_Pooling/config.json"
PREFIX = "pooling_mode_"
# A mean over the root of the number of tokens has the direction of the mean, and an embedding has no other length.
MODES = {
    "lasttoken": Pooling.LAST,
    "mean_tokens": Pooling.MEAN,
    "mean_sqrt_len_tokens": Pooling.MEAN,
}


def read_pooling(model: str) -> Pooling | None:
    """What they pool; None where they do not say. Raises CheckpointInvalid, or ModelUnsupported for another mode."""
    file = Path(model) / FILE
    if not file.is_file():
        return None
    config = read_json(file)
    modes = [
        name.removeprefix(PREFIX) for name in config.values if name.startswith(PREFIX) and config.flag(name, False)
    ]
    if len(modes) == 1 and modes[0] in MODES:
        return MODES[modes[0]]
    raise ModelUnsupported(
        f"{FILE} asks for {' and '.join(sorted(modes)) or 'no mode'}; embeddings are of the last token or the mean:"
        " choose one with --embedding-pooling"
    )
