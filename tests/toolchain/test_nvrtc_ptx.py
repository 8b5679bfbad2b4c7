"""What a kernel does not reach is taken out of PTX, and nothing else changes."""

import pytest

from tilusbuild.toolchain.nvrtc_library import reached

HEAD = b""".version 9.0
.target sm_90a
.address_size 64
.file 1 "a;b{c.cu"
"""
KERNEL = b""".visible .entry k(
	.param .u64 k_param_0 // not ( a bracket
)
.maxntid 128, 1, 1
{
	{ .reg .b32 r; } /* } */
	mov.u64 %rd1, used; $L__BB0_1: call (r), helper, (p);
	.pragma "} unused {";
	ret;
}
"""
UNUSED = [
    b".global .align 8 .u64 _ZN4cuda5valueE;",
    b".global .align 1 .b8 other[4] = {1, 2, 3, 59};",
    b".const .align 4 .b8 lut[12];",
    b".visible .global .align 8 .u64 one = generic(two);",
    b".global .align 4 .u32 two;",
    b".func (.param .b32 func_retval0) idle(\n\t.param .b32 p\n)\n{\n\tmov.b32 %r1, two;\n}",
    b".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b)\n;",
]
USED = [
    b".global .align 4 .u32 used = third;",
    b".global .align 8 .b8 third[8] = {1};",
    b".func helper(\n\t.param .b32 used_param\n)\n{\n\tld.const.u32 %r1, [deep+4];\n}",
    b".const .align 4 .b8 deep[12];",
]
UNKNOWN = [
    b".extern .shared .align 16 .b8 room[];",
    b".alias a, kept_by_alias;",
    b".global .u32 kept_by_alias;",
    b".global .u32 first, second;",
    b".global .attribute(.managed) .u32 seen_by_the_host;",
    b".section .debug_str { .b8 1, 2\n}",
]


def module(*statements: bytes) -> bytes:
    return HEAD + b"\n".join([*statements, KERNEL])


def test_what_no_kernel_reaches_goes_and_the_rest_stays_where_it_was():
    mixed = [each for pair in zip(UNUSED, USED + UNKNOWN, strict=False) for each in pair]
    rest = (USED + UNKNOWN)[len(UNUSED) :]
    made = reached(module(*mixed, *rest))
    assert made.split() == module(*USED, *UNKNOWN).split()
    assert KERNEL in made


@pytest.mark.parametrize("statement", UNUSED)
def test_each_alone(statement):
    if b"generic" in statement:
        statement += b"\n" + UNUSED[4]
    assert reached(module(statement)).split() == module().split()


@pytest.mark.parametrize("kept", [(), USED, UNKNOWN])
def test_nothing_is_said_where_all_is_reached(kept):
    assert reached(module(*kept)) == b""


@pytest.mark.parametrize("broken", [b".global .u32 x", b"}", b'.global .u32 x; "', b"("])
def test_text_that_is_not_understood_stays(broken):
    assert reached(module(UNUSED[0]) + broken) == b""
