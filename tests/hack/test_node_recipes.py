"""What a build makes anew, in which parts, and how much room it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from image_layers.__main__ import LAYERS
from image_layers.parts import parts
from node import (
    builder,
    images,
    recipes,
)
from node.config import Settings
from node.space import GIGABYTE


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state", cache=tmp_path / "cache", kubeconfig=None)


DOCKERFILE = """\
# A comment.
ARG BASE=debian
FROM ${BASE} AS compiler
RUN install compiler
FROM compiler AS big
ARG CACHE
COPY requirements/big.txt /big.txt
RUN install /big.txt
FROM big
COPY requirements/all.txt /all.txt
RUN install /all.txt
COPY code /code
"""
RECIPE = recipes.parts(DOCKERFILE)


def keys(dockerfile: str = DOCKERFILE, **contents: str) -> list[str]:
    return recipes.keys(recipes.parts(dockerfile), lambda source: contents.get(Path(source).stem, "").encode())


def test_a_recipes_parts_begin_where_files_or_stages_come_in() -> None:
    assert [(part.target, part.source, part.is_empty) for part in RECIPE] == [
        ("compiler", "", False),
        ("big", "", True),
        ("big", "requirements/big.txt", False),
        ("", "", True),
        ("", "requirements/all.txt", False),
        ("", "code", False),
    ]
    assert "".join(part.text for part in RECIPE) == DOCKERFILE.partition("\n")[2]


@pytest.mark.parametrize(
    ("changed", "same", "targets"),
    [
        (keys(), 6, []),
        (keys(code="changed"), 5, []),
        (keys(all="changed"), 4, []),
        (keys(big="changed"), 2, ["big"]),
        (keys(DOCKERFILE.replace("A comment", "Another")), 6, []),
        (keys(DOCKERFILE.replace("install compiler", "install another")), 0, ["compiler", "big"]),
    ],
)
def test_a_part_is_made_anew_from_the_first_that_changed(changed: list[str], same: int, targets: list[str]) -> None:
    assert [key in keys() for key in changed] == [True] * same + [False] * (6 - same)
    assert recipes.targets(RECIPE, changed, keys()) == targets


def test_a_build_needs_its_finished_layers_and_the_one_in_the_making_four_times() -> None:
    sizes = [("a", 1), ("b", 10), ("c", 2)]
    assert recipes.height(sizes, set()) == 1 + 4 * 10
    assert recipes.height(sizes, {"a"}) == 4 * 10
    assert recipes.height(sizes, {"a", "b"}) == 4 * 2
    assert recipes.height(sizes, {"a", "b", "c"}) == 0


def test_a_build_of_the_engine_stays_below_the_room_that_the_documents_name() -> None:
    """Much less from nothing than a single layer of all would need, and a part of that for a small requirement."""
    sizes = images.IMAGES["engine"].sizes
    assert recipes.height(sizes, set()) < 10 * GIGABYTE
    *known, requirements, code = [key for key, _ in sizes]
    assert recipes.height(sizes, known) < 2 * GIGABYTE
    assert recipes.height(sizes, [*known, requirements]) < 0.5 * GIGABYTE
    assert len({requirements, code, *known}) == len(sizes)


def test_a_file_of_other_rights_is_another_layer_but_the_same_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "CHECKOUT", tmp_path)
    (tmp_path / "Dockerfile").write_text("FROM base\nCOPY code /code\n")
    code = tmp_path / "code"
    code.write_text("code")
    image = images.Image("octavo-engine", tmp_path / "Dockerfile", (code,))
    seen = set()
    for mode in (0o644, 0o664, 0o644):
        code.chmod(mode)
        seen.add((image.reference, image.recipe[-1][1]))
    assert len(seen) == 2
    assert len({reference for reference, _ in seen}) == 1


def test_every_size_is_of_a_part_that_there_is() -> None:
    sources = {part.source for image in images.IMAGES.values() for part, _ in image.recipe}
    assert images._GIGABYTES.keys() <= sources


def test_large_stages_are_built_one_by_one_before_the_image(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(builder, "buildah", lambda _, *arguments, **__: called.append(arguments) or "")
    image = images.IMAGES["engine"]
    builder.build(
        settings, image.dockerfile, image.reference, settings.cache / "log", options=["--label=a=b"], targets=["x", "y"]
    )
    builds = [{*call} for call in called if call[0] == "build"]
    assert [sorted(part for part in call if part.startswith(("--target", "--label"))) for call in builds] == [
        ["--target=x"],
        ["--target=y"],
        ["--label=a=b"],
    ]
    assert [image.reference in call for call in builds] == [False, False, True]
    assert called[-1] == ("rmi", "--prune")


def test_what_the_builder_made_is_known_until_its_image_goes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.store(settings).mkdir(parents=True)
    there = {"localhost/octavo-engine:1", "localhost/octavo-engine:2"}
    monkeypatch.setattr(builder, "references", lambda _: there)
    assert builder.parts(settings) == set()
    builder.note_parts(settings, "localhost/octavo-engine:1", ["a", "b"])
    builder.note_parts(settings, "localhost/octavo-engine:2", ["a", "c"])
    assert builder.parts(settings) == {"a", "b", "c"}
    there.remove("localhost/octavo-engine:1")
    assert builder.parts(settings) == {"a", "c"}


REQUIREMENTS = """\
# Written by a tool.
nvidia-cublas==1 \\
    --hash=sha256:1
    # via torch
torch==2 ; python_version >= "3.11" \\
    --hash=sha256:2 \\
    --hash=sha256:3
torch-extra==4 \\
    --hash=sha256:4
"""


def test_requirements_are_parted_by_name_with_their_hashes() -> None:
    found = parts("all.txt", REQUIREMENTS, {"cuda.txt": "nvidia-.*", "torch.txt": "torch"})
    head = "# Part of all.txt, a layer of the image by itself: written by `make generate`.\n"
    assert found == {
        "cuda.txt": f"{head}nvidia-cublas==1 \\\n    --hash=sha256:1\n",
        "torch.txt": f'{head}torch==2 ; python_version >= "3.11" \\\n    --hash=sha256:2 \\\n    --hash=sha256:3\n',
    }


def test_a_requirement_goes_to_the_first_part_and_an_empty_part_is_refused() -> None:
    assert "torch==2" not in parts("all.txt", REQUIREMENTS, {"a": "torch.*", "b": "nvidia-.*"})["b"]
    with pytest.raises(ValueError, match="no requirement like triton"):
        parts("all.txt", REQUIREMENTS, {"a": "triton"})


def test_the_engines_recipe_installs_each_part_and_all_of_it_in_the_end() -> None:
    sources = [part.source for part, _ in images.IMAGES["engine"].recipe]
    assert {*LAYERS} == {source for source in sources if source.startswith("requirements/engine-")}
    assert sources[-2:] == ["requirements/engine.txt", "engine/octavo_engine"]
