"""Code on a page is the code of the files that it names, or the page is refused."""

from __future__ import annotations

import pytest

from snippets.page import with_code

PAGE = "Before.\n<!-- a/b.py: by `make generate` -->\nold\n<!-- end -->\nAfter.\n"
FILES = {
    "a/b.py": "import x\n# docs: begin\n\ny = 1\n# docs: end\nz = 2\n",
    "c.mjs": "// docs: begin\nz;\n// docs: end\n",
}


def test_what_a_file_shows_stands_at_its_place_and_again_the_same() -> None:
    made = with_code(PAGE, FILES.__getitem__)
    assert made == ("Before.\n<!-- a/b.py: by `make generate` -->\n```python\ny = 1\n```\n<!-- end -->\nAfter.\n")
    assert with_code(made, FILES.__getitem__) == made


def test_several_places_and_languages() -> None:
    made = with_code(PAGE + PAGE.replace("a/b.py", "c.mjs"), FILES.__getitem__)
    assert "```python\ny = 1\n```" in made
    assert "```js\nz;\n```" in made


@pytest.mark.parametrize(("page", "files"), [("nothing\n", FILES), (PAGE, {"a/b.py": "y = 1\n"})])
def test_what_cannot_be_shown_is_told(page: str, files: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"the page has no place|does not say which part"):
        with_code(page, files.__getitem__)
