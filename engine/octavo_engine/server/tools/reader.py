"""One answer's text as a message."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from octavo_engine.server.tools.enforced import CallList, CallOf
from octavo_engine.server.tools.formats import Parser, ToolFormat, call_id
from octavo_engine.server.tools.message import Message, Said
from octavo_engine.server.tools.thinking import Thinking


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the answers to one body are read.

    Calls are looked for in the model's own `format` (None: in none); or, with `must_call`, an answer is nothing else:
    a list of them, or the arguments of the function `named`.
    """

    format: ToolFormat | None = None
    names: Collection[str] = ()  # of the tools offered
    most_calls: int | None = None
    must_call: bool = False
    named: str | None = None
    thinking: bool | None = None  # whether an answer begins as a thought; None: this model does not think aloud

    @property
    def calls(self) -> bool:
        """True when an answer may have calls."""
        return self.must_call or self.format is not None

    @property
    def verbatim(self) -> bool:
        """True when an answer's text is its content, and there is nothing to read."""
        return not self.calls and self.thinking is None

    @property
    def special(self) -> bool:
        """True when special tokens belong into the text, as marks of calls."""
        return not self.must_call and self.format is not None and self.format.special

    def reader(self, name: str) -> MessageReader:
        """A reader of the choice called `name`, which the ids of its calls are derived from."""
        make_id = call_id if self.format is None else self.format.call_id
        message = Message(lambda index: make_id(f"{name}-{index}"), self.most_calls)
        return MessageReader(message, self._parser(message), thinking=self.thinking)

    def _parser(self, message: Message) -> Parser | None:
        if self.named is not None:
            return CallOf(message, self.named)
        if self.must_call:
            return CallList(message)
        return None if self.format is None else self.format.parser(message, self.names)


class MessageReader:
    """Joined, what `push` returns is the same however the text is cut into pieces.

    `parser` takes the calls out of what is said. `thinking`: see Reading.
    """

    def __init__(self, message: Message, parser: Parser | None, *, thinking: bool | None) -> None:
        self._message = message
        self._parser = parser
        say: Callable[[str], None] = message.say if parser is None else parser.push
        self._thinking = None if thinking is None else Thinking(message, say, inside=thinking)
        self._push = say if self._thinking is None else self._thinking.push

    @property
    def called(self) -> bool:
        """True once a call was begun."""
        return self._message.num_calls > 0

    def push(self, text: str, *, last: bool = False) -> Said:
        """Take a piece of the text; `last`: nothing comes after it."""
        for char in text:
            self._push(char)
        if last and self._thinking is not None:
            self._thinking.finish()
        if last and self._parser is not None:
            self._parser.finish()
        return self._message.take()
