"""A page with code out of files: which file, and where its code begins and ends, stands in comments of both."""

from __future__ import annotations

import re
from collections.abc import Callable

_PLACE = re.compile(r"(<!-- (?P<path>\S+): by `make generate` -->\n).*?(<!-- end -->)", re.DOTALL)
_SHOWN = re.compile(r"^(?://|#) docs: begin\n(.*?)^(?://|#) docs: end\n", re.DOTALL | re.MULTILINE)
_LANGUAGES = {"py": "python", "mjs": "js"}


def with_code(page: str, read: Callable[[str], str]) -> str:
    """The page with the code of today at each place. `read` gives the text of a file of the project.

    Raises ValueError for a page without a place, or a file that does not say which part is shown.
    """
    made, places = _PLACE.subn(lambda found: f"{found[1]}{_block(found['path'], read)}{found[3]}", page)
    if not places:
        raise ValueError("the page has no place for code")
    return made


def _block(path: str, read: Callable[[str], str]) -> str:
    shown = _SHOWN.search(read(path))
    if shown is None:
        raise ValueError(f"{path} does not say which part is shown")
    return f"```{_LANGUAGES[path.rpartition('.')[2]]}\n{shown[1].strip()}\n```\n"
