"""What is mounted below a folder, read from the kernel's own table, and taking it away."""

from __future__ import annotations

from pathlib import Path

from node.shell import run

_TABLE = Path("/proc/self/mountinfo")


def release(folder: Path) -> None:
    """Unmount whatever is mounted in `folder` or below it. What is still in use goes when its user does."""
    for point in below(folder, _TABLE.read_text()):
        run(["umount", "--lazy", point])


def below(folder: Path, table: str) -> list[Path]:
    """Mount points of a mount table that are `folder` or lie in it, the innermost first."""
    points = (Path(line.split()[4].replace("\\040", " ")) for line in table.splitlines())
    return sorted((point for point in points if point.is_relative_to(folder)), reverse=True)


def filesystem(folder: Path, table: str) -> str:
    """The type of the filesystem that `folder` is on, as a mount table names it; "" where the table does not say."""
    found: tuple[int, str] = (0, "")
    for line in table.splitlines():
        fields = line.split()
        point = Path(fields[4].replace("\\040", " "))
        if folder.is_relative_to(point) and len(point.parts) >= found[0]:
            found = len(point.parts), fields[fields.index("-") + 1]
    return found[1]
