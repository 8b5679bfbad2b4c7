"""Planning again with PyTorch's headers, beside the same project without them.

One source includes `torch/all.h`. A build looks the headers up once; it ends at an `#error`, so
that nobody waits for a compile. The template is edited before each plan, so that no plan is spared.
"""

from __future__ import annotations

from _bench import Arm, Ran, WorkNotDoneError, alternate, process, ratio

from _real import world
from _real.project import tilusbuild

_MANIFEST = """\
edition = 1
[project]
name = "torch-headers"
version = "0.1.0"
[build]
cache-dir = ".cache"
include-dirs = [
    { package = "torch", path = "include" },
    { package = "torch", path = "include/torch/csrc/api/include" },
]
[target.gpu]
arch = "sm_80"
[script.s]
template = "s.cu.j2"
kernel = "k"
args = { x = "f32*[n]", n = "i32" }
launch = { grid = ["1"], block = ["32"] }
"""


def measure(rounds: int) -> tuple[Arm, Arm, int]:
    """Return both arms, and how many headers the source can reach."""
    arms = [
        _arm(name, text) for name, text in (("with", "#include <torch/all.h>\n"), ("without", ""))
    ]
    alternate(arms, max(rounds, 5))
    listed = world.WORK / "torch-headers/with/.cache/include"
    return arms[0], arms[1], max(sum(p.is_file() for p in d.rglob("*")) for d in listed.iterdir())


def _arm(name: str, text: str) -> Arm:
    tree = world.WORK / "torch-headers" / name
    tree.mkdir(parents=True, exist_ok=True)
    template = tree / "s.cu.j2"
    (tree / "tilus.toml").write_text(_MANIFEST)
    template.write_text(f'#error here\n{text}extern "C" __global__ void k(float *x, int n) {{}}\n')
    cache = str(tree / ".cache")
    words = tilusbuild("plan", "--cache-dir", cache)
    # The build ends with status 1, as it must.
    process(
        ["sh", "-c", '"$@" || true', "sh", *tilusbuild("build", "--cache-dir", cache)],
        tree,
        world.environment(),
    )
    results: list[Ran] = []

    def edit() -> None:
        template.write_text(template.read_text() + "// again\n")

    def run() -> Ran:
        results.append(process(words, tree, world.environment()))
        return results[-1]

    return Arm(name, run, lambda: "1 to compile" in results[-1].out, edit)


def report(rounds: int) -> None:
    """Print the row."""
    torch, bare, headers = measure(rounds)
    if not headers:
        raise WorkNotDoneError("no header of PyTorch was laid out")
    extra = sorted(a.cpu - b.cpu for a, b in zip(torch.runs, bare.runs, strict=True))
    middle = extra[len(extra) // 2]
    print(f"\nPlan again, {headers:,} headers of PyTorch")
    print(f"  {'CPU with them by without':38}{ratio(torch, bare, 'cpu')}")
    print(f"  {'CPU that they add':38}{middle:.2f} s ({extra[0]:.2f}-{extra[-1]:.2f})", flush=True)
