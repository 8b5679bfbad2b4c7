"""Given the PTX of a unit, when a program takes its own of it, then no other kernel is in it."""

import pytest
from msgspec.structs import replace

from support.recipes import make_recipe
from tilusbuild.compile.model import Recipe
from tilusbuild.compile.units import extract_kernel, find_entries

HEAD = ".version 9.0\n.target sm_80\n.address_size 64\n\n"
DECLARED = ".visible .entry {0}\n(\n\t.param .u64 {0}_param_0\n)\n;\n"
NAMED = ".global .align 8 .u64 tilus_kernel_{1} = {0};\n"
DEFINED = """\
\t// .globl\t{0}
.visible .entry {0}(
\t.param .u64 {0}_param_0
)
.maxntid 128, 1, 1
{{
\t// begin inline asm
\t{{
}}
;
\t// end inline asm
{more}\tret;

}}
"""


def ptx(names: tuple[str, ...], more: str = "") -> bytes:
    text = HEAD + "".join(DECLARED.format(name) for name in names)
    text += "".join(NAMED.format(name, number) for number, name in enumerate(names))
    return (text + "".join(DEFINED.format(name, more=more) for name in names)).encode()


def recipe(number: int, *, with_ptx: bool = False) -> Recipe:
    unit = tuple(f"k<{index}>" for index in range(3))
    return replace(make_recipe("kernel"), symbol=unit[number], unit=unit, ptx=with_ptx)


NAMES = ("scale_1", "scale_12", "scale_2")


@pytest.mark.parametrize("number", range(3))
def test_the_other_kernels_are_left_out(number: int) -> None:
    unit_ptx = ptx(NAMES)
    kernels = find_entries(unit_ptx)
    assert [name for name, _, _ in kernels] == [*NAMES, *NAMES]  # declared, then defined
    kernel_ptx = extract_kernel(recipe(number), unit_ptx, kernels).decode()
    own = NAMES[number]
    assert DECLARED.format(own) in kernel_ptx
    assert DEFINED.format(own, more="").split("\n", 1)[1] in kernel_ptx
    assert kernel_ptx.count(".entry") == 2
    assert kernel_ptx.count("tilus_kernel_") == 3  # what names the kernels is taken out as before


def test_all_is_left_where_something_else_names_a_kernel_or_the_ptx_is_a_product() -> None:
    unit_ptx = ptx(NAMES) + b".global .u64 table[1] = {scale_1};\n"
    assert extract_kernel(recipe(1), unit_ptx, find_entries(unit_ptx)) == unit_ptx
    assert extract_kernel(recipe(0), unit_ptx, find_entries(unit_ptx)) != unit_ptx
    unit_ptx = ptx(NAMES)
    assert extract_kernel(recipe(0, with_ptx=True), unit_ptx, find_entries(unit_ptx)) == unit_ptx
    assert find_entries(ptx(NAMES, more="\t.loc\t1 3 5\n")) == []


def test_ptx_that_ends_too_soon_is_left_as_it_is() -> None:
    assert [find_entries(ptx(NAMES)[:cut]) for cut in (-2, -40, -90)] == [[]] * 3
