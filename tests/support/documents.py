"""The project's pages as values: headings, links, code and the commands in it. Knows nothing of Octavo."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "charts", "docs", "examples", "hack", "kustomize")
PROMPT = "$ "
SEPARATORS = re.compile(r"[;|&()]+")
REDIRECTION = re.compile(r"[<>]+&?")
KEYWORDS = ("!", "do", "else", "then", "time")  # a command may follow them
ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code; `language` is empty where none is named."""

    language: str
    text: str

    @property
    def commands(self) -> list[Command]:
        """What is typed: all of a shell's block, else what stands after a prompt."""
        return list(shell_commands(self.text if self.language == "sh" else prompted(self.text)))


@dataclass(frozen=True)
class Page:
    """A Markdown file. Tables and links are GitHub's, the rest is CommonMark."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """Its path in the project."""
        return str(self.path.relative_to(ROOT))

    @cached_property
    def tokens(self) -> list[Token]:
        """All blocks, in order."""
        return MarkdownIt("commonmark").enable("table").parse(self.text)

    @cached_property
    def inline(self) -> list[Token]:
        """What paragraphs, headings and cells consist of, in order."""
        return [child for token in self.tokens for child in token.children or ()]

    @property
    def headings(self) -> list[tuple[int, str]]:
        """Level and words of each."""
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        return [(int(head.tag[1]), words(inside)) for head, inside in pairs if head.type == "heading_open"]

    @property
    def anchors(self) -> set[str]:
        """Where a link may lead to, as GitHub names headings."""
        found: list[str] = []
        for _, heading in self.headings:
            name = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in "_- ")
            name = name.replace(" ", "-")
            again = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", other) is not None for other in found)
            found.append(f"{name}-{again}" if again else name)
        return set(found)

    @property
    def links(self) -> list[str]:
        """Where its links and pictures are."""
        return [str(token.attrs.get("href") or token.attrs.get("src")) for token in self.inline if is_link(token)]

    @property
    def spans(self) -> list[str]:
        """Code within text."""
        return [token.content for token in self.inline if token.type == "code_inline"]

    @property
    def blocks(self) -> list[Block]:
        """Code by itself, fenced or indented."""
        return [
            Block(token.info.strip(), token.content) for token in self.tokens if token.type in ("fence", "code_block")
        ]

    @property
    def prose(self) -> list[str]:
        """The pieces of text that are no code."""
        return [token.content for token in self.inline if token.type == "text"]

    @property
    def emphasized(self) -> list[str]:
        """What stands between single asterisks."""
        found, inside = list[str](), False
        for token in self.inline:
            if token.type in ("em_open", "em_close"):
                inside = token.type == "em_open"
                found += [""] if inside else []
            elif inside:
                found[-1] += " " if token.type == "softbreak" else token.content
        return found

    @property
    def flags(self) -> set[str]:
        """Every long flag in its code."""
        code = [*self.spans, *(block.text for block in self.blocks)]
        return {flag for text in code for flag in FLAG.findall(text)}


def is_link(token: Token) -> bool:
    """Whether it begins a link or is a picture."""
    return token.type in ("link_open", "image")


def words(inline: Token) -> str:
    """A heading without its markup."""
    return "".join(child.content for child in inline.children or () if child.type in ("text", "code_inline"))


@cache
def pages() -> tuple[Page, ...]:
    """All of the project's own pages."""
    paths = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    return tuple(Page(path, path.read_text("utf-8")) for path in sorted(paths))


def page(name: str) -> Page:
    """One of them, by its path in the project."""
    return next(each for each in pages() if each.name == name)


def prompted(text: str) -> str:
    """The lines after a prompt, with those that a backslash continues."""
    taken, goes_on = list[str](), False
    for line in text.splitlines():
        if goes_on or line.startswith(PROMPT):
            taken.append(line if goes_on else line.removeprefix(PROMPT))
            goes_on = line.endswith("\\")
    return "\n".join(taken)


def shell_commands(text: str) -> Iterator[Command]:
    """Each simple command of a script, without comments, assignments before it, and redirections.

    A quoted text may go on over lines. What substitution would make of `$NAME` is left as it is written.
    """
    held = ""
    for line in text.replace("\\\n", " ").splitlines():
        held += line
        try:
            tokens = list(_lexer(held))
        except ValueError:  # a quotation that the next line goes on with
            held += "\n"
            continue
        held = ""
        yield from _simple(tokens)
    if held.strip():
        raise ValueError(f"a quotation has no end: {held}")


def _lexer(text: str) -> shlex.shlex:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return lexer


def _simple(tokens: Sequence[str]) -> Iterator[Command]:
    """Cut a line where one command ends and another begins."""
    current: list[str] = []
    skip = False
    for token in [*tokens, ";"]:
        if skip:  # the file behind a redirection
            skip = False
        elif REDIRECTION.fullmatch(token):
            skip = True
        elif SEPARATORS.fullmatch(token):
            if found := _bare(current):
                yield found
            current = []
        else:
            current.append(token)


def _bare(tokens: Sequence[str]) -> Command:
    """Without what may stand before a program's name."""
    rest = list(tokens)
    while rest and (rest[0] in KEYWORDS or ASSIGNMENT.fullmatch(rest[0])):
        rest.pop(0)
    return tuple(rest)
