"""rclone's S3 server: how it is called. Starts nothing."""

from __future__ import annotations

from pathlib import Path

ADDRESS = "127.0.0.1:9000"
ACCESS_KEY = "octavo"
SECRET_KEY = "octavo-secret"


def arguments(folder: Path, address: str = ADDRESS) -> list[str]:
    """Arguments of the server over `folder`, where each folder is a bucket; `address` is HOST:PORT."""
    return ["serve", "s3", f"--addr={address}", f"--auth-key={ACCESS_KEY},{SECRET_KEY}", "--config=", str(folder)]
