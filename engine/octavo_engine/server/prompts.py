"""From a checked body to prompts: text and conversations to token ids, within bounds; and how answers are read.

Everything here may run in a thread, and does for long bodies.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.errors import PromptTooLong, RequestError
from octavo_engine.server.intake import Limits, check_ids
from octavo_engine.server.schemas import ChatBody, CompletionBody
from octavo_engine.server.tools import Formats, Reading
from octavo_engine.server.tools.thinking import CLOSE as THOUGHT
from octavo_engine.server.tools.thinking import OPEN as THINK
from octavo_engine.tokenizer import Tokenizer

_TAIL = 8  # tokens at a prompt's end in which a mark that opens a thought lies, with the space after it


def chat_prompts(body: ChatBody, tokenizer: Tokenizer, limits: Limits, formats: Formats) -> list[list[int]]:
    """The one prompt of a conversation."""
    _check_tools(body, formats)
    ids = tokenizer.render_chat(
        [message.for_template() for message in body.messages],
        body.opens_answer,
        continue_final=body.continue_final_message,
        tools=[tool.for_template() for tool in body.offered],
        variables=_variables(body, tokenizer),
    )
    ids = _truncated(ids, body, limits)
    check_length(ids, "messages", limits)
    return [ids]


def _check_tools(body: ChatBody, formats: Formats) -> None:
    """Refused, rather than ignored, where there is no such tool, or calls could not be understood."""
    named = body.named_tool
    if named is not None and all(tool.function.name != named for tool in body.offered):
        raise RequestError(f"tool_choice: no tool is called {named}", param="tool_choice")
    if body.must_call:
        return
    if body.offered and formats.tools is None:
        message = "tools: how this model writes calls is not known; start the server with --tool-call-parser"
        raise RequestError(message, param="tools", code="unsupported_parameter")


def _variables(body: ChatBody, tokenizer: Tokenizer) -> dict[str, Any]:
    """What the client gives to the chat template; refused, rather than ignored, where it would change nothing."""
    given = dict(body.chat_template_kwargs or {})
    fields = {name: f"chat_template_kwargs.{name}" for name in given}
    if body.reasoning_effort is not None:
        given["reasoning_effort"] = body.reasoning_effort
        fields["reasoning_effort"] = "reasoning_effort"
    for name, field in fields.items():
        if not tokenizer.template_takes(name):
            message = f"{field[:128]}: the model's chat template takes no such variable"
            raise RequestError(message, param=field, code="unsupported_parameter")
    return given


def reading_of(body: ChatBody, prompt: list[int], tokenizer: Tokenizer, formats: Formats) -> Reading:
    """How the answers to a conversation are read, of which `prompt` was made."""
    offered = body.offered
    return Reading(
        format=formats.tools if offered else None,
        must_call=body.must_call,
        named=body.named_tool,
        names=frozenset(tool.function.name for tool in offered),
        most_calls=body.most_calls,
        thinking=_begins_as_thought(body, prompt, tokenizer) if formats.thinks else None,
    )


def _begins_as_thought(body: ChatBody, prompt: list[int], tokenizer: Tokenizer) -> bool:
    """Some templates end with the mark that opens a thought, so that an answer lacks it; or the client began one."""
    if body.continue_final_message:
        begun = body.messages[-1].for_template()["content"]
        return bool(begun.rfind(THINK) > begun.rfind(THOUGHT))
    return tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip().endswith(THINK)


def completion_prompts(body: CompletionBody, tokenizer: Tokenizer, limits: Limits) -> list[list[int]]:
    """The prompts of a completion; token ids are taken as they are."""
    prompts = []
    for prompt in body.prompt:
        special = body.add_special_tokens
        ids = tokenizer.encode(prompt, add_special_tokens=special) if isinstance(prompt, str) else list(prompt)
        check_ids(ids, "prompt", limits)
        ids = _truncated(ids, body, limits)
        check_length(ids, "prompt", limits, answer=int(body.max_tokens != 0))
        prompts.append(ids)
    return prompts


def echoes(body: CompletionBody, prompts: list[list[int]], tokenizer: Tokenizer) -> list[str]:
    """What each choice's text begins with, for a client that wants its prompts back; empty for others."""
    if not body.echo:
        return []
    special = body.skip_special_tokens
    texts = [
        prompt
        if isinstance(prompt, str) and body.truncate_prompt_tokens is None
        else tokenizer.decode(ids, skip_special_tokens=special)
        for prompt, ids in zip(body.prompt, prompts, strict=True)
    ]
    return [text for text in texts for _ in range(body.kept)]


def _truncated(ids: list[int], body: ChatBody | CompletionBody, limits: Limits) -> list[int]:
    """The end of a prompt that is longer than the client wants it to be."""
    kept = body.truncate_prompt_tokens
    if kept is None:
        return ids
    if kept < 0:
        wanted = body.limit if isinstance(body, ChatBody) else body.max_tokens
        room = 1 if wanted is None else wanted
        kept = max(1, min(limits.max_prompt_tokens, limits.max_model_len - room))
    return ids[-kept:]


def check_length(ids: list[int], param: str, limits: Limits, *, answer: int = 1) -> None:
    """Raise RequestError naming `param` for a prompt that is empty, or leaves no room for `answer` tokens."""
    if not ids:
        raise RequestError(f"{param}: there must be at least one token", param=param)
    most = min(limits.max_prompt_tokens, limits.max_model_len - answer)
    if len(ids) > most:
        raise PromptTooLong(
            f"{param}: {len(ids)} tokens are more than the {most} that a prompt may have",
            param=param,
            code="context_length_exceeded",
        )
