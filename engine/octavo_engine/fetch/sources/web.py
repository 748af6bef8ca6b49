"""https://HOST/PATH: one .gguf file, or a directory without a listing, whose files are found by their known names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from octavo_engine.errors import ModelNotFound
from octavo_engine.fetch.credentials import TOKEN_REMEDY, read_token
from octavo_engine.fetch.http import Http
from octavo_engine.fetch.location import Location
from octavo_engine.fetch.remote import Broken, Listing, RemoteFile
from octavo_engine.fetch.selection import CONFIGS, shards_of
from octavo_engine.model.huggingface.checkpoint_files import INDEX, SINGLE

PROBES = 8  # at once


class Web:
    """Files of a web server. A query in the address, such as a signature, goes along with each request."""

    def __init__(self, location: Location, token_file: str | None) -> None:
        token = read_token(token_file)
        self._location = location
        self._http = Http(remedy=TOKEN_REMEDY, headers={"Authorization": f"Bearer {token}"} if token else None)

    def list(self) -> Listing:
        """The named file, or those of the known names that are there."""
        if self._location.file is not None:
            return Listing({self._location.file: self._probe(self._location.file)})
        found = self._probe_all((*CONFIGS, INDEX, SINGLE))
        if INDEX in found:
            index, _ = self._http.read_document(self._url(INDEX), what=self._what(INDEX))
            found |= self._probe_all(shards_of(index))
        if not found:
            raise ModelNotFound(f"{self._location.label}: none of config.json, {INDEX}, {SINGLE} is there")
        return Listing(found)

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """A range of a file."""
        return self._http.read_range(
            self._url(file.name), start, end, what=self._what(file.name), size=file.size, etag=file.etag
        )

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def _probe_all(self, names: Iterable[str]) -> dict[str, RemoteFile]:
        with ThreadPoolExecutor(PROBES, "probe") as pool:
            files = list(pool.map(self._probe_quietly, names))
        return {file.name: file for file in files if file is not None}

    def _probe_quietly(self, name: str) -> RemoteFile | None:
        try:
            return self._probe(name)
        except ModelNotFound:
            return None

    def _probe(self, name: str) -> RemoteFile:
        facts = self._http.probe(self._url(name), what=self._what(name))
        if facts.size is None:
            raise Broken(f"the server does not tell the size of {name}")
        return RemoteFile(
            name, facts.size, name,
            etag=facts.etag, stamp=facts.modified, digest=facts.digest, ranged=facts.ranged,
        )  # fmt: skip

    def _what(self, name: str) -> str:
        return self._location.label if self._location.file else f"{self._location.label}: {name}"

    def _url(self, name: str) -> str:
        query = f"?{self._location.query}" if self._location.query else ""
        return f"{self._location.scheme}://{self._location.host}{self._location.path}/{quote(name)}{query}"
