"""What a target sees of a script: the script's tables with the target's override over them."""

from collections.abc import Callable

import pytest

from tilusbuild.manifest.model import Manifest
from tilusbuild.space.model import Parameter

SCRIPT = """
default = { block = 32 }
flags = ["-O1"]
defines = { A = 1, B = "x" }
params = { dtype = ["f16", "bf16"], bytes = 2, "u, v" = [[1, 2], [3, 4]] }
args = { x = "f32*[n]", n = "i32" }
[script.m.space]
block = { pow2 = [16, 64] }
stages = { range = [2, 6, 2], default = 4 }
split = { values = [1, 2], when = "block > 16", else = 1 }
"i, j" = { values = [[1, 2], [2, 1]], default = [2, 1] }
[script.m.derived]
area = "block * stages"
half = "area // 2"
[script.m.restrict]
small = "area < 100"
even = "half % 2 == 0"
[script.m.override.gpu]
params.bytes = 4
space.stages = [3]
space.extra = [false, true]
derived.half = 7
restrict.small = false
restrict.more = "extra or block > 16"
launch.block = ["block"]
default = { block = 64 }
flags = ["-w"]
defines = { A = false, C = true }
[build]
flags = ["-O3"]
defines = { A = 0, Z = 1.5 }
include-dirs = ["include"]
[target.other]
arch = "sm_80"
flags = ["-restrict"]
defines = { B = "t", T = 1 }
[target.host]
arch = "cpu"
flags = ["-O2"]
"""


@pytest.fixture
def manifest(load_script: Callable[[str], Manifest]) -> Manifest:
    return load_script(SCRIPT)


def test_parameters_are_rows_of_values(manifest: Manifest) -> None:
    space = manifest.scripts["m"].list_tuning_parameters("other")
    assert list(space) == ["block", "stages", "split", "i, j"]
    assert space["block"] == Parameter(("block",), ((16,), (32,), (64,)))
    assert space["stages"] == Parameter(("stages",), ((2,), (4,), (6,)), default=(4,))
    assert space["i, j"] == Parameter(("i", "j"), ((1, 2), (2, 1)), default=(2, 1))
    split = space["split"]
    assert (split.values, split.otherwise) == (((1,), (2,)), (1,))
    assert split.when is not None
    assert split.when.names == {"block"}


def test_an_entry_of_an_override_replaces_the_whole_entry(manifest: Manifest) -> None:
    space = manifest.scripts["m"].list_tuning_parameters("gpu")
    assert list(space) == ["block", "stages", "split", "i, j", "extra"]
    assert space["stages"] == Parameter(("stages",), ((3,),))
    assert space["extra"].values == ((False,), (True,))


def test_constants_are_rows_too(manifest: Manifest) -> None:
    script = manifest.scripts["m"]
    dtype, size, linked = script.list_constants("other")
    assert (dtype.names, dtype.values) == (("dtype",), (("f16",), ("bf16",)))
    assert size.values == ((2,),)
    assert (linked.names, linked.values) == (("u", "v"), ((1, 2), (3, 4)))
    assert script.list_constants("gpu")[1].values == ((4,),)


def test_derived_values_and_rules(manifest: Manifest) -> None:
    script = manifest.scripts["m"]
    assert {n: e.source for n, e in script.parse_derived_values("gpu").items()} == {
        "area": "block * stages",
        "half": "7",
    }
    assert list(script.parse_rules("other")) == ["small", "even"]
    assert list(script.parse_rules("gpu")) == ["even", "more"]


def test_launch_keeps_what_an_override_leaves_out(manifest: Manifest) -> None:
    launch = manifest.scripts["m"].merge_launch("gpu")
    assert launch is not None
    assert (launch.grid, launch.block, launch.smem) == ((1,), ("block",), None)
    assert manifest.scripts["m"].merge_launch("other") == manifest.scripts["m"].launch


def test_defaults_of_parameters_go_behind_those_of_the_script(manifest: Manifest) -> None:
    script = manifest.scripts["m"]
    assert script.merge_default("other") == {"block": 32, "stages": 4, "i": 2, "j": 1}
    assert script.merge_default("gpu") == {"block": 64, "i": 2, "j": 1}


def test_flags_come_from_the_build_then_the_target_then_the_script(manifest: Manifest) -> None:
    assert manifest.merge_flags("m", "other") == ("-O3", "-restrict", "-O1")
    assert manifest.merge_flags("m", "gpu") == ("-O3", "-w")
    assert manifest.merge_flags("m", "host") == ("-O2",)


