"""`/load` as the engine answers it, read by the operator's scraper; paths and ports that both sides spell."""

import pytest
from starlette.responses import JSONResponse

from octavo_engine.batch import SchedulerStats
from octavo_engine.config import ServerConfig
from octavo_engine.request import WaitReason
from octavo_engine.server.lifecycle import Lifecycle
from octavo_operator import engine_args, names, scraping
from octavo_operator.autoscaling import Load
from octavo_operator.scraping import parse_load
from operator_samples import spec_of

pytestmark = pytest.mark.contract


class Loaded:
    """An engine with every reason to wait."""

    died, arrivals, completions = False, 7, 5

    def stats(self) -> SchedulerStats:
        waiting = dict.fromkeys(WaitReason, 2)
        return SchedulerStats(waiting=waiting, running=3, used_blocks=1, free_blocks=3, oldest_arrival=0)


def read(lifecycle: Lifecycle) -> Load:
    answer = parse_load(JSONResponse(lifecycle.load()).body, "pod")
    assert isinstance(answer, Load), answer
    return answer


def test_a_starting_engines_load_is_read() -> None:
    assert read(Lifecycle(model_name="m", max_num_seqs=4)) == Load(max_num_seqs=4)


def test_a_busy_engines_load_is_read() -> None:
    lifecycle = Lifecycle(model_name="m", max_num_seqs=4, engine=Loaded())  # type: ignore[arg-type]
    lifecycle.serving()
    load = read(lifecycle)
    assert load.waiting == 2 * len(WaitReason)
    assert load.waiting_full == 2 * len(scraping._FULL_REASONS)
    assert (load.running, load.arrivals_total, load.completions_total) == (3, 7, 5)
    assert load.kv_usage == 0.25
    assert load.startup_seconds is not None
    assert (load.limiter, load.limited) == ("", "")


def test_what_limits_an_engine_is_read() -> None:
    lifecycle = Lifecycle(model_name="m", max_num_seqs=4, limit=lambda: {"limiter": "kv", "message": "3 wait."})
    load = read(lifecycle)
    assert (load.limiter, load.limited) == ("kv", "3 wait.")


def test_the_reasons_that_teach_capacity_exist() -> None:
    assert set(scraping._FULL_REASONS) <= {reason.value for reason in WaitReason}


def test_ports_are_the_engines_defaults() -> None:
    assert (ServerConfig().port, ServerConfig().management_port) == (names.API_PORT, names.MANAGEMENT_PORT)


def test_probes_ask_paths_the_engine_has() -> None:
    paths = {probe["httpGet"]["path"] for probe in engine_args.probes(spec_of()).values()}
    assert paths == {"/livez", "/readyz"}
