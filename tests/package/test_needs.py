"""What libraries ask of a host together, and which wheel tag, programs and names follow."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from tilusbuild.binary.elf import LibraryNeeds as Library
from tilusbuild.embed.wheel import choose_platform, normalize_name
from tilusbuild.package.collect import find_reachable
from tilusbuild.package.contents import PackedLibrary, collect_host_needs
from tilusbuild.package.errors import PackageError
from tilusbuild.package.listing import HostNeeds

PLAIN = Library("x86_64", ("libc.so.6",), (2, 14), frozenset())
LAUNCHER = replace(PLAIN, exports=frozenset({"__tvm_ffi_launch"}))
HOST = HostNeeds("x86_64", None, None, (), None)


def together(*libraries: tuple[Library, str]) -> HostNeeds:
    numbered_libraries = enumerate(libraries)
    return collect_host_needs(
        PackedLibrary(f"lib{i}.so", library, options)
        for i, (library, options) in numbered_libraries
    )


def test_the_most_that_any_library_asks_for() -> None:
    other = replace(PLAIN, libraries=("libm.so.6",), glibc=(2, 9), libstdcxx=(3, 4, 30))
    assert together((LAUNCHER, ""), (other, "")) == HostNeeds(
        "x86_64", None, "2.14", ("libc.so.6", "libm.so.6"), "0.1.9", "3.4.30"
    )


@pytest.mark.parametrize(
    ("options", "isa"),
    [
        (("",), None),
        (("g++ -march=x86-64 x.cc",), None),
        (("g++ -march=x86-64-v2 x.cc", "gcc -O2"), "x86-64-v2"),
        (("g++ -march=haswell x.cc", "g++ -march=x86-64-v2 x.cc"), "x86-64-v2+haswell"),
        (("g++ -march=armv8-a",), None),
        (("nvcc -Xcompiler -march=x86-64-v4",), "x86-64-v4"),
    ],
)
def test_the_instruction_set(options: tuple[str, ...], isa: str | None) -> None:
    assert together(*((PLAIN, option) for option in options)).isa == isa


def test_a_package_is_for_one_machine() -> None:
    with pytest.raises(PackageError, match=r"lib1\.so is for aarch64"):
        together((PLAIN, ""), (replace(PLAIN, machine="aarch64"), ""))
    with pytest.raises(PackageError, match="no library"):
        together()


@pytest.mark.parametrize(
    ("needs", "tag"),
    [
        (HOST, "manylinux_2_17_x86_64"),
        (replace(HOST, glibc="2.3"), "manylinux_2_17_x86_64"),
        (replace(HOST, glibc="2.34", machine="aarch64"), "manylinux_2_34_aarch64"),
        (replace(HOST, libraries=("libstdc++.so.6",), libstdcxx="3.4.21"), "manylinux_2_24_x86_64"),
        (replace(HOST, glibc="2.38", libstdcxx="3.4.29"), "manylinux_2_38_x86_64"),
        (replace(HOST, libstdcxx="3.4.99"), "linux_x86_64"),
        (replace(HOST, libraries=("libcudart.so.13",)), "linux_x86_64"),
    ],
)
def test_the_tag_of_a_wheel(needs: HostNeeds, tag: str) -> None:
    assert choose_platform(needs) == tag


def test_names_of_wheels() -> None:
    assert normalize_name("Attention_Kernels.v2-runtime") == "attention-kernels-v2-runtime"
    with pytest.raises(PackageError, match="cannot name a wheel"):
        normalize_name("_kernels_")


def script(tmp_path: Path, tables: str = "[]", **changes: object) -> Any:
    from tilusbuild.runtime.script import Script

    (tmp_path / "dispatch_table.json").write_text(
        f'{{"schema": 2, "keys": ["n"], "tables": {tables}}}'
    )
    nothing: Mapping[Any, Any] = MappingProxyType({})
    values: dict[str, Any] = dict.fromkeys(Script._fields, nothing)
    values.update(
        path=str(tmp_path),
        programs=dict(enumerate("abcdef")),
        buckets={"n": int},
        rules=(),
        model=None,
    )
    values.update({"default": None, "not_built": {0: "failed"}, **changes})
    return Script(**values)


ROWS = (
    '[{"fingerprint": {"script": "s", "device": "d", "arch": "a"},'
    ' "entries": [[[8], 3, 1, [8], null, false, []]]}]'
)


def test_dispatch_reaches_tables_rules_and_the_default(tmp_path: Path) -> None:
    from tilusbuild.runtime.script import DispatchRule

    rules = (DispatchRule("n < 2", lambda sizes: True, 5),)
    assert find_reachable(script(tmp_path, ROWS, rules=rules, default=2)) == {2, 3, 5}


def test_without_a_default_that_was_built_the_first_program_serves(tmp_path: Path) -> None:
    assert find_reachable(script(tmp_path, ROWS)) == {1, 3}
    assert find_reachable(script(tmp_path, ROWS, default=0)) == {1, 3}


def test_a_model_reaches_everything_unless_something_was_measured(tmp_path: Path) -> None:
    from tilusbuild.runtime.script import ScriptModel

    model = ScriptModel("1", lambda sizes: 1, {})
    assert find_reachable(script(tmp_path, model=model)) == {1, 2, 3, 4, 5}
    assert find_reachable(script(tmp_path, ROWS, model=model, default=4)) == {3, 4}
