"""What a start costs: nothing is imported that serving does not need, and the collector is left out of it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from octavo_engine import cli
from octavo_engine.server.startup import spare_the_collector
from patience import PATIENCE_SECONDS

pytestmark = pytest.mark.engine

# Each takes from a fifth of a second to several, on the way to a first token.
NEEDLESS = {
    "transformers",
    "accelerate",
    "matplotlib",
    "gguf",
    "huggingface_hub",
    "httpx",
    "obstore",
    "triton",
    "pandas",
}
IMPORTED = "import sys, octavo_engine.server.serve; print(*{name.partition('.')[0] for name in sys.modules})"


def test_serving_imports_nothing_that_it_does_not_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    imported = set(done.stdout.split())
    assert {"torch", "fastapi", "octavo_engine"} <= imported, "the list is one of modules"
    assert not imported & NEEDLESS


@pytest.fixture
def collector() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_what_the_start_has_made_is_not_looked_at_again(collector: None) -> None:
    gc.disable()
    spare_the_collector()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 1000


def test_a_start_that_fails_leaves_the_collector_on() -> None:
    assert cli.main(["serve", "/nothing/here", "--api-key-file=/nothing/here"]) == cli.CANNOT_WORK
    assert gc.isenabled()
