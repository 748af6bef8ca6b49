"""What benchmarks leave for readers: a picture, and a table between two marks of a document."""

from __future__ import annotations

import os
import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def figure(width: float, height: float) -> Figure:
    """An empty figure in inches, in the manner of all pictures here."""
    mpl.rcParams.update({"svg.hashsalt": "octavo", "svg.fonttype": "none", "font.size": 8, "font.family": "sans-serif"})
    return Figure(figsize=(width, height), layout="constrained")


def plain(axes: Axes) -> None:
    """No frame on the sides where nothing is read."""
    axes.spines[["top", "right"]].set_visible(False)


def save(picture: Figure, path: Path, creator: str) -> None:
    """Write as SVG; equal figures give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, format="svg", metadata={"Date": None, "Creator": creator})
    path.write_text(_compact(path.read_text(encoding="utf-8")), encoding="utf-8")


def _compact(svg: str) -> str:
    """The same picture with coordinates to a tenth of a point and without blanks at the ends of lines."""
    rounded = re.sub(r"(?<![\d.-])-?\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}", svg)
    return "\n".join(line.strip() for line in rounded.splitlines()) + "\n"


def linked(picture: Path, document: Path, words: str) -> str:
    """A picture as a document shows it; `words` say what is on it."""
    return f"![{words}]({os.path.relpath(picture, document.parent)})"


def put(document: Path, mark: str, text: str) -> None:
    """Replace what stands between the document's marks; raises ValueError where it has none."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, found, rest = document.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{document} has no marks {begin} and {end}")
    document.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
