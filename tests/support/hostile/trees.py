"""Cache trees: one that a build made, with links, FIFOs, sockets and garbage at any level."""

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

from support.hostile.manifests import damaged
from support.hostile.trial import Trial
from tilusbuild.state.directories import remove_tree

Copy = Callable[[Path], None]

_VERBS = tuple(
    tuple(line.split())
    for line in """
    cache gc,cache gc -n,cache clear,cache verify,cache verify --repair,cache ls,cache ls scale
    cache ls X,cache stats,cache show scale/0,cache show s/²,cache show scale/0 --log
    cache show scale/0 --source,cache export --layout tilus out,build -q,plan,explain,report
    package one -o dist,verify .cache,diff .cache .,dispatch show scale,compdb
    """.replace("\n", ",").split(",")
    if line.strip()
)


def _entries(root: Path) -> list[Path]:
    """Everything below a cache, and the cache itself."""
    paths = [root]
    for directory, directories, files in os.walk(root):
        paths += [Path(directory, name) for name in (*directories, *files)]
    return sorted(paths)


def disturb(rng: random.Random, box: Path, root: Path) -> None:
    """Put something odd in place of, or beside, one entry below `root`."""
    path = rng.choice(_entries(root))
    kind = rng.random()
    if kind < 0.35 and path.is_file() and not path.is_symlink():
        data = path.read_bytes()
        odd = (b"", b"\0" * 99, b"[]", b"{}", b"null", b'{"a": ' * 3000, b"\xff\xfe", b"\x1b[31m")
        path.write_bytes(rng.choice(odd) if rng.random() < 0.4 else damaged(rng, data))
        return
    if rng.random() < 0.5:
        path = path.with_name(
            rng.choice(("x", "\x1b[31m", "é", "lock", "a" * 200, "..x", "-rf", "x.pth"))
        )
        if path.exists() or path.is_symlink():
            return
    else:
        remove_tree(str(path))
    targets = [box / "outside" / "secret", Path("/dev/zero"), path]
    if path != root:  # a link there makes what it leads to the cache, as its user asked
        targets += [box / "outside", Path(".")]
    if kind < 0.65:
        path.symlink_to(rng.choice(targets))
    elif kind < 0.75:
        os.mkfifo(path)
    elif kind < 0.85:
        path.mkdir()
    elif kind < 0.95:
        path.write_bytes(rng.randbytes(rng.choice((0, 10, 5000))))
    elif len(os.fsencode(path)) < 100:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


def trial(rng: random.Random, copy: Copy) -> Trial:
    """Return a command on a disturbed cache."""
    words = rng.choice(_VERBS)
    if rng.random() < 0.3:
        words = (*words, "--json")

    def prepare(box: Path) -> None:
        copy(box / "project")
        for _ in range(rng.randint(1, 3)):
            root = box / "project" / ".cache"
            # As a link it may lead to the project, which it then is an entry of.
            if root.is_dir() and not root.is_symlink():
                disturb(rng, box, root)

    allowed = ("project/out", "project/dist", "project/compile_commands.json")
    return Trial(words, prepare=prepare, writes=allowed)
