"""`octavo fetch`: from settings to a complete directory."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from octavo_engine.errors import ModelChanged
from octavo_engine.fetch import location, snapshot, sources
from octavo_engine.fetch.directory import Directory, Entry, Manifest
from octavo_engine.fetch.location import Location
from octavo_engine.fetch.progress import Progress, Reporter, amount
from octavo_engine.fetch.progress_server import serving
from octavo_engine.fetch.remote import Changed
from octavo_engine.fetch.retry import Patience
from octavo_engine.fetch.settings import FetchConfig
from octavo_engine.fetch.snapshot import Snapshot
from octavo_engine.fetch.transfer import Pace, download

log = logging.getLogger(__name__)

FIRST_CONTACT_SECONDS = 20.0  # a wrong address should be known before a person looks a second time
CHANGES = 3  # how often a source may change under our hands


def fetch(config: FetchConfig) -> Manifest:
    """Make the destination hold the model; returns what it holds. Raises StartupError; what arrived is kept."""
    place, directory = location.parse(config.source), Directory(Path(config.destination))
    if (there := _already_there(config, place, directory)) is not None:
        return there
    directory.create()
    progress = Progress()
    with contextlib.ExitStack() as stack:
        if config.management_port is not None:
            port = stack.enter_context(serving(progress, config.management_host, config.management_port))
            log.info("progress on http://%s:%d/progress", config.management_host, port)
        stack.enter_context(directory.locked(lambda: _wait_for_another(progress)))
        if (there := _already_there(config, place, directory)) is not None:
            return there
        progress.phase("resolving")
        return _fetch_unchanged(config, place, directory, progress)


def _already_there(config: FetchConfig, place: Location, directory: Directory) -> Manifest | None:
    """What a pinned revision's finished directory holds: nobody has to be asked."""
    if not snapshot.is_pinned(place.scheme, config.revision or place.reference):
        return None
    manifest = directory.manifest()
    if manifest is None or manifest.source != place.label or manifest.revision != (config.revision or place.reference):
        return None
    log.info("%s at %s is there already", place.label, manifest.revision)
    return manifest


def _wait_for_another(progress: Progress) -> None:
    progress.phase("waiting")
    log.info("another fetch is writing to this directory; waiting for it")


def _fetch_unchanged(config: FetchConfig, place: Location, directory: Directory, progress: Progress) -> Manifest:
    """Fetch; when a file changes meanwhile, list again and go on with what is still the same."""
    patience = min(FIRST_CONTACT_SECONDS, config.patience_seconds)
    with contextlib.closing(sources.open_source(place, config.access)) as source:
        for _ in range(CHANGES):
            try:
                taken = snapshot.take(source, place, config.revision, Patience(patience))
                return _complete(config, taken, directory, progress)
            except Changed:
                log.warning("%s changed while it was read; listing it again", place.label)
    raise ModelChanged(f"{place.label} keeps changing while it is read: fetch it when its writer is done")


def _complete(config: FetchConfig, taken: Snapshot, directory: Directory, progress: Progress) -> Manifest:
    there = directory.manifest()
    if there is not None and there.source == taken.label and there.revision == taken.revision:
        log.info("%s at %s is there already", taken.label, taken.revision)
        return there
    directory.begin(taken.files)
    directory.check_room(taken.files)
    progress.start(taken.revision, len(taken.files), taken.total_bytes)
    progress.phase("downloading")
    log.info("%s at %s: %d files, %s", taken.label, taken.revision, len(taken.files), amount(taken.total_bytes))
    pace = Pace(connections=config.connections, patience_seconds=config.patience_seconds)
    with Reporter(progress):
        verified = download(taken, directory, progress, pace)
    entries = tuple(Entry(file.name, file.size, file.identity, verified[file.name]) for file in taken.files)
    manifest = Manifest(taken.label, taken.revision, entries)
    directory.complete(manifest)
    progress.phase("done")
    log.info("%s", progress.line())
    return manifest
