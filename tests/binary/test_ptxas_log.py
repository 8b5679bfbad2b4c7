"""The log of `-Xptxas -v`, from several releases."""

from tilusbuild.binary import PtxasUsage, parse_ptxas

CUDA_13 = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'recur' for 'sm_80'
ptxas info    : Function properties for recur
    16 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 1120 bytes cumulative stack size
ptxas info    : Compile time = 3.550 ms
ptxas info    : Function properties for _Z3fibi
    24 bytes stack frame, 20 bytes spill stores, 20 bytes spill loads
ptxas info    : Compiling entry function 'plain' for 'sm_90a'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 1024 bytes smem
"""

CUDA_11 = """\
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_70'
ptxas info    : Function properties for _Z1kPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 2048+0 bytes smem, 360 bytes cmem[0]
"""


def test_each_kernel_has_what_was_said_of_it_and_of_what_it_calls() -> None:
    recursive, plain = parse_ptxas(CUDA_13)
    assert recursive == PtxasUsage(
        arch="sm_80",
        kernel="recur",
        registers=24,
        stack=1120,
        spill_stores=20,
        spill_loads=24,
    )
    assert recursive.spill_bytes == 44
    assert plain == PtxasUsage("sm_90a", "plain", registers=10, static_smem=1024, barriers=1)


def test_what_an_older_release_does_not_say_is_zero() -> None:
    assert parse_ptxas(CUDA_11) == (PtxasUsage("sm_70", "_Z1kPf", registers=8, static_smem=2048),)


def test_other_output_in_between_is_passed_over() -> None:
    noisy = "\n".join(f"source.cu(3): warning #177-D: x\n{line}" for line in CUDA_13.splitlines())
    assert parse_ptxas(noisy) == parse_ptxas(CUDA_13)
    assert parse_ptxas("") == ()
    assert parse_ptxas("12 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads") == ()
