"""The engine's and the server's settings: two flat frozen records, and the flags derived from their fields.

The only reader of flags and of the environment. Each default is written once, here; each option says its unit and its
reason. Knows nothing of torch, so that `octavo --help` and the contract tests stay instant.
"""

from __future__ import annotations

import argparse
import math
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, Self, TypeVar

from octavo_engine import graph_sizes
from octavo_engine.errors import InvalidConfiguration

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Config = TypeVar("Config", bound="DataclassInstance")


def option(default: T, help: str, *, minimum: float | None = None, maximum: float | None = None) -> T:
    """A dataclass field that is also a flag. `minimum` and `maximum` are inclusive bounds of a number."""
    return field(default=default, metadata={"help": help, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What to serve and how. Names are vLLM's where the meaning is the same."""

    model: str = option("", "checkpoint: a directory of safetensors or a .gguf file")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto", "type of weights and cache; auto: the checkpoint's own (bfloat16 for quantized GGUF)"
    )
    kv_cache_dtype: Literal["auto", "fp8"] = option(
        "auto",
        "type of cached keys and values; auto: that of --dtype; fp8: 8 bits each, for twice the tokens and half of what"
        " a decode reads, less exactly; CUDA only",
    )
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto: CUDA where there is one, else CPU")
    attention_backend: Literal["auto", "reference", "torch", "cpu", "triton"] = option(
        "auto",
        "attention kernels; auto: triton on CUDA; on CPU cpu where its compiled kernels run, else torch;"
        " reference is the slow definition of correct",
    )
    max_model_len: int | None = option(
        None, "longest sequence, prompt and output, in tokens; default: the model's", minimum=2
    )
    block_size: int = option(16, "tokens in one KV block", minimum=1, maximum=256)
    gpu_memory_utilization: float = option(
        0.9, "share of the device's memory that weights, activations and cache may take", minimum=0.05, maximum=1.0
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        "bytes for the KV cache, instead of a share of the device; default on CPU: a quarter of the container's memory,"
        " less where weights leave less",
        minimum=1,
    )
    enable_prefix_caching: bool = option(True, "reuse the KV blocks of prompts that begin alike")
    prefix_cache_scope: Literal["key", "server"] = option(
        "key", "who shares prefixes: requests of one API key, or everyone (one trusted tenant)"
    )
    enable_chunked_prefill: bool = option(True, "let a long prompt share steps with decodes instead of stalling them")
    max_num_batched_tokens: int = option(2048, "token budget of one step", minimum=1)
    max_num_seqs: int = option(256, "requests that run at once", minimum=1, maximum=4096)
    scheduling_policy: Literal["fcfs", "cache-aware", "priority"] = option(
        "fcfs",
        "order of the queue: first come, first served; the longest cached prefix first; or the lowest number in the"
        " request's field priority first, which may also take the place of running requests",
    )
    scheduling_ageing_seconds: float = option(
        30.0,
        "how much later a request may have come than one that it overtakes: for each level of priority, or for a"
        " longer cached prefix",
        minimum=0,
        maximum=86400,
    )
    max_decode_slowdown: float = option(
        1.75,
        "while one prompt is computed, how many times as long as without it a step with decodes may take; more"
        " where more prompts wait",
        minimum=1,
        maximum=1000,
    )
    max_step_seconds: float = option(
        0.5,
        "how long the prompts of one step may take, in seconds as they were learned here: nobody who streams waits"
        " longer for them at a time, and first tokens do not wait for all the prompts behind them",
        minimum=0.01,
        maximum=3600,
    )
    async_scheduling: bool = option(
        True,
        "decide and launch the next step while a CUDA device computes this one; without effect on a CPU, and while a"
        " request with penalties or a given form runs",
    )
    enforce_eager: bool = option(
        False,
        "launch the kernels of decodes one by one, instead of replaying them as CUDA graphs; so it is anyway on a CPU,"
        " and with other attention than triton",
    )
    cuda_graph_sizes: str = option(
        "",
        "sequences of the decodes that are recorded as CUDA graphs, separated by commas: a batch is padded to the next;"
        " default: powers of two, from 16 on with one more between each, up to max-num-seqs and 512",
    )
    num_speculative_tokens: int = option(
        15,
        "tokens of a request that a step may guess, from what it and its prompt say, and compute beside the one that it"
        " computes anyway: as many as are likely enough to save more time than they take; greedy and seeded answers are"
        " the same with any number; 0: none; without effect where the device is CUDA",
        minimum=0,
        maximum=255,
    )
    max_waiting_requests: int | None = option(
        None, "requests that may wait before new ones get 429; default: 4 x max-num-seqs", minimum=1
    )
    max_waiting_prompt_tokens: int = option(1_000_000, "prompt tokens that may wait before new ones get 429", minimum=1)
    max_prompt_tokens: int | None = option(
        None, "longest prompt accepted; default: what max-model-len allows", minimum=1
    )
    batch_invariant: bool = option(
        False,
        "promise that a request's tokens and logprobs are the same bits whatever shares its steps; refused where the"
        " kernels cannot hold it (they can on a CPU, in bfloat16 and float32, at no cost)",
    )
    tensor_parallel_size: int = option(
        1,
        "ranks that share each layer, one CUDA device for each; on a CPU they are processes that share its cores",
        minimum=1,
        maximum=64,
    )
    threads: int | None = option(
        None,
        "CPU threads of the kernels, in each rank; default: the container's CPU limit, divided among the ranks",
        minimum=1,
        maximum=1024,
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        self._sizes_of_graphs()
        if not self.enable_chunked_prefill and self.max_model_len and self.max_num_batched_tokens < self.max_model_len:
            raise InvalidConfiguration(
                f"--no-enable-chunked-prefill computes each prompt in one step: raise --max-num-batched-tokens"
                f" ({self.max_num_batched_tokens}) to at least --max-model-len ({self.max_model_len})"
            )
        if self.scheduling_policy == "cache-aware" and not self.enable_prefix_caching:
            raise InvalidConfiguration(
                "--scheduling-policy cache-aware has nothing to go by with --no-enable-prefix-caching; use fcfs"
            )

    def length_for(self, max_positions: int, longest: int | None = None) -> int:
        """The longest sequence served of a model made for `max_positions`; raises InvalidConfiguration.

        `longest`: what may be asked for, where that is more.
        """
        length, longest = self.max_model_len or max_positions, longest or max_positions
        if length > longest:
            raise InvalidConfiguration(
                f"--max-model-len is {length}, but the model was made for {longest} positions; lower it"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < length:
            raise InvalidConfiguration(
                f"--no-enable-chunked-prefill computes each prompt in one step: raise --max-num-batched-tokens"
                f" ({self.max_num_batched_tokens}) to at least {length}, or lower --max-model-len"
            )
        return length

    @property
    def refused_on_host(self) -> str | None:
        """Why no processor serves with these settings, if none does."""
        if self.kv_cache_dtype == "auto":
            return None
        return (
            f"--kv-cache-dtype is {self.kv_cache_dtype}, which needs a CUDA device: processors have no 8-bit floats,"
            " and widening each number takes longer than reading it in 16 bits; use auto"
        )

    @property
    def why_eager(self) -> str | None:
        """Why no decode is recorded as a CUDA graph with these settings, if none is."""
        if self.enforce_eager:
            return "--enforce-eager"
        if self.attention_backend not in ("auto", "triton"):
            return f"--attention-backend is {self.attention_backend}"
        return None

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Sequences of the decodes that are recorded as CUDA graphs where there is CUDA, ascending; may be none."""
        return () if self.why_eager else self._sizes_of_graphs()

    def _sizes_of_graphs(self) -> tuple[int, ...]:
        most = min(self.max_num_seqs, self.max_num_batched_tokens)
        return graph_sizes.named(self.cuda_graph_sizes, most) if self.cuda_graph_sizes else graph_sizes.by_rule(most)

    @property
    def queue_limit(self) -> int:
        """Requests that may wait."""
        return self.max_waiting_requests or 4 * self.max_num_seqs


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How the engine is reached. Port 8000 serves the API, port 8001 everything for operators."""

    served_model_name: str | None = option(None, "name clients use; default: the checkpoint's directory or file name")
    host: str = option("127.0.0.1", "address of the API")
    port: int = option(8000, "port of the API", minimum=0, maximum=65535)
    management_host: str = option("127.0.0.1", "address of metrics, probes and load")
    management_port: int = option(8001, "port of metrics, probes and load", minimum=0, maximum=65535)
    api_key: tuple[str, ...] = option((), "key that clients must send as a bearer token; repeatable")
    api_key_file: str | None = option(
        None, "file with one key a line, bare or as JSON with a name and limits; read again when it changes"
    )
    key_max_concurrent_requests: int | None = option(
        None,
        "requests of one key that may wait and run at once in this server; here and below the file of keys may say"
        " otherwise for a key; default: no limit",
        minimum=1,
    )
    key_requests_per_minute: int | None = option(
        None, "requests that one key may begin in a minute; default: no limit", minimum=1
    )
    key_tokens_per_minute: int | None = option(
        None, "tokens, of prompts and answers, that one key may use in a minute; default: no limit", minimum=1
    )
    cors_allow_origin: tuple[str, ...] = option(
        (), "origin whose web pages may call the API, such as https://app.example.com, or * for any; repeatable"
    )
    tls_cert_file: str | None = option(
        None, "PEM file with the API's certificate and its chain; read again when it changes; default: no TLS"
    )
    tls_key_file: str | None = option(None, "PEM file with the certificate's private key")
    tls_client_ca_file: str | None = option(
        None, "PEM file with the authorities that clients' certificates must come from; default: clients need none"
    )
    chat_template: str | None = option(None, "file with a Jinja chat template, instead of the model's own")
    tool_call_parser: Literal["auto", "none", "hermes", "llama3", "mistral"] = option(
        "auto",
        "how the model writes calls of tools: hermes is Qwen's way, too; auto: as its chat template shows; none: it"
        " makes none, and requests with tools get a 400",
    )
    reasoning_parser: Literal["auto", "none", "think"] = option(
        "auto",
        "whether what the model thinks before it answers, between <think> and </think>, is told apart as"
        " reasoning_content; auto: if its chat template has these marks",
    )
    generation_config: Literal["auto", "off"] = option(
        "auto",
        "where a request says nothing of temperature, top_p and their like: auto: what the model's authors set"
        " (generation_config.json, or the GGUF file); off: OpenAI's defaults",
    )
    embedding_pooling: Literal["auto", "last", "mean"] = option(
        "auto",
        "hidden states that an embedding is made of: that of the last token, or the mean of all; auto: as the"
        " checkpoint's 1_Pooling/config.json says, else last",
    )
    drain_seconds: float = option(
        45.0, "after SIGTERM, how long running requests may still take", minimum=0, maximum=3600
    )
    stuck_decode_seconds: float = option(
        30.0, "longest that a decode, or the pause between two steps, may take before the process ends", minimum=0.5
    )
    stuck_prefill_seconds: float = option(
        120.0, "the same for a step that computes prompt tokens: slow processors need more", minimum=0.1
    )
    stuck_warm_up_seconds: float = option(
        600.0, "the same for the first step of each kind, in which kernels may be compiled", minimum=0.1
    )
    request_timeout_seconds: float = option(600.0, "longest a request may wait and run", minimum=1, maximum=86400)
    queue_timeout_seconds: float | None = option(
        None,
        "longest a request may wait for its first step before it is sent away with 429; default: no such limit",
        minimum=0.1,
        maximum=86400,
    )
    max_body_bytes: int = option(4 * 1024 * 1024, "longest request body", minimum=1024, maximum=256 * 1024 * 1024)
    header_timeout_seconds: float = option(
        10.0, "longest that a client may take to connect and send a request's head", minimum=0.1, maximum=3600
    )
    body_timeout_seconds: float = option(
        30.0, "longest that a client may take to send a request's body", minimum=0.1, maximum=3600
    )
    write_timeout_seconds: float = option(
        30.0, "longest that a client may leave its answer unread before it is cut off", minimum=0.1, maximum=3600
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "least severe line that is logged")
    access_log: Literal["json", "text", "none"] = option(
        "json",
        "a line for each request when it is over, with ids, timings and token counts, no content: json: on standard"
        " output; text: in the ordinary log",
    )
    log_client_addresses: bool = option(False, "and the address that it came from, which may be a person's")
    otlp_traces_endpoint: str | None = option(
        None,
        "URL that traces of requests are sent to, by OTLP over HTTP, such as http://collector:4318/v1/traces; needs the"
        " extra otel; default: what OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT says, if set",
    )
    metrics_compat: Literal["none", "vllm"] = option(
        "none", "export the metrics a second time under the names of vllm, for boards and alerts that are made for it"
    )
    log_decisions: bool = option(
        False, "write each decision of the scheduler to standard output, one line of JSON with ids and reasons, no text"
    )

    def __post_init__(self) -> None:
        check_bounds(self)


def check_bounds(config: DataclassInstance) -> None:
    """Raise InvalidConfiguration, naming the flag, unless every value lies within its declared bounds and choices."""
    hints = typing.get_type_hints(type(config))
    for item in fields(config):
        value, low, high = getattr(config, item.name), item.metadata["minimum"], item.metadata["maximum"]
        choices = _choices(hints[item.name])
        if choices and value not in choices:
            raise InvalidConfiguration(f"{flag(item.name)} is {value!r}; choose one of {', '.join(choices)}")
        if value is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isnan(value) or (low is not None and value < low) or (high is not None and value > high):
            raise InvalidConfiguration(f"{flag(item.name)} is {value}; it must be {_range_words(low, high)}")


def _range_words(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def _choices(hint: Any) -> tuple[str, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()


def _scalar(hint: Any) -> Any:
    """The type that parses one value: `int` for `int | None`, `str` for `tuple[str, ...]`."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(arm for arm in typing.get_args(hint) if arm is not type(None))
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0]
    return hint


def add_flags(
    parser: argparse.ArgumentParser, config: type[DataclassInstance], *, without: Collection[str] = ()
) -> None:
    """Add one flag for each field of `config` but those `without`, grouped under the class's name."""
    group = parser.add_argument_group(config.__name__.removesuffix("Config").lower())
    hints = typing.get_type_hints(config)
    for item in fields(config):
        if item.name not in without:
            _add_flag(group, item, hints[item.name])


def _add_flag(group: Any, item: Field[Any], hint: Any) -> None:
    text = item.metadata["help"] + ("" if item.default in (None, "", ()) else f" (default: {item.default})")
    common: dict[str, Any] = {"dest": item.name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
    if hint is bool:
        group.add_argument(flag(item.name), action=argparse.BooleanOptionalAction, **common)
    elif typing.get_origin(hint) is tuple:
        group.add_argument(flag(item.name), action="append", type=_scalar(hint), **common)
    elif choices := _choices(hint):
        group.add_argument(flag(item.name), choices=choices, **common)
    else:
        group.add_argument(flag(item.name), type=_scalar(hint), metavar=_scalar(hint).__name__.upper(), **common)


def from_namespace(config: type[Config], parsed: argparse.Namespace) -> Config:
    """Build `config` from parsed flags; raises InvalidConfiguration naming the flag."""
    given: dict[str, Any] = {}
    for item in fields(config):
        if hasattr(parsed, item.name):
            value = getattr(parsed, item.name)
            given[item.name] = tuple(value) if isinstance(value, list) else value
    return config(**given)


class FlagParser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are InvalidConfiguration, so that they reach the termination message too."""

    def error(self, message: str) -> typing.NoReturn:
        """Raise instead of exiting."""
        raise InvalidConfiguration(message)


@dataclass(frozen=True)
class ServeSettings:
    """Everything `octavo serve` needs."""

    engine: EngineConfig
    server: ServerConfig

    @classmethod
    def parse(cls, args: Sequence[str]) -> Self:
        """Read the arguments of `octavo serve`; raises InvalidConfiguration naming the flag and the remedy."""
        parsed = serve_parser().parse_args(args)
        parsed.model = getattr(parsed, "model", None) or parsed.model_argument
        if not parsed.model:
            raise InvalidConfiguration("name a model: octavo serve MODEL, or --model MODEL")
        return cls(from_namespace(EngineConfig, parsed), from_namespace(ServerConfig, parsed))


def serve_parser(prog: str = "octavo serve") -> argparse.ArgumentParser:
    """The parser of `octavo serve`; abbreviations are off, since a typo must not choose another flag."""
    parser = FlagParser(prog=prog, allow_abbrev=False, description="Serve a model over the OpenAI API.")
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="the same as --model")
    add_flags(parser, EngineConfig)
    add_flags(parser, ServerConfig)
    return parser


def read_cpu_kernels(environment: Mapping[str, str]) -> str:
    """OCTAVO_CPU_KERNELS: "auto" (the best this processor runs), a target's name, or "off"."""
    return environment.get("OCTAVO_CPU_KERNELS") or "auto"


def read_traces_endpoint(flag: str | None, environment: Mapping[str, str]) -> str | None:
    """Where traces are sent to, if anywhere: the flag's URL, else that of OpenTelemetry's own variables.

    Raises InvalidConfiguration for what is no URL, and for a protocol that is not spoken.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    own, shared = (environment.get(f"OTEL_EXPORTER_OTLP_{name}ENDPOINT", "").strip() for name in ("TRACES_", ""))
    url = flag or own or (shared and f"{shared.rstrip('/')}/v1/traces")
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise InvalidConfiguration(
            "where traces are sent to (--otlp-traces-endpoint, OTEL_EXPORTER_OTLP_ENDPOINT) must be a URL of http or"
            " https"
        )
    protocols = (environment.get(f"OTEL_EXPORTER_OTLP_{name}PROTOCOL", "").strip() for name in ("TRACES_", ""))
    protocol = next(filter(None, protocols), "http/protobuf")
    if flag is None and protocol != "http/protobuf":
        raise InvalidConfiguration(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, but traces are sent by http/protobuf; name the collector's"
            " HTTP port by --otlp-traces-endpoint, or leave the variables out"
        )
    return url


def read_environment(environment: Mapping[str, str]) -> tuple[str, ...]:
    """API keys from `OCTAVO_API_KEY` (several separated by commas): a variable is not visible in a process list."""
    return tuple(key for key in environment.get("OCTAVO_API_KEY", "").split(",") if key)
