"""`octavo bench`: parse, measure, and write the reports. The exit code says what a script wants to know."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from octavo_engine.bench import document
from octavo_engine.bench.client import NotAnswered
from octavo_engine.bench.compared import comparison, comparison_document, sweep_table
from octavo_engine.bench.compared_page import compared_page
from octavo_engine.bench.document import Json, Saved
from octavo_engine.bench.measurement import Measurement, Progress, measure
from octavo_engine.bench.page import page
from octavo_engine.bench.report import report
from octavo_engine.bench.settings import BenchConfig, BenchSettings
from octavo_engine.bench.summary import Summary, summarize
from octavo_engine.bench.sweep import NotStarted, Sweep, serving
from octavo_engine.config import FlagParser
from octavo_engine.errors import InvalidConfiguration, StartupError

SOME_FAILED, CANNOT_WORK, NO_ANSWER, INTERRUPTED = 1, 2, 3, 130
LINE_SECONDS = 10.0  # between two lines of progress where nobody looks at a terminal
ERASE = "\r\x1b[K"


def bench(arguments: Sequence[str], out: TextIO, environment: Mapping[str, str]) -> int:
    """Measure and tell; returns the exit code.

    0 when each request was answered, 1 when some were not (the report says which), 2 for wrong flags, 3 when there is
    no server to ask, 130 after Ctrl-C, with the report of what was measured until then.
    """
    try:
        if "--compare" in arguments:
            return _compare(arguments, out)
        settings = BenchSettings.parse(arguments, environment)
        _check_files(settings.config)
        _allow_many_connections()
        return asyncio.run(_sweep(settings, out) if settings.config.sweep else _once(settings, out))
    except (NotAnswered, NotStarted) as error:
        return _complain(error, NO_ANSWER)
    except StartupError as error:
        return _complain(error, CANNOT_WORK)
    except KeyboardInterrupt:  # a second one, or one before anything was measured
        return _complain("interrupted", INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Reported:
    """A measurement with its figures, as a document."""

    measurement: Measurement
    summary: Summary
    document: Json

    @property
    def code(self) -> int:
        """The exit code."""
        if self.measurement.stopped:
            return INTERRUPTED
        return SOME_FAILED if self.summary.failed or not self.summary.whole else 0


async def _once(settings: BenchSettings, out: TextIO) -> int:
    stop = asyncio.Event()
    with _stopped_by_signals(stop):
        reported = await _measured(settings, stop, None)
    _tell_and_keep(reported, settings, out)
    return reported.code


async def _sweep(settings: BenchSettings, out: TextIO) -> int:
    """One value after another; what was measured is shown, whatever becomes of the rest."""
    sweep, stop, seen = Sweep.parse(settings.config.sweep or "", settings.serve), asyncio.Event(), list[Saved]()
    codes = [0]
    with _stopped_by_signals(stop):
        for value in sweep.values:
            try:
                reported = await _at(sweep, value, settings, stop, out)
            except (NotStarted, NotAnswered) as error:
                codes.append(_complain(error, INTERRUPTED if stop.is_set() else NO_ANSWER))
                break
            seen.append(document.saved(reported.document, value))
            codes.append(reported.code)
            if stop.is_set():
                break
    if seen:
        out.write("\n" + sweep_table(sweep.flag, sweep.values[: len(seen)], seen, settings.objectives) + "\n")
    return max(codes)


async def _at(sweep: Sweep, value: str, settings: BenchSettings, stop: asyncio.Event, out: TextIO) -> Reported:
    """Start a server with this value, measure it, and stop it."""
    sys.stderr.write(f"octavo serve {sweep.argument(value)}\n")
    async with serving([*settings.serve, sweep.argument(value)], settings.config.start_seconds, stop) as server:
        own = _for_server(settings, server.url, server.management_url, value)
        reported = await _measured(own, stop, {sweep.flag: value})
    out.write(f"\n## --{sweep.flag} {value}\n\n")
    _tell_and_keep(reported, own, out)
    return reported


def _for_server(settings: BenchSettings, url: str, management: str, value: str) -> BenchSettings:
    """The same load for a server of the sweep, with files of its own."""
    config = settings.config
    own = replace(
        config,
        url=url,
        metrics_url=management,
        sweep=None,
        json=config.json and _named(config.json, value),
        markdown=config.markdown and _named(config.markdown, value),
        html=config.html and _named(config.html, value),
    )
    return BenchSettings(own)


def _named(path: str, value: str) -> str:
    """`run.json` for a value of 64: `run-64.json`."""
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in value)
    whole = Path(path)
    return str(whole.with_name(f"{whole.stem}-{safe}{whole.suffix}"))


async def _measured(settings: BenchSettings, stop: asyncio.Event, serve: Json | None) -> Reported:
    with _telling(sys.stderr) as tell:
        measurement = await measure(settings, stop, tell)
    summary = summarize(measurement.outcomes, measurement.seconds, settings.objectives)
    return Reported(measurement, summary, document.write(measurement, summary, serve))


def _tell_and_keep(reported: Reported, settings: BenchSettings, out: TextIO) -> None:
    """Show the report, then write the files that were asked for: if that fails, something was seen."""
    text, config = report(reported.measurement, reported.summary), settings.config
    out.write(text)
    out.flush()
    if config.json:
        _write("--json", config.json, document.render(reported.document))
    if config.markdown:
        _write("--markdown", config.markdown, text)
    if config.html:
        _write("--html", config.html, page(reported.measurement, reported.summary, text, settings.objectives))


def _write(flag: str, path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidConfiguration(f"{flag}: {path} cannot be written: {error.strerror}") from error


def _check_files(config: BenchConfig) -> None:
    """Before anything that takes time: a measurement must not be lost to a folder that is not there."""
    for flag, path in (("--json", config.json), ("--markdown", config.markdown), ("--html", config.html)):
        if path and not Path(path).absolute().parent.is_dir():
            raise InvalidConfiguration(f"{flag}: the folder of {path} is not there")


def _compare(arguments: Sequence[str], out: TextIO) -> int:
    parser = FlagParser(prog="octavo bench", allow_abbrev=False, description="Say what differs, and what is noise.")
    parser.add_argument("--compare", nargs=2, required=True, metavar=("A.json", "B.json"), help="files of --json")
    parser.add_argument("--json", metavar="FILE", help="file for the same as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="file for the table that is printed")
    parser.add_argument("--html", metavar="FILE", help="file for that table with pictures of both")
    parsed = parser.parse_args(arguments)
    before, after = (document.read(path) for path in parsed.compare)
    text = comparison(before, after)
    if parsed.json:
        _write("--json", parsed.json, json.dumps(comparison_document(before, after), indent=2) + "\n")
    if parsed.markdown:
        _write("--markdown", parsed.markdown, text)
    if parsed.html:
        _write("--html", parsed.html, compared_page(before, after, text))
    out.write(text)
    return 0


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) ends the measurement, the second the process."""
    loop, caught = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)

    def once() -> None:
        stop.set()
        for number in caught:
            loop.remove_signal_handler(number)

    for number in caught:
        loop.add_signal_handler(number, once)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


@contextmanager
def _telling(err: TextIO) -> Iterator[Callable[[Progress], None]]:
    """Progress: one line that changes on a terminal, else a line now and then."""
    on_terminal, said = err.isatty(), time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal said
        if on_terminal:
            err.write(f"{ERASE}{progress}")
        elif time.monotonic() - said >= LINE_SECONDS:
            said = time.monotonic()
            err.write(f"{progress}\n")
        err.flush()

    try:
        yield tell
    finally:
        if on_terminal:
            err.write(ERASE)


def _allow_many_connections() -> None:
    """As many open files as this process may have: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _complain(what: object, code: int) -> int:
    print(f"octavo bench: {what}", file=sys.stderr)  # noqa: T201
    return code
