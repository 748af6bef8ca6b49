"""What to change, in one sentence: from where the time went to the setting that moves it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo_engine.counted import counted

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wait:
    """A reason to wait: how it was for one that has waited, how it is for those that do, and what moves it."""

    was: str
    is_now: str
    change: str


WAITING = {
    "new": Wait(
        "It waited for the step that was under way when it came.",
        "They wait for the step that is under way.",
        "Shorter steps (--max-step-seconds, --max-num-batched-tokens) take it in sooner.",
    ),
    "token_budget": Wait(
        "Prompts before it used up the steps' tokens.",
        "Prompts that are being computed use up the steps' tokens.",
        "Raise --max-decode-slowdown if decodes may be slower for it, or --max-step-seconds and"
        " --max-num-batched-tokens, or add a replica.",
    ),
    "kv_full": Wait(
        "Its prompt had no room in the KV cache beside what ran.",
        "The next prompt has no room in the KV cache beside what runs.",
        "Give the cache more memory (--kv-cache-memory-bytes, --gpu-memory-utilization), or add a replica.",
    ),
    "batch_full": Wait(
        "As many requests ran as may run.",
        "As many requests run as may run.",
        "Raise --max-num-seqs if the KV cache has room for more, or add a replica.",
    ),
    "prefix_pending": Wait(
        "Another request was computing the beginning of its prompt, which it then found in the cache.",
        "Another request is computing the beginning of their prompts, which they will find in the cache.",
        "There is nothing to change: computing it twice would take longer.",
    ),
}
PREEMPTED = {
    "kv_full": "The KV cache was too small for what ran together: give it more memory (--kv-cache-memory-bytes,"
    " --gpu-memory-utilization), or let fewer run at once (--max-num-seqs).",
    "priority": "Requests of a higher priority took its place: give it a lower number as its priority, or add a"
    " replica.",
}
REJECTED = {
    "queue_full": "The queue was full: try again later, raise --max-waiting-requests, or add a replica.",
    "queue_tokens_full": "The queue held as many prompt tokens as it may: try again later, raise"
    " --max-waiting-prompt-tokens, or add a replica.",
    "draining": "The server was shutting down: try again, another replica takes it.",
    "rate_limited": "Its API key had taken its share: try again later, ask for fewer max_tokens, or raise the key's"
    " limits (--key-max-concurrent-requests, --key-requests-per-minute, --key-tokens-per-minute, or its line of the"
    " file).",
}
READ = (
    "Computing its prompt took longest: all of it, whatever was cached, since log-probabilities of its tokens or the"
    " mean of their hidden states were asked for. Ask for these where you need them (echo with logprobs,"
    " prompt_logprobs, --embedding-pooling)."
)
UNKNOWN = "No setting is known to change that."


def advice(document: Json) -> str:
    """What to change for the request of a timeline document."""
    if document["state"] == "rejected":
        return REJECTED.get(document["why"], UNKNOWN)
    if (largest := document["largest"]) is None:
        return UNKNOWN
    match largest["state"]:
        case "waiting":
            known = WAITING.get(largest["why"])
            return f"{known.was} {known.change}" if known else UNKNOWN
        case "preempted":
            return PREEMPTED.get(largest["why"], UNKNOWN)
    told = {"receiving": _receiving, "prefill": _prefill, "recompute": _recompute, "decode": _decode}
    return told[largest["state"]](document) if largest["state"] in told else UNKNOWN


def queue_advice(queue: Json) -> str:
    """What to change for a queue that waits now."""
    if queue["reason"] is None:
        return "Nobody waits."
    known = WAITING.get(queue["reason"])
    return f"{known.is_now} {known.change}" if known else UNKNOWN


def _receiving(_: Json) -> str:
    return "Reading its body and tokenizing its prompt took longest: send shorter prompts, or give the server more CPU."


def _prefill(document: Json) -> str:
    if document["tokens"].get("read", 0) > 1:
        return READ
    prompt, cached = document["tokens"]["prompt"], document["tokens"]["cached"]
    steps = sum(span.get("steps", 0) for span in document["spans"] if span["state"] == "prefill")
    share = f"{cached:,} of its {counted(prompt, 'prompt token')} {'was' if 1 in (cached, prompt) else 'were'} cached"
    begin = "begin prompts alike, so that more of them is found in the prefix cache, or make them shorter"
    if steps > 2:
        return f"Its prompt was computed in {steps} steps, and {share}: {begin}, or raise --max-decode-slowdown."
    return f"Computing its prompt took longest, and {share}: {begin}."


def _recompute(document: Json) -> str:
    lost = (span["why"] for span in document["spans"] if span["state"] == "preempted")
    return "What it had lost was computed again. " + PREEMPTED.get(next(lost, "kv_full"), UNKNOWN)


def _decode(document: Json) -> str:
    gap, seconds = document["longest_gap"], _seconds_in(document, "decode")
    if gap and gap["prompt_tokens_in_step"] and gap["seconds"] > 0.3 * seconds and not is_preemption(document, gap):
        prompts = counted(gap["prompt_tokens_in_step"], "prompt token was", "prompt tokens were")
        return (
            f"Most of that is one pause of {gap['seconds']:.2f} s, in which {prompts} computed:"
            " lower --max-step-seconds or --max-decode-slowdown."
        )
    output = document["tokens"]["output"]
    pace = f" at {output / seconds:.1f} tokens a second" if seconds and output > 1 else ""
    return (
        f"Its {counted(output, 'token was', 'tokens were')} generated{pace}: ask for fewer (max_tokens), or let fewer"
        " requests share a step (--max-num-seqs, more replicas)."
    )


def is_preemption(document: Json, gap: Json) -> bool:
    """Whether a pause between two tokens is one in which the request had lost its blocks."""
    lost = (span["began"] for span in document["spans"] if span["state"] == "preempted")
    return any(gap["at"] - gap["seconds"] <= began < gap["at"] for began in lost)


def _seconds_in(document: Json, state: str) -> float:
    return float(sum(share["seconds"] for share in document["shares"] if share["state"] == state))
