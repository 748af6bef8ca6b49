"""The process in which forms are tried, with a grammar engine that does not end, grows or breaks down on demand.

python stubborn_trial.py SOCKET
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from llguidance import LLTokenizer

from octavo_engine.structured import trial_process
from octavo_engine.structured.grammar import Grammar, compile_spec
from octavo_engine.structured.spec import Spec

SPIN, SLEEP, GROW, BREAK_DOWN = "spin", "sleep", "grow", "break down"


def stubborn(spec: Spec, tokenizer: LLTokenizer, end_ids: Sequence[int]) -> Grammar:
    match spec.text:
        case "spin":
            while True:
                pass
        case "sleep":
            time.sleep(3600)
        case "grow":
            bytearray(4 << 30)
        case "break down":
            os.abort()
    return compile_spec(spec, tokenizer, end_ids)


if __name__ == "__main__":
    trial_process.compile_spec = stubborn
    sys.exit(trial_process.main(sys.argv[1:]))
