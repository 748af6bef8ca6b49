"""Every metric of the engine: its name, what it means, and when it is counted. docs/METRICS.md says how to read it.

Base units, counters rather than rates, one common label `model_name`. Label values come from the enums of `request`, so
nothing that a user sends makes a new series. Recording happens in the step thread; `rejected` is the server's. Gauges
about the queue and the cache are read from the scheduler at scrape, so they are right at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.instruments import Instruments
from octavo_engine.queue_estimate.estimate import QueueEstimate
from octavo_engine.queue_estimate.speed import Expected
from octavo_engine.request import EventKind, FinishReason, PreemptReason, RejectReason, Request, Status, WaitReason
from octavo_engine.roofline import Machine, ModelCost
from octavo_engine.roofline_share import RooflineShare
from octavo_engine.turns import Awaited, Turns

# fmt: off
TOKEN_SECONDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 0.75, 1, 2, 5, 10,
)
"""Bounds for what happens once a step: dense where users feel a difference, 2 to 200 ms."""
FIRST_TOKEN_SECONDS = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 30, 60,
    120, 300,
)
"""Bounds for what a user waits for before the first word."""
REQUEST_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 120, 300, 600)
"""Bounds for what lasts as long as an answer."""
# fmt: on
TOKENS = tuple(float(1 << power) for power in range(18))
"""Bounds for numbers of tokens: powers of two up to 131,072."""


class Source(StrEnum):
    """Where the K/V of a prompt token came from."""

    COMPUTED = "computed"
    CACHED = "cached"  # found in the prefix cache
    RECOMPUTED = "recomputed"  # computed a second time, after a preemption (generated tokens included)


class StepKind(StrEnum):
    """What a step computed: see `Batch.kind`."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class Period(StrEnum):
    """How a period of the kernel's scheduler ended for a container with a CPU limit."""

    THROTTLED = "throttled"  # the limit was used up, and its threads stood still until the next
    FREE = "free"


class Lookup(StrEnum):
    """What the prefix cache said of a prompt token."""

    HIT = "hit"
    MISS = "miss"


class WatchedFile(StrEnum):
    """What the server reads again when it changes."""

    API_KEYS = "api_keys"
    CERTIFICATE = "certificate"


class FormResult(StrEnum):
    """What came of a wish for an answer of a given form."""

    KEPT = "kept"  # it was compiled for another request
    COMPILED = "compiled"
    REFUSED = "refused"  # it cannot be enforced
    SLOW = "slow"  # it takes more time or memory than it may
    BUSY = "busy"  # others took all the time that there is for it
    FAILED = "failed"  # a fault of ours, or the client has gone


