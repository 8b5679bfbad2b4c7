"""Trees of headers as projects have them, of several origins: equal names and equal texts, links
to files and to directories, `#pragma once`, `#include_next`, names of system headers.

Each file that is no link has a modification time of its own: gcc takes two files for one, after
`#pragma once`, by their content and this time.
"""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM = "system"
PLACES = (
    "project/kernels", "project/inc", "project/src", "other/inc", "more/inc", "repo/include",
    "repo/cutlass", "site/inc", SYSTEM,
)  # fmt: skip
"""`site/inc` is a package; in the package `site/flash`, `data/include` is a link to `repo`."""
_FILES = ("a.h", "b.h", "time.h", "sub/a.h", "sub/b.h", "cuda/a.h")
_NAMES = (
    *_FILES, *_FILES, "../a.h", "../sub/b.h", "sub/../b.h", "./b.h", "../inc/a.h", "../src/b.h",
    "link/a.h", "link/b.h", "link/../a.h", "cuda/../time.h", "include/a.h", "gone/../a.h",
)  # fmt: skip
SEARCHED = {
    '"inc"': "project/inc",
    '"src"': "project/src",
    '"src/cuda"': "project/src/cuda",
    '"same"': "project/same",
    '"../other/inc"': "other/inc",
    '"../other"': "other",
    '"../other/inc/sub"': "other/inc/sub",
    '"../more/inc"': "more/inc",
    '{ package = "flash", path = "data/include" }': "site/flash/data/include",
    '{ package = "flash", path = "data/cutlass" }': "site/flash/data/cutlass",
    '{ package = "flash", path = "data" }': "site/flash/data",
    '{ package = "inc", path = "." }': "site/inc",
}
"""How a manifest writes a directory of `include-dirs`, and where that is."""


@dataclass
class HeaderTree:
    """The files of a case (bytes, or where a link leads), and the directories to search."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    searched: list[str] = field(default_factory=list)
    source: str = ""

    def write(self, directory: Path) -> None:
        for subdirectory in (*PLACES, "project/src/cuda", "other/inc/sub", "site/flash/data"):
            (directory / subdirectory).mkdir(parents=True, exist_ok=True)
        for number, (name, text) in enumerate(self.files.items()):
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            os.utime(path, (number, number))
        for name, target in self.links.items():
            link = directory / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(directory / target, link.parent))
        manifest = f"""\
edition = 1
[build]
include-dirs = [{", ".join(self.searched)}]
[script.k]
template = "kernels/k.cu"
kernel = "k"
args = {{ n = "i32" }}
launch = {{ grid = "1", block = "1" }}
"""
        (directory / "project/tilus.toml").write_text(manifest)
        (directory / "project/kernels/k.cu").write_text('extern "C" void k(int n) {}')


def _include(rng: random.Random) -> str:
    name = rng.choice(_NAMES)
    word = rng.choice(("include",) * 6 + ("include_next",))
    operand = rng.choice((f'"{name}"', f'"{name}"', f"<{name}>"))
    if rng.random() < 0.7:
        return f"#if __has_{word}({operand})\n#{word} {operand}\n#endif"
    return f"#{word} {operand}"


def _text(rng: random.Random, number: int) -> str:
    includes = "\n".join(_include(rng) for _ in range(rng.randrange(3)))
    body = f"#if __INCLUDE_LEVEL__ < 6\n{includes}\n#endif\nint text_{number};\n"
    way = rng.randrange(4)
    if way < 2:
        return f"#pragma once\n{body}"
    return f"#ifndef G{number}\n#define G{number}\n{body}#endif\n" if way == 2 else body


def header_tree(rng: random.Random) -> HeaderTree:
    tree = HeaderTree()
    texts = [_text(rng, number) for number in range(rng.randrange(2, 7))]
    for subdirectory in PLACES:
        for name in _FILES:
            if rng.random() < 0.35:
                tree.files[f"{subdirectory}/{name}"] = rng.choice(texts)
                # docs/headers.md: one of the system may include what only the project has.
                if subdirectory == SYSTEM:
                    tree.files[f"{subdirectory}/{name}"] = (
                        rng.choice(("", "#pragma once\n")) + "int own;\n"
                    )
    # docs/headers.md: a link between the system and the project makes two files in the copy.
    own = [name for name in tree.files if not name.startswith(SYSTEM)]
    for subdirectory in PLACES[:-1]:
        if rng.random() < 0.25:
            tree.links[f"{subdirectory}/link"] = rng.choice(PLACES[:-1]) + rng.choice(
                ("", "/sub", "/cuda")
            )
        free = [
            f"{subdirectory}/{name}"
            for name in _FILES
            if f"{subdirectory}/{name}" not in tree.files
        ]
        if own and free and rng.random() < 0.3:
            tree.links[rng.choice(free)] = rng.choice(own)
    tree.links["site/flash/data/include"] = "repo/include"
    tree.links["site/flash/data/cutlass"] = "repo/cutlass"
    tree.links["project/same"] = rng.choice(("project/inc", "other/inc"))
    tree.searched = rng.sample([*SEARCHED], rng.randrange(1, 5))
    tree.source = "\n".join(_include(rng) for _ in range(rng.randrange(1, 4))) + "\nint end;\n"
    return tree
