"""A certificate authority for tests, with openssl: certificates for 127.0.0.1, in the files of a mounted Secret."""

from __future__ import annotations

import os
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Authority:
    """Signs certificates; its own is `ca.crt` in `folder`."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, name: str = "Test CA") -> Authority:
        """A new one."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder)
        _openssl("req", "-x509", *_EC, "-days", "2", "-subj", f"/CN={name}", "-keyout", made._key, "-out", made.ca)
        return made

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def _key(self) -> Path:
        return self.folder / "ca.key"

    def issue(self, folder: Path, name: str) -> Path:
        """`tls.crt` and `tls.key` for 127.0.0.1 in `folder`, of the common name `name`."""
        folder.mkdir(parents=True, exist_ok=True)
        request = folder / "request.csr"
        _openssl("req", "-new", *_EC, "-subj", f"/CN={name}", "-keyout", folder / "tls.key", "-out", request)
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
        signing = ("-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-extfile", folder / "names")
        _openssl("x509", "-req", "-days", "2", *signing, "-in", request, "-out", folder / "tls.crt")
        return folder

    def client(self, identity: Path | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority, perhaps with a certificate of its own."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if identity is not None:
            context.load_cert_chain(identity / "tls.crt", identity / "tls.key")
        return context


class MountedSecret:
    """A directory as the kubelet keeps it: files are links into `..data`, and an update turns that one link."""

    def __init__(self, folder: Path, files: Path) -> None:
        self.folder, self._versions = folder, 0
        folder.mkdir()
        self.turn_to(files)
        for name in ("tls.crt", "tls.key"):
            (folder / name).symlink_to(Path("..data", name))

    def turn_to(self, files: Path) -> None:
        """From now on its files are those of another directory, all at once."""
        self._versions += 1
        version = self.folder / f"..version-{self._versions}"
        version.mkdir()
        for name in ("tls.crt", "tls.key"):
            (version / name).write_bytes((files / name).read_bytes())
        (self.folder / "..data_tmp").symlink_to(version.name)
        os.rename(self.folder / "..data_tmp", self.folder / "..data")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
