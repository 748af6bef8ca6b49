"""What docs/SCHEDULING.md says of the code is there: functions, reasons, flags and their defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo_engine.batch import SCORED_ROWS
from octavo_engine.config import EngineConfig, serve_parser
from octavo_engine.engine import Engine
from octavo_engine.request import FinishReason, PreemptReason, RejectReason, Request, WaitReason
from octavo_engine.scheduling.cache_aware import LOOKS, MIN_SHARED_TOKENS, CacheAwareQueue
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.lookup import FIRST_TRUST, LEARNING_RATE, LONG, SHORT
from octavo_engine.scheduling.pace import Pace
from octavo_engine.scheduling.policy import Policy
from octavo_engine.scheduling.scheduler import Scheduler
from octavo_engine.server.schemas import MAX_PRIORITY

TEXT = (Path(__file__).parents[3] / "docs" / "SCHEDULING.md").read_text(encoding="utf-8")
CLASSES = {kind.__name__: kind for kind in (Scheduler, CacheAwareQueue, KVCache, Policy, Pace, Engine, Request)}


def test_every_function_it_names_is_there():
    named = re.findall(rf"`({'|'.join(CLASSES)})\.(\w+)`", TEXT)
    assert len(named) >= 10
    for kind, name in named:
        assert hasattr(CLASSES[kind], name), f"{kind}.{name}"


def test_every_flag_it_names_is_one():
    flags = {flag for action in serve_parser()._actions for flag in action.option_strings}
    named = set(re.findall(r"--[a-z][a-z-]+", TEXT))
    assert len(named) >= 10
    assert named <= flags


@pytest.mark.parametrize("reason", [*WaitReason, *PreemptReason, RejectReason.QUEUE_FULL, FinishReason.QUEUE_DEADLINE])
def test_every_reason_has_its_line(reason: str):
    assert re.search(rf"^\| .*`{reason}`", TEXT, re.MULTILINE)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (Path(__file__).parents[3] / "docs" / target).exists(), target


def test_its_numbers_are_the_codes():
    config = EngineConfig(model="m")
    assert f"`--scheduling-ageing-seconds` ({config.scheduling_ageing_seconds:g})" in TEXT
    assert f"`--max-decode-slowdown` ({config.max_decode_slowdown:g})" in TEXT
    assert f"`--max-step-seconds` ({config.max_step_seconds:g})" in TEXT
    assert f"`--num-speculative-tokens` ({config.num_speculative_tokens})" in TEXT
    assert f"`--max-num-seqs` and {SCORED_ROWS}" in TEXT
    assert (LONG, SHORT, FIRST_TRUST, LEARNING_RATE) == (4, 2, 0.5, 0.1)  # which it says in words
    assert f"at least {MIN_SHARED_TOKENS} tokens" in TEXT
    assert f"no more than {LOOKS} requests" in TEXT
    assert f"-{MAX_PRIORITY} to {MAX_PRIORITY}" in TEXT
