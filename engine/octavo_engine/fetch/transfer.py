"""Moves the bytes: several connections, each on a span of a file, until every file is verified and in its place."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from octavo_engine.errors import CheckpointInvalid, DiskFull, ModelCorrupt, StartupError
from octavo_engine.fetch.directory import Directory
from octavo_engine.fetch.part import PartFile, Span
from octavo_engine.fetch.progress import Progress
from octavo_engine.fetch.remote import Broken, RemoteFile
from octavo_engine.fetch.retry import Patience, Stopped
from octavo_engine.fetch.snapshot import Snapshot
from octavo_engine.fetch.verify import check_header, hash_of

log = logging.getLogger(__name__)


class Damaged(Exception):
    """A file is not what was announced: the `evidence`, to compare two of them, and what to raise in the end."""

    def __init__(self, evidence: str, problem: StartupError) -> None:
        super().__init__(evidence)
        self.evidence, self.problem = evidence, problem


@dataclass(frozen=True, slots=True)
class Pace:
    """How the bytes are moved."""

    connections: int = 8
    span_bytes: int = 64 << 20  # of one request: long enough that its start does not count
    record_bytes: int = 8 << 20  # how much a kill may lose on each connection
    patience_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Work:
    """What all transfers of one fetch share."""

    snapshot: Snapshot
    directory: Directory
    progress: Progress
    pace: Pace
    stop: threading.Event  # set when one has failed: the others need not go on


def download(snapshot: Snapshot, directory: Directory, progress: Progress, pace: Pace) -> dict[str, str]:
    """Fetch what is missing; returns how each file was verified, by name. Raises StartupError, Changed or Broken."""
    verified = {file.name: how for file in snapshot.files if (how := directory.verified(file)) is not None}
    for file in snapshot.files:
        if file.name in verified:
            progress.there(file.size)
            progress.file_done()
    work = Work(snapshot, directory, progress, pace, threading.Event())
    with ExitStack() as open_parts, ThreadPoolExecutor(pace.connections, "fetch") as pool:
        transfers = []
        for file in snapshot.files:
            if file.name not in verified:
                transfers.append(FileTransfer(file, work))
                open_parts.callback(transfers[-1].close)
        tasks = [pool.submit(transfer.fetch, span) for transfer in transfers for span in transfer.spans]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException:
            work.stop.set()  # the first failure is the answer
            pool.shutdown(cancel_futures=True)
            raise
    return verified | {transfer.file.name: transfer.verified for transfer in transfers}


class FileTransfer:
    """One file on its way; `fetch` is called for each of its `spans`, in any order and from several threads."""

    def __init__(self, file: RemoteFile, work: Work) -> None:
        self.file, self.verified = file, ""
        self._source, self._directory, self._progress = work.snapshot.source, work.directory, work.progress
        self._pace, self._stop, self._what = work.pace, work.stop, f"{work.snapshot.label}: {file.name}"
        with full_disk_named():
            self._part: PartFile = work.directory.part(file)
        if not (file.ranged and file.recognizable):
            self._part.start_over()  # the source sends it whole, or could have changed it without our knowing
        self._progress.there(self._part.present())
        # A file without missing bytes still has to be verified: an empty span leads there.
        self.spans = self._part.missing(self._pace.span_bytes if file.ranged else max(1, file.size)) or [Span(0, 0)]
        self._left, self._lock = len(self.spans), threading.Lock()

    def close(self) -> None:
        """Let go of the part."""
        self._part.close()

    def fetch(self, span: Span) -> None:
        """Fetch a span, and finish the file with its last one."""
        if self._stop.is_set():
            return
        with full_disk_named():
            self._read(span)
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last:
                self._finish()

    def _read(self, span: Span) -> None:
        """Read until it is all there, going on after each break where it broke."""
        patience, position = Patience(self._pace.patience_seconds, self._stop), span.start
        while position < span.end:
            begun = position
            try:
                for chunk in self._source.read(self.file, position, span.end):
                    self._part.write(position, chunk)
                    position += len(chunk)
                    self._progress.received(len(chunk))
                    patience.progress()
                    if position - begun >= self._pace.record_bytes:
                        self._part.record(Span(begun, position))
                        begun = position
                    if self._stop.is_set():
                        raise Stopped
            except Broken as problem:
                patience.wait(problem, self._what)
            finally:
                self._part.record(Span(begun, position))

    def _finish(self) -> None:
        """Verify and move into place. What arrived damaged gets one more try: a proxy may have been at fault."""
        try:
            self.verified = self._verify()
        except Damaged as first:
            log.warning("%s arrived damaged; fetching it again", self._what)
            self._part.start_over()
            self._progress.there(-self.file.size)
            self._read(Span(0, self.file.size))
            self.verified = self._verify_again(first)
        self._directory.put(self.file, self._part, self.verified)
        self._progress.file_done()

    def _verify(self) -> str:
        """How the part was verified; raises Damaged, or CheckpointInvalid where its hash says that nothing was lost."""
        digest = self.file.digest
        found = digest and hash_of(self._part.path, digest.algorithm)
        if digest is not None and found != digest.value:
            problem = ModelCorrupt(f"{self._what} arrived twice with another {digest.algorithm} than the source states")
            raise Damaged(str(found), problem)
        try:
            check_header(self._part.path, self.file)
        except CheckpointInvalid as problem:
            if digest is not None:
                raise
            raise Damaged(str(problem), problem) from None
        return "size" if digest is None else f"{digest.algorithm}:{digest.value}"

    def _verify_again(self, first: Damaged) -> str:
        try:
            return self._verify()
        except Damaged as second:
            digest = self.file.digest
            if digest is not None and not digest.certain and first.evidence == second.evidence:
                # The same bytes twice under a tag that need not be an MD5: then it is none.
                log.warning("%s: the store's tag is no MD5 of it; its size is verified", self._what)
                check_header(self._part.path, self.file)
                return "size"
            self._part.start_over()
            raise second.problem from None


@contextmanager
def full_disk_named() -> Iterator[None]:
    """Turn ENOSPC and its kin into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull(f"the destination is full: {error.strerror}; use a larger volume") from None
        raise
