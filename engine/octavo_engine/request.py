"""A request and its vocabulary: sampling parameters, statuses, and the typed reason of every decision.

The enums here are at once the label of a metric, the field of a log line and the word in a timeline; each is spelled
once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from octavo_engine.errors import FormTooComplex
from octavo_engine.prompt_reading import PromptReading

PROMISED = -1  # in `Request.tokens`: a launched step chooses this token, and only the device knows it yet
MAX_EVENTS = 128  # lines of one timeline: a request that is preempted again and again does not fill the memory


class Status(StrEnum):
    """Where a request is. A preempted request is WAITING again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class WaitReason(StrEnum):
    """Why a request waits."""

    NEW = "new"  # no step has looked at it yet
    TOKEN_BUDGET = "token_budget"  # this step's tokens are spent
    KV_FULL = "kv_full"  # its prompt does not fit into the free KV blocks
    BATCH_FULL = "batch_full"  # max_num_seqs are running
    PREFIX_PENDING = "prefix_pending"  # a running request computes the prefix that it shares (cache-aware policy)


class PreemptReason(StrEnum):
    """Why a running request lost its blocks."""

    KV_FULL = "kv_full"  # one that is served before it needed a block, and none was left
    PRIORITY = "priority"  # a waiting request of a higher priority needed its blocks or its place


class RejectReason(StrEnum):
    """Why a request was refused at the door."""

    QUEUE_FULL = "queue_full"  # max_waiting_requests
    QUEUE_TOKENS_FULL = "queue_tokens_full"  # max_waiting_prompt_tokens
    INVALID = "invalid"  # 400: the client's fault
    DRAINING = "draining"
    RATE_LIMITED = "rate_limited"  # its API key has had its share


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an end token, a stop id or a stop string
    LENGTH = "length"  # max_tokens or the model's window
    ABORT = "abort"  # the client went away, or the server's drain ran out
    DEADLINE = "deadline"  # it waited or ran longer than its deadline
    QUEUE_DEADLINE = "queue_deadline"  # it waited longer than it may, and no step had begun it
    FORM_TOO_COMPLEX = "form_too_complex"  # its answer met a limit of the form that the client gave: `refusal`
    ERROR = "error"  # an internal failure of this request


class EventKind(StrEnum):
    """What happened to a request: the words of its timeline."""

    ARRIVED = "arrived"  # its HTTP request was received
    SUBMITTED = "submitted"  # its body is checked and its prompt tokenized: from here it waits, as `new`
    REJECTED = "rejected"  # `why`: RejectReason
    QUEUED = "queued"  # a step looks at it: from here it waits for what the queue waits for
    WAITING = "waiting"  # `why`: a WaitReason of its own; empty: again for what the queue waits for
    ADMITTED = "admitted"  # `tokens` were found in the prefix cache
    COMPUTED = "computed"  # `tokens` it knew were computed, in `steps` steps, until `until`
    FIRST_TOKEN = "first_token"
    PREEMPTED = "preempted"  # `why`: PreemptReason; `by`: the request that its blocks were taken for
    FINISHED = "finished"  # `why`: FinishReason


class Pooling(StrEnum):
    """Which of a prompt's final hidden states make its embedding."""

    LAST = "last"  # that of the last token, which has seen all others
    MEAN = "mean"  # all of them alike


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop. Validated by `check_sampling_params`; units are tokens unless
    said."""

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int | None = None  # None: all
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output; 1 is none
    logit_bias: tuple[tuple[int, float], ...] = ()
    max_tokens: int = 16  # 0: only the prompt is computed
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # None: none; 0: the chosen token's only; k: also the k likeliest
    prompt_logprobs: int | None = None  # the same, of the prompt's tokens
    # Asked for each token of each request, so known from the start: the likeliest token of the model's own logits is
    # all that is wanted.
    plain: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        adjusted = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        asks_more = adjusted or self.logit_bias or self.min_tokens or self.logprobs is not None
        object.__setattr__(self, "plain", self.greedy and not asks_more)

    @property
    def greedy(self) -> bool:
        """True when the likeliest token is always taken."""
        return self.temperature == 0.0

    @property
    def needs_own_tokens(self) -> bool:
        """True when the host must know all tokens so far to choose the next."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


