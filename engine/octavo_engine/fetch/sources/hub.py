"""hf://ORG/NAME by huggingface_hub: the revision as a commit, the files with their hashes.

Bytes come through our own ranges from the addresses that the library makes, as for every other source: so resuming,
verifying and progress are the same everywhere. A commit never changes, so a file read in pieces is one file.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
from huggingface_hub import HfApi, close_session, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RevisionNotFoundError
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils._headers import build_hf_headers

from octavo_engine import __version__
from octavo_engine.errors import InvalidConfiguration, ModelAccessDenied, ModelNotFound
from octavo_engine.fetch.credentials import TOKEN_REMEDY, read_token
from octavo_engine.fetch.http import READ_SECONDS, Http, failure, translated
from octavo_engine.fetch.location import Location
from octavo_engine.fetch.remote import Broken, Digest, Listing, RemoteFile
from octavo_engine.fetch.selection import NESTED, local_name

DEFAULT_REVISION = "main"


class Hub:
    """A repository of a hub, or of a mirror that speaks its API."""

    def __init__(self, location: Location, revision: str | None, endpoint: str | None, token_file: str | None) -> None:
        self._repo, self._named, self._label = location.path, location.file, location.label
        self._revision, self._endpoint = revision or DEFAULT_REVISION, endpoint.rstrip("/") if endpoint else None
        # Without a file the library may use a saved login; that one is for the hub itself, not for a mirror.
        token: str | bool | None = read_token(token_file) or (False if endpoint else None)
        self._api = HfApi(endpoint=self._endpoint, token=token, library_name="octavo", library_version=__version__)
        headers = build_hf_headers(token=token, library_name="octavo", library_version=__version__)
        self._http = Http(remedy=TOKEN_REMEDY, headers=headers)

    def list(self) -> Listing:
        """The named file, or those of the repository's root and NESTED, at the commit the revision means now."""
        info = self._info()
        if not info.sha:
            raise Broken("the hub names no commit")
        wanted = {entry.rfilename: entry for entry in info.siblings or () if self._is_wanted(entry.rfilename)}
        return Listing({local_name(path): self._file(entry, info.sha) for path, entry in wanted.items()}, info.sha)

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """A range of a file, from the hub or wherever it redirects to."""
        return self._http.read_range(file.locator, start, end, what=f"{self._label}: {file.name}", size=file.size)

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()
        close_session()  # the library's own, which it would keep

    def _is_wanted(self, path: str) -> bool:
        return path == self._named if self._named else "/" not in path or path in NESTED

    def _info(self) -> ModelInfo:
        try:
            with translated(self._label):
                return self._api.model_info(
                    self._repo, revision=self._revision, files_metadata=True, timeout=READ_SECONDS
                )
        except RevisionNotFoundError:
            raise ModelNotFound(f"{self._label} has no revision {self._revision!r}") from None
        except GatedRepoError:
            raise ModelAccessDenied(
                f"{self._label} is gated: accept its conditions on the hub, then {TOKEN_REMEDY}"
            ) from None
        except OfflineModeIsEnabled:
            raise InvalidConfiguration("HF_HUB_OFFLINE is set, so no model can be fetched from a hub") from None
        except HfHubHTTPError as error:
            raise self._failure(error.response) from None
        except (ValueError, KeyError, TypeError):
            raise Broken("what the hub answers is not its API") from None

    def _failure(self, response: httpx2.Response) -> Exception:
        # To a stranger the hub says the same of a private repository and of one that does not exist.
        what = f"{self._label} is private or does not exist" if response.status_code == 401 else self._label
        return failure(response.status_code, what, remedy=TOKEN_REMEDY, headers=response.headers)

    def _file(self, entry: RepoSibling, commit: str) -> RemoteFile:
        name = local_name(entry.rfilename)
        url = hf_hub_url(self._repo, entry.rfilename, revision=commit, endpoint=self._endpoint)
        if entry.size is not None:
            return RemoteFile(name, entry.size, url, stamp=commit, digest=_digest(entry))
        facts = self._http.probe(url, what=f"{self._label}: {name}")  # some mirrors list names alone
        if facts.size is None:
            raise Broken(f"the hub does not tell the size of {name}")
        return RemoteFile(name, facts.size, url, stamp=commit, digest=facts.digest, ranged=facts.ranged)


def _digest(entry: RepoSibling) -> Digest | None:
    if entry.lfs is not None:
        return Digest("sha256", entry.lfs.sha256)
    return Digest("git", entry.blob_id) if entry.blob_id else None
