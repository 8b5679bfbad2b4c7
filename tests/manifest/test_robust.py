"""Manifests spoilt at random: each loads, or says in located errors what is wrong with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tilusbuild.errors import InputError
from tilusbuild.manifest.model import Manifest

EXAMPLE = (Path(__file__).parents[2] / "tilus.toml.example").read_text(encoding="utf-8")
VALUES = (
    """
1|-1|true|1.5|nan|inf|""|"x"|"a, b"|[]|["a"]|[[]]|[[1, 2]]|{}|{ a = 1 }|1979-05-27|{ values = [] }
{ range = [0, 99999999999] }|{ range = [1, 2, 0] }|{ pow2 = [0, -4] }|{ pow2 = [1.0, 2] }|"m"
"block_m"|"m +"|"../x"|"/"|"\\u0000"|"\\n"|99999999999999999999999|[[[[1]]]]|{ when = 1 }|[{}]
{ values = [[1], [2, 3]], default = 3 }|"f16*[m, "|"é"|"-O3 -g"|[{ m = 1 }]
""".strip()
    .replace("\n", "|")
    .split("|")
)
KEYS = ["x", "block_m", "when", "kernel", "m", "edition", "values", '"p, q"', "stages.x"]
HEADERS = ["[[script]]", "[script]", "[target.x]", "[[script.matmul.space.q]]", "[script.'']"]


def spoilt(draw: random.Random) -> str:
    """The example with some lines changed, added or taken out."""
    lines = EXAMPLE.split("\n")
    for _ in range(draw.choice([1, 1, 2, 4])):
        at = draw.randrange(len(lines))
        if " = " in lines[at]:
            lines[at] = f"{lines[at].split(' = ')[0]} = {draw.choice(VALUES)}"
        elif lines[at].startswith("[") and draw.random() < 0.5:
            lines[at] = draw.choice(HEADERS)
        elif draw.random() < 0.5:
            lines.insert(at, f"{draw.choice(KEYS)} = {draw.choice(VALUES)}")
        else:
            lines[at] = ""
    return "\n".join(lines)


def see_everything(manifest: Manifest) -> None:
    """What a checked manifest promises not to fail."""
    for name, script in manifest.scripts.items():
        for target in manifest.targets_of(name):
            views = (script.params_for, script.space_for, script.derived_for, script.restrict_for)
            for view in (*views, script.launch_for, script.default_for):
                view(target)
            manifest.flags_for(name, target)
            manifest.defines_for(name, target)


@pytest.mark.parametrize("seed", range(60))
def test_loads_or_says_where(seed: int, load_example: Callable[[str], Manifest]) -> None:
    try:
        see_everything(load_example(spoilt(random.Random(seed))))
    except InputError as error:
        places = [diagnostic.place for diagnostic in error.diagnostics]
        assert places
        assert all(place is not None and place.path == "tilus.toml" for place in places)
