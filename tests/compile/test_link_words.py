"""A link of any number of objects is a command of one length: the objects are in a file."""

import shlex

import pytest
from msgspec.structs import replace

from support.recipes import make_recipe
from tilusbuild.compile.model import Link, Pipeline
from tilusbuild.compile.pipelines.library import LIBRARY_PIPELINES

LINKS = [
    link_pipeline for (_, form), link_pipeline in LIBRARY_PIPELINES.items() if form != "object"
]
INPUTS = tuple(f"project/objects (of) {'x' * 200}/{number}.o" for number in range(12_000))


@pytest.mark.parametrize("pipeline", LINKS)
@pytest.mark.parametrize("rdc", [False, True])
def test_a_command_does_not_grow(pipeline: Pipeline, rdc: bool) -> None:
    recipe = make_recipe("host")
    link = Link(inputs=INPUTS, objects=("hash",) * 12_000, rpath=("a b,c",), soname="l (1).so")
    recipe = replace(recipe, pipeline=pipeline, link=link, part=replace(recipe.part, rdc=rdc))
    assert all(len(" ".join(step.argv)) < 1000 for step in pipeline.list_commands(recipe))
    files = {name: shlex.split(text) for name, text in pipeline.generate_files(recipe).items()}
    assert len(files["objects.txt"]) == 24_000
    if pipeline.product == "lib.so":
        assert {"a b,c", "l (1).so"} < {*files["link.txt"]}