class Metrics:
    """All series of one engine on `registry`. `stats` is called at scrape, by that thread; `clock` is the engine's."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        model_name: str,
        stats: Callable[[], SchedulerStats],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stats, self._clock = stats, clock
        # Of preempted requests, how many of their first tokens were computed before.
        self._computed_before: dict[Request, int] = {}
        self._estimate = QueueEstimate()
        self._step_prompt = 0  # prompt tokens in the latest step
        self.turns = Turns()  # the step thread's, once there is one
        self._instruments = Instruments(registry, model_name=model_name)
        self._declare_latencies(self._instruments)
        self._declare_counters(self._instruments)
        self._declare_steps(self._instruments)
        self._declare_forms(self._instruments)
        self.roofline = RooflineShare(kind.value for kind in StepKind)
        self._instruments.live(self._queue)
        self._instruments.live(self._cache)
        self._instruments.live(self._roofline)

    @property
    def series(self) -> Collector:
        """All of them, for who exports them in another form."""
        return self._instruments

    def _declare_latencies(self, make: Instruments) -> None:
        self._first_token = make.histogram(
            "octavo_time_to_first_token_seconds",
            "from receipt of the HTTP request to its first token",
            FIRST_TOKEN_SECONDS,
        )
        self._inter_token = make.histogram(
            "octavo_inter_token_latency_seconds",
            "between two steps that gave tokens of one request, preemptions included",
            TOKEN_SECONDS,
        )
        self._queued = make.histogram(
            "octavo_request_queue_seconds", "from receipt to admission, or to the end without one", FIRST_TOKEN_SECONDS
        )
        self._prefill = make.histogram(
            "octavo_request_prefill_seconds", "from admission to the first token", FIRST_TOKEN_SECONDS
        )
        self._decode = make.histogram(
            "octavo_request_decode_seconds", "from the first token to the last, whole answers", REQUEST_SECONDS
        )
        self._end_to_end = make.histogram(
            "octavo_request_end_to_end_seconds", "from receipt to the end, whole answers", REQUEST_SECONDS
        )
        self._prompt_length = make.histogram(
            "octavo_request_prompt_tokens", "prompt tokens of a request, counted at admission", TOKENS
        )
        self._output_length = make.histogram(
            "octavo_request_generation_tokens", "generated tokens of a request that ended", TOKENS
        )

    def _declare_counters(self, make: Instruments) -> None:
        self._generated = make.counter("octavo_generation_tokens_total", "generated tokens")
        self._drafted = make.counter("octavo_draft_tokens_total", "tokens that were guessed, and computed")
        self._accepted = make.counter("octavo_draft_tokens_accepted_total", "of these, those that came true")
        self._prompt = make.counters(
            "octavo_prompt_tokens_total", "prompt tokens by where their K/V came from", "source", Source
        )
        self._lookups = make.counters(
            "octavo_prefix_cache_tokens_total",
            "prompt tokens looked up in the prefix cache, once, at admission",
            "result",
            Lookup,
        )
        self._evicted = make.counter(
            "octavo_prefix_cache_evicted_blocks_total", "cached blocks given up for new tokens"
        )
        self._flushed = make.counter(
            "octavo_prefix_cache_flushed_blocks_total", "cached blocks forgotten because somebody asked for it"
        )
        self._preempted = make.counters(
            "octavo_preemptions_total", "running requests that lost their blocks", "reason", PreemptReason
        )
        self._finished = make.counters("octavo_requests_total", "requests that ended", "finish_reason", FinishReason)
        self._rejected = make.counters(
            "octavo_requests_rejected_total", "requests refused at the door", "reason", RejectReason
        )
        self._reloaded = make.counters(
            "octavo_file_reloads_total", "changed files that were taken while serving", "file", WatchedFile
        )
        self._not_reloaded = make.counters(
            "octavo_file_reload_failures_total",
            "changed files that cannot be used, so that what was read before stays",
            "file",
            WatchedFile,
        )

    def _declare_steps(self, make: Instruments) -> None:
        self._step_seconds = make.histograms(
            "octavo_step_seconds", "duration of one step", TOKEN_SECONDS, "kind", StepKind
        )
        self._step_tokens = make.histogram("octavo_step_tokens", "tokens computed in one step", TOKENS)
        make.live(self._take_turns)  # before they are exported, which is in this order
        self._waited = make.counters(
            "octavo_step_thread_wait_seconds_total",
            "what the step thread waited for, apart from work and its device",
            "resource",
            Awaited,
        )
        self._startup = make.gauges(
            "octavo_startup_seconds", "duration of a phase of the start, once it is over", "phase"
        )
        self._engine_labels = make.info("octavo_engine", "what runs: version, data type, device, kernels")
        self._cache_labels = make.info("octavo_cache", "the KV cache: block size, blocks, prefix caching")

    def _declare_forms(self, make: Instruments) -> None:
        self._forms = make.counters(
            "octavo_forms_total", "wishes for an answer of a given form, by what came of them", "result", FormResult
        )
        self._form_seconds = make.histogram(
            "octavo_form_compile_seconds", "until a form that was not kept is compiled or refused", TOKEN_SECONDS
        )

    def _take_turns(self) -> Iterable[Metric]:
        for resource, seconds in self.turns.waited.items():
            self._waited[resource].value = seconds
        return ()

    # -- recording -----------------------------------------------------------------------------------------------------

    def step(self, batch: Batch, seconds: float) -> None:
        """Account for a step that took `seconds`, as soon as its slices are computed."""
        for request, why in batch.preempted:
            self._preempted[why].add()
            if request.status is not Status.FINISHED:
                self._computed_before[request] = request.num_lost  # where steps overlap, it may run again by now
        for request in batch.admitted:
            self._admit(request)
        self._evicted.add(batch.evicted_blocks)
        if batch.slices:
            pieces = self._prompt_pieces(batch)
            counts = [self._count_prompt(piece) for piece in pieces]
            self._step_prompt = sum(counts)
            left = batch.blocked is not None or not all(piece.samples or piece.ends for piece in pieces)
            now = self._clock()
            self._estimate.step(
                now - seconds,  # later than it was decided, where the device had another one before
                now,
                decodes=len(batch.slices) - sum(map(bool, counts)),
                computed=self._step_prompt,
                leaves_prompts=left,
            )
            self._drafted.add(batch.num_drafted)
            kind = batch.kind
            self._step_seconds[StepKind(kind)].observe(seconds)
            self.roofline.step(kind, batch, seconds)
            self._step_tokens.observe(batch.num_tokens)

    def _admit(self, request: Request) -> None:
        """Count a request's first admission."""
        if request.num_preemptions:
            return
        self._queued.observe((_time_of(request, EventKind.ADMITTED) or request.arrival) - request.arrival)
        self._estimate.admitted(request)
        self._prompt_length.observe(request.num_prompt)
        self._prompt[Source.CACHED].add(request.num_cached)
        self._lookups[Lookup.HIT].add(request.num_cached)
        self._lookups[Lookup.MISS].add(request.num_prompt - request.num_cached)

    def _prompt_pieces(self, batch: Batch) -> Sequence[Slice]:
        """The slices that may hold more than a decode's own token: few, and while nothing was preempted easily told."""
        if self._computed_before:
            return batch.slices
        return [piece for piece in batch.slices if piece.start < piece.request.num_prompt]

    def _count_prompt(self, piece: Slice) -> int:
        """Count the slice's tokens that are not a decode's own; returns how many those are."""
        request, start, stop = piece.request, piece.start, piece.stop
        again = max(0, min(stop, self._computed_before.get(request, 0)) - start)
        first = max(0, min(stop, request.num_prompt) - start - again)
        if again:
            self._prompt[Source.RECOMPUTED].add(again)
        if first:
            self._prompt[Source.COMPUTED].add(first)
        return again + first

    def token(self, request: Request, at: float) -> None:
        """Account for one generated token, known at `at` on the engine's clock."""
        self._generated.add()
        before, request.token_at = request.token_at, at
        if before is None:
            self._first_token.observe(at - request.arrival)
            if (admitted := _time_of(request, EventKind.ADMITTED)) is not None:
                self._prefill.observe(at - admitted)
            return
        gap = at - before
        if not gap:  # it has come with the one before, which its draft had guessed
            self._accepted.add()
            self._estimate.accepted()
            return
        self._inter_token.observe(gap)
        if gap > request.longest_gap:  # what the timeline tells of it is known here, and asking costs nothing more
            request.longest_gap, request.longest_gap_at, request.longest_gap_prompt = gap, at, self._step_prompt

    def finished(self, request: Request, at: float) -> None:
        """Account for the end of a request, whatever its reason (set by then), exactly once."""
        self._computed_before.pop(request, None)
        self._estimate.finished(request)
        assert request.finish_reason is not None
        self._finished[request.finish_reason].add()
        self._output_length.observe(request.num_output)
        if _time_of(request, EventKind.ADMITTED) is None:
            self._queued.observe(at - request.arrival)
        if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._end_to_end.observe(at - request.arrival)
            if request.token_at is not None and (first_token := _time_of(request, EventKind.FIRST_TOKEN)) is not None:
                self._decode.observe(request.token_at - first_token)

    def rejected(self, reason: RejectReason) -> None:
        """Count a request refused at the door."""
        self._rejected[reason].add()

    def reloaded(self, file: WatchedFile, taken: bool) -> None:
        """Count a file that has changed, and was taken or not."""
        (self._reloaded if taken else self._not_reloaded)[file].add()

    def form(self, result: FormResult, seconds: float) -> None:
        """Count a wish for a form; told by the event loop. `seconds`: how long it was compiled."""
        self._forms[result].add()
        if result is not FormResult.KEPT:
            self._form_seconds.observe(seconds)

    def forms_kept(self, read: Callable[[], float]) -> None:
        """Export what the compiled forms take; `read` is asked at each scrape."""
        words = "about what the compiled forms that are kept take"
        self._instruments.live(lambda: [self._instruments.gauge_family("octavo_form_cache_bytes", words, read())])

    def startup(self, phase: str, seconds: float) -> None:
        """Record how long a phase of the start took. `phase` is one of our own words."""
        self._startup[phase] = seconds

    def know(self, cost: ModelCost, machine: Machine) -> None:
        """From now on, measure against this model's cost on this machine; the queue is judged by it until steps are."""
        self.roofline.know(cost, machine)
        self._estimate.expect(Expected.of(cost, machine))

    def engine_info(self, **labels: str) -> None:
        """Set labels of `octavo_engine_info`."""
        self._engine_labels.update(labels)

    def cache_info(self, **labels: str) -> None:
        """Set labels of `octavo_cache_info`."""
        self._cache_labels.update(labels)

    def server_state(self, states: Callable[[], Mapping[str, float]]) -> None:
        """Export what the process is at: `states` is asked at each scrape, and gives 1 for the present state alone."""
        words = "1 for what the process is at, 0 for the other states"
        self._instruments.live(
            lambda: [self._instruments.gauge_family("octavo_server_state", words, states(), "state")]
        )

    def cpu_periods(self, read: Callable[[], tuple[int, int]]) -> None:
        """Export how often the container's CPU limit stopped it; `read` gives all periods and those, at each scrape."""

        def look() -> Iterable[Metric]:
            everything, throttled = read()
            periods[Period.THROTTLED].value, periods[Period.FREE].value = throttled, everything - throttled
            return ()

        self._instruments.live(look)  # before they are exported, which is in this order
        periods = self._instruments.counters(
            "octavo_cpu_periods_total", "scheduler's periods under the container's CPU limit", "result", Period
        )

    def flushed(self, blocks: int) -> None:
        """Count cached blocks that somebody had forgotten on purpose."""
        self._flushed.add(blocks)

    def estimated_queue_seconds(self, stats: SchedulerStats) -> float:
        """How long the prompts of `stats` will take to compute: see QueueEstimate."""
        return self._estimate.seconds(stats, self._clock())

    # -- at scrape -----------------------------------------------------------------------------------------------------

    def _queue(self) -> Iterable[Metric]:
        """The queue now."""
        gauge, stats = self._instruments.gauge_family, self._stats()
        waiting = {reason: stats.waiting.get(reason, 0) for reason in WaitReason}
        oldest = 0.0 if stats.oldest_arrival is None else max(0.0, self._clock() - stats.oldest_arrival)
        yield gauge("octavo_requests_waiting", "requests that wait, by what they wait for", waiting, "reason")
        yield gauge("octavo_requests_running", "requests that hold KV blocks", stats.running)
        yield gauge("octavo_queue_oldest_seconds", "how long the oldest waiting request has waited", oldest)
        estimated = self.estimated_queue_seconds(stats)
        yield gauge(
            "octavo_estimated_queue_seconds", "how long the prompts ahead will take at the recent pace", estimated
        )

    def _cache(self) -> Iterable[Metric]:
        """The KV cache now."""
        gauge, stats = self._instruments.gauge_family, self._stats()
        blocks = {"free": stats.free_blocks, "cached": stats.cached_blocks, "used": stats.used_blocks}
        yield gauge("octavo_kv_cache_usage_ratio", "share of the KV blocks that running requests hold", stats.kv_usage)
        yield gauge("octavo_kv_blocks", "KV blocks by state; cached ones are free on demand", blocks, "state")
        yield gauge(
            "octavo_kv_waste_ratio", "share of the token slots in used blocks that hold no token", stats.kv_waste
        )

    def _roofline(self) -> Iterable[Metric]:
        """What the recent steps reached of what the machine could do."""
        yield self._instruments.grid_family(
            "octavo_roofline_ratio",
            "least time that the recent steps could take, over the time they took, by what bounds it; 0 without any",
            self.roofline.shares(self._clock()),
            ("phase", "bound"),
        )


def _time_of(request: Request, what: EventKind) -> float | None:
    """When `what` first happened to a request."""
    return next((event.at for event in request.events if event.what is what), None)