class Constraint(Protocol):
    """What keeps one answer to its form. It has no state but what follows from the answer's tokens."""

    def allowed(self, tokens: Sequence[int], first: int) -> bytes:
        """The tokens that may follow `tokens[first:]`, the answer so far: bit `i % 8` of byte `i // 8` is token `i`'s.

        When the form is complete these are end tokens alone. Raises when the answer cannot be kept to its form.
        """

    def forced(self, tokens: Sequence[int], first: int) -> Sequence[int]:
        """The tokens that come next because the form leaves no choice, as a model would most likely write them.

        They are a guess: another cut of the same text may be allowed, too. None where there is a choice.
        """

    def branch(self) -> Constraint:
        """One that is asked about tokens that may never come, after those that this was last asked about; this one does
        not learn of it."""


class TokenLogprob(NamedTuple):
    """A token with its natural-log probability under the model's own distribution (before temperature and
    penalties)."""

    token_id: int
    logprob: float


class Sampled(NamedTuple):
    """What the runner returns for one request of a step: a token, or the reason why there is none.

    One is made for each token, and no other immutable value is as cheap to make as a tuple.
    """

    token_id: int
    logprob: TokenLogprob | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
    # Set: the token is meaningless, and the request ends: by a fault of ours, or by what the client has asked for.
    error: str | FormTooComplex | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a request's timeline. `at` is in seconds on the engine's monotonic clock."""

    at: float
    what: EventKind
    why: str = ""  # a value of one of the reasons above
    by: str = ""  # the id of another request
    tokens: int = 0
    steps: int = 0
    until: float = 0.0  # seconds, the same clock


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One sequence being generated; mutable, owned by the scheduler once it is added.

    One rule replaces phases: `num_tokens` tokens are known, `num_computed` of them have their K/V in the cache, and
    each step computes some of the difference. When nothing is left to compute, the step samples one more token.
    """

    id: str
    tokens: list[int]  # prompt, then output; the last may be PROMISED
    params: SamplingParams
    constraint: Constraint | None = None  # its own; set before it is queued
    pooling: Pooling | None = None  # it is there for its embedding, and generates nothing
    arrival: float  # seconds, the engine's monotonic clock
    namespace: str = ""  # prefixes are shared within one namespace only
    deadline: float = math.inf  # seconds, the same clock
    queue_deadline: float = math.inf  # the same; holds until a step has begun it
    priority: int = 0  # under the priority policy the lower number is served first
    rank: tuple[float, int] = (0.0, 0)  # its place in the policy's order, given by the scheduler: the smallest is first
    num_prompt: int = field(init=False)
    to_read: range = field(init=False)  # positions of the prompt of which more is wanted than their K/V
    num_read: int = field(init=False)  # those before this position have been read, or need not be
    reading: PromptReading | None = None  # what came of it, once the steps that read it are computed
    num_computed: int = 0
    num_cached: int = 0  # prompt tokens found in the prefix cache at the first admission
    num_recompute: int = 0  # tokens still to compute a second time after a preemption
    num_lost: int = 0  # the most that were computed when it was preempted
    num_preemptions: int = 0
    num_drafted: int = 0  # tokens that were guessed of it, and computed
    num_accepted: int = 0  # of these, those that came true and gave one more
    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    refusal: FormTooComplex | None = None  # what the client is told where it ended with FORM_TOO_COMPLEX
    blocks: list[int] = field(default_factory=list)  # block table: block i holds tokens [i * block_size, ...)
    blocks_copied: int = 0  # of `blocks`, as many from the first as the runner has seen; who changes one lowers it
    x_request_id: str = ""  # of the HTTP request that it came with
    token_at: float | None = None  # when the latest token was known; seconds, the engine's monotonic clock
    longest_gap: float = 0.0  # seconds between two tokens
    longest_gap_at: float = 0.0  # when that gap ended, the same clock
    longest_gap_prompt: int = 0  # prompt tokens, of whatever requests, that the step which ended it computed
    events: list[Event] = field(default_factory=list)
    events_left_out: int = 0

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)
        self.to_read = self._positions_to_read()
        self.num_read = self.to_read.start
        self.events.append(Event(self.arrival, EventKind.ARRIVED))

    def arrive(self, now: float) -> None:
        """It comes only now, before it is queued: what it waits for a place counts from here, its deadline does not."""
        self.queue_deadline += now - self.arrival
        self.arrival = now
        self.events[0] = Event(now, EventKind.ARRIVED)

    def _positions_to_read(self) -> range:
        """The hidden states that are pooled; or, for each token but the first, the logits of the position before it."""
        if self.pooling is not None:
            return range(0 if self.pooling is Pooling.MEAN else self.num_prompt - 1, self.num_prompt)
        return range(0 if self.params.prompt_logprobs is None else self.num_prompt - 1)

    @property
    def generates(self) -> bool:
        """False when it ends once its prompt is computed."""
        return self.params.max_tokens > 0

    @property
    def num_reusable(self) -> int:
        """Of its tokens, as many from the first need not be computed if their K/V is there.

        One is left, since its logits give the next token, and so is every position that is still to be read.
        """
        return self.num_tokens - 1 if self.num_read >= self.to_read.stop else self.num_read

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was generated so far."""
        return len(self.tokens)

    @property
    def plain(self) -> bool:
        """True when the likeliest token of the model's own logits is all that is wanted."""
        return self.params.plain and self.constraint is None

    @property
    def needs_own_tokens(self) -> bool:
        """True when the host must know all tokens so far to choose the next."""
        return self.constraint is not None or self.params.needs_own_tokens

    def forget_promised(self) -> None:
        """Take back the token that nobody waits for any more."""
        if self.tokens[-1] == PROMISED:
            self.tokens.pop()

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_missing(self) -> int:
        """Known tokens whose K/V is not in the cache yet."""
        return len(self.tokens) - self.num_computed

    @property
    def begun(self) -> bool:
        """True once a step has computed some of it: it is accepted, and has a right to be finished."""
        return self.status is not Status.WAITING or self.num_preemptions > 0

    @property
    def output_ids(self) -> list[int]:
        """The generated tokens (a copy)."""
        return self.tokens[self.num_prompt :]

    @property
    def max_total_tokens(self) -> int:
        """The length at which it ends whatever happens."""
        return self.num_prompt + self.params.max_tokens

    def note(self, at: float, what: EventKind, why: str = "", *, by: str = "", tokens: int = 0) -> None:
        """Add a line to the timeline. Of too many, those in the middle are counted and left out."""
        if len(self.events) >= MAX_EVENTS and what not in (EventKind.FIRST_TOKEN, EventKind.FINISHED):
            self.events_left_out += 1
            return
        self.events.append(Event(at, what, why, by, tokens))

    def note_computed(self, began: float, ended: float, tokens: int) -> None:
        """Account for a chunk. Those that follow each other are one line, however long the prompt."""
        last = self.events[-1]
        if last.what is EventKind.COMPUTED:
            chunks = Event(last.at, last.what, tokens=last.tokens + tokens, steps=last.steps + 1, until=ended)
            self.events[-1] = chunks
        elif len(self.events) < MAX_EVENTS:
            self.events.append(Event(began, EventKind.COMPUTED, tokens=tokens, steps=1, until=ended))
        else:
            self.events_left_out += 1
