"""Manifests spoilt at random: many are still right."""

import random
from pathlib import Path

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
