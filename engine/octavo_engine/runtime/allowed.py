"""What the forms of answers allow, on logits: tokens that may not come next are as unlikely as can be.

Only the rows of requests that have a form are touched. A row whose form fails gets no token, and no other row knows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from octavo_engine.errors import FormTooComplex
from octavo_engine.request import Constraint, Request
from octavo_engine.runtime.transfers import to_device

log = logging.getLogger(__name__)

Bits = npt.NDArray[np.uint8]

AFTER_A_FAULT = "what came before is not allowed, or not known"
NOTHING_ALLOWED = "the answer's form leaves no token that the model has"


def forbid(
    logits: torch.Tensor,
    requests: Sequence[Request],
    guesses: Sequence[Sequence[int]],
    barred: Callable[[Request, int], Sequence[int]],
) -> dict[int, str | FormTooComplex]:
    """Make what must not come next minus infinity, in place, in the rows `[vocab]` of requests that have a form.

    `guesses`: what each row takes for known, see the sampler. `barred`: the tokens that a request, so many guesses on,
    must not end with yet. They stay where the form leaves nothing else: an answer that is complete cannot be longer.
    Returns the rows that get no token, each with the reason: that a guess before is not allowed, say.
    """
    masks: dict[int, Bits] = {}
    faults: dict[int, str | FormTooComplex] = {}
    branch: Constraint | None = None  # of the latest request with guesses
    for row, (request, guessed) in enumerate(zip(requests, guesses, strict=True)):
        if (constraint := request.constraint) is None:
            continue
        if guessed and row - 1 in faults:
            faults[row] = AFTER_A_FAULT
            continue
        try:
            if len(guessed) == 1:
                branch = constraint.branch()
            if guessed and branch is not None:
                told = branch.allowed([*request.tokens, *guessed], request.num_prompt)
            else:
                told = constraint.allowed(request.tokens, request.num_prompt)
            masks[row] = _mask(told, barred(request, len(guessed)), logits.shape[-1])
        except FormTooComplex as error:  # what the client gave, which nobody here can mend
            faults[row] = error
        except Exception as error:  # whatever it is, it is this request's alone
            if not guessed:
                log.warning("request %s: %s", request.id, error)
            faults[row] = str(error)
    if masks:
        _apply(logits, masks)
    return faults


def _mask(allowed: bytes, barred: Sequence[int], width: int) -> Bits:
    """The tokens that may come next, a bit each, `[ceil(width / 8)]`. Raises ValueError when there are none."""
    told = np.frombuffer(allowed, np.uint8)
    mask = np.zeros(-(-width // 8), np.uint8)  # the model has more tokens than the tokenizer, or fewer than the bits
    mask[: len(told)] = told[: len(mask)]
    mask[-1] &= 0xFF >> -width % 8
    longer = mask.copy()
    for token in barred:
        longer[token // 8] &= 0xFF ^ 1 << token % 8
    if longer.any():
        return longer
    if not mask.any():
        raise ValueError(NOTHING_ALLOWED)
    return mask


def _apply(logits: torch.Tensor, masks: dict[int, Bits]) -> None:
    """Bits go to the device, an eighth of what a byte for each token would be, and are looked up there.

    Minus infinity is added: on a processor that takes a tenth of writing it where a mask says so. A logit that is no
    finite number stays none, and its row is told to be unhealthy as any other.
    """
    rows, bits = to_device([np.array(list(masks)), np.stack(list(masks.values()))], logits.device)
    added = _added(logits.device).index_select(0, bits.flatten().int()).view(len(masks), -1)
    logits.index_add_(0, rows, added[:, : logits.shape[-1]])


@cache
def _added(device: torch.device) -> torch.Tensor:
    """For each byte of a mask what is added to its eight tokens' logits, float32 `[256, 8]`."""
    allowed = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(np.where(allowed, 0.0, -math.inf).astype(np.float32)).to(device)