def test_macros_are_merged_by_name(manifest: Manifest) -> None:
    assert manifest.merge_defines("m", "other") == {"A": "1", "B": "x", "T": "1", "Z": "1.5"}
    assert manifest.merge_defines("m", "gpu") == {"B": "x", "C": "1", "Z": "1.5"}


def test_places(manifest: Manifest) -> None:
    assert str(manifest.locate_key("script", "m", "space", "stages")) == "tilus.toml:19:1"
    assert (
        str(manifest.locate_key("script", "m", "space", "i, j", "values", 1)) == "tilus.toml:21:30"
    )
    assert str(manifest.locate_key("script", "m", "prune", "x")) == "tilus.toml:7:9"
    assert manifest.resolve_override("m", "gpu", "space", "stages")[2] == "override"
    assert manifest.resolve_override("m", "other", "space", "stages")[2] == "space"


def test_a_manifest_is_frozen_all_the_way(manifest: Manifest) -> None:
    with pytest.raises(AttributeError):
        manifest.scripts["m"].template = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        manifest.scripts["n"] = manifest.scripts["m"]  # type: ignore[index]
    with pytest.raises(TypeError):
        manifest.scripts["m"].space["x"] = manifest.scripts["m"].space["block"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("durations", "sizes"),
    [(('"10m"', 600), ('"100MB"', 10**8)), (('"1h30m"', 5400), ('"1.5GiB"', 3 << 29)),
     (("2.5", 2.5), ("7", 7)), (('"500ms"', 0.5), ('"2 kB"', 2000))],
)  # fmt: skip
def test_durations_and_sizes(load_script, durations, sizes) -> None:
    (duration, seconds), (size, count) = durations, sizes
    text = f"[build]\ntimeout = {duration}\n[package.x]\nmax-size = {size}\n"
    manifest = load_script(text)
    assert (manifest.build.timeout, manifest.packages["x"].max_size) == (seconds, count)


def test_a_manifest_without_mistakes_is_not_scanned_for_places(manifest: Manifest) -> None:
    assert "locations" not in manifest._document.__dict__


TOOLCHAINS = """
targets = ["gpu", "old"]
std = "c++20"
[script.n]
template = "m.cu.j2"
kernel = "m"
args = { n = "i32" }
launch = { grid = [1], block = [32] }
toolchain = "b"
[target.old]
arch = "sm_75"
toolchain = "a"
[toolchain]
nvcc = ">=13"
std = "c++14"
host-march = "x86-64-v2"
cudart = "shared"
[toolchain.named.a]
nvcc = "==12.8.*"
std = "c++17"
device-compiler = "nvrtc"
[toolchain.named.b]
host-march = "x86-64-v3"
cudart = "static"
"""


def test_a_scripts_toolchain_goes_before_its_targets(load_script) -> None:
    manifest = load_script(TOOLCHAINS)
    names = {
        (script, target): manifest.find_toolchain_name(script, target)
        for script in ("m", "n")
        for target in ("gpu", "old")
    }
    assert names == {("m", "gpu"): "", ("m", "old"): "a", ("n", "gpu"): "b", ("n", "old"): "b"}


def test_a_toolchain_is_laid_over_the_one_without_a_name(load_script) -> None:
    manifest = load_script(TOOLCHAINS)
    a, b = (manifest.get_named_toolchain(name) for name in "ab")
    assert (a.nvcc, a.std, a.host_march, a.cudart) == ("==12.8.*", "c++17", "x86-64-v2", "shared")
    assert (b.nvcc, b.std, b.host_march, b.cudart) == (">=13", "c++14", "x86-64-v3", "static")
    assert manifest.get_named_toolchain("") == manifest.toolchain
    assert manifest.resolve_toolchain_key("a", "nvcc") == ("toolchain", "named", "a", "nvcc")
    assert manifest.resolve_toolchain_key("b", "nvcc") == ("toolchain", "nvcc")
    # A script's own goes before its toolchain's.
    assert [manifest.find_std("m", target) for target in ("gpu", "old")] == ["c++20", "c++20"]
    assert manifest.find_std("n", "old") == "c++14"
    assert [manifest.find_cudart(script, "old") for script in "mn"] == ["shared", "static"]
    compilers = [manifest.find_script_device_compiler("m", target) for target in ("gpu", "old")]
    assert compilers == [None, "nvrtc"]
