"""The arguments of a manifest are compared with the kernel's declaration before any compile, as far
as the text declares them: a difference is an error."""

from pathlib import Path

import pytest

from tilusbuild.errors import InputError
from tilusbuild.manifest.loading import load_manifest

KERNEL = 'extern "C" __global__ void k(const float *x, float *y, int n) {}\n'
HOST = KERNEL.replace("__global__ ", "")
BOTH = f'{{% if target.kind == "cpu" %}}\n{HOST}{{% else %}}\n{KERNEL}{{% endif %}}\n'
Y = 'y = { type = "f32*[n]", out = true }'
RIGHT = f'x = "f32*[n]", {Y}, n = "i32"'


def read_message(
    tmp_path: Path, args: str, kernel: str = KERNEL, more: str = "", arch: str = "sm_80"
) -> str:
    """Load a manifest. Return its mistakes: the text at the place, and the message."""
    text = f"""\
edition = 1
target.t = {{ arch = "{arch}" }}
[script.k]
template = "k.cu.j2"
kernel = "k"
launch = {{ grid = 1, block = 32 }}
args = {{ {args} }}
{more}
"""
    (tmp_path / "tilus.toml").write_text(text)
    (tmp_path / "k.cu.j2").write_text(kernel)
    try:
        load_manifest(str(tmp_path / "tilus.toml"))
    except InputError as error:
        lines = []
        for message, location, *_ in error.diagnostics:
            assert location is not None
            assert location.text in text.split("\n")
            start = (location.column or 1) - 1
            lines.append(f"{(location.text or '')[start : start + location.width]}: {message}")
        return "\n".join(lines)
    return ""


WRONG = {
    f'x = "f16*[n]", {Y}, n = "i32"':
        '"f16*[n]": "x" is f16*[n], and "k" takes "const float *x", which is f32*[n]',
    f'x = "f64*[n, 2]", {Y}, n = "i32"':
        '"f64*[n, 2]": "x" is f64*[n, 2], and "k" takes "const float *x", which is f32*[n, 2]',
    f'x = "i32*[n]", {Y}, n = "i32"':
        '"i32*[n]": "x" is i32*[n], and "k" takes "const float *x", which is f32*[n]',
    f'x = "f32", {Y}, n = "i32"':
        '"f32": "x" is f32, and "k" takes "const float *x", which is f32*[...]',
    f'x = "f32*[4]", {Y.replace("n", "4")}, n = "i32*[4]"':
        '"i32*[4]": "n" is i32*[4], and "k" takes "int n", which is i32',
    f'x = "f32*[n]", {Y}, n = "i64"': '"i64": "n" is i64, and "k" takes "int n", which is i32',
    f'{Y}, x = "f32*[n]", n = "i32"': 'y: "y" is in another order: "k" has it as parameter 2',
    f'x = {{ type = "f32*[n]", out = true }}, {Y}, n = "i32"':
        '"f32*[n]": "x" is an output, and "k" takes "const float *x"',
    f'{RIGHT}, m = "i32"': 'm: "k" has no parameter "m"',
    'z = "[n]"': 'z: "k" has no parameter "z"',
    'a = "f32*[n]", n = "i32"': 'a: "k" has no parameter "a"',
}  # fmt: skip


@pytest.mark.parametrize("args", WRONG)
@pytest.mark.parametrize(("kernel", "arch"), [(KERNEL, "sm_80"), (BOTH, "sm_90"), (BOTH, "cpu")])
def test_a_difference_is_an_error_for_every_target(
    tmp_path: Path, args: str, kernel: str, arch: str
) -> None:
    assert read_message(tmp_path, args, kernel, arch=arch) == WRONG[args]


@pytest.mark.parametrize(
    ("args", "kernel"),
    [
        (RIGHT, KERNEL),
        (RIGHT, BOTH),
        ("", KERNEL),
        ('x = "[n]"', KERNEL),
        ('p = "f32*[n]", q = "f32*[n]", n = "i32"', KERNEL),
        ('x = "void*", y = "f32*[n]", n = "i32"', KERNEL),
        ('x = "f16*[n]", y = "f16*[n]", n = "i32"', KERNEL.replace("float", "uint16_t")),
        ('x = "u8*[n]", y = "bool*[n]", n = "i32"', KERNEL.replace("float", "char")),
        ('x = "f16*[n]", y = "f16*[n]", n = "i32"', KERNEL.replace("float", "half2")),
        ('x = "f16*[n]", y = "f16*[n]", n = "i32"', KERNEL.replace("float", "{{ dtype }}")),
        ('x = "f16*[n]", y = "f16*[n]", n = "i32"', KERNEL.replace("float", "void")),
        ('x = "f16*[n]", n = "i32"', KERNEL.replace("float *y", "{% if y %}float *y{% endif %}")),
        ('x = "f16*[n]", n = "i32"', KERNEL.replace("float *y", "\n#if A\nfloat *y\n#endif\n")),
        ('x = "f16*[n]", n = "i32"', KERNEL.replace("float *y", "MORE(a, b) c")),
        ('x = "f16*[n]", n = "i32"', '#include "k.cuh"\n'),
        ('x = "f16*[n]", n = "i32"', '#include "k.cuh"\n__global__ void other(int n) {}\n'),
        ('x = "f16*[n]", n = "i32"',
         "#define K(k) __global__ void k(H *x, int n) {}\nK(k)\n__global__ void o(int n) {}\n"),
        ('x = "f16*[n]", n = "i32"', '{% import "k.j2" as k %}{{ k.kernel() }}\n'),
        ('x = "f64*[n]", n = "i32"', "template <class T> __global__ void k(T *x, int n) {}\n"),
        ('x = "f64*[n]", y = "f64*[n]", n = "i32"', KERNEL + KERNEL.replace("float", "double")),
        ('x = "f64*[n]", n = "i32"',
         "#ifndef REAL\n#define REAL float\n#endif\n__global__ void k(REAL *x, int n) {}\n"),
        ('x = "f32*[n]", n = "i32", m = { type = "i32", parameter = false }',
         "__global__ void k(float *x, int n) {}\n"),
    ],
)  # fmt: skip
def test_what_the_text_does_not_say_is_not_compared(tmp_path: Path, args: str, kernel: str) -> None:
    assert read_message(tmp_path, args, kernel) == ""


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("CPP", True),
        ("static CPP", True),
        ('extern "C" void k(const float *x, float *y, int n);\nCPP', False),
        ('#ifdef __cplusplus\nextern "C" {\n#endif\nCPP\n#ifdef __cplusplus\n}\n#endif', False),
        ('#include "k.h"\nCPP', False),
        ("API CPP", False),
        ("{{ linkage }} CPP", False),
        ("CPP" + HOST.replace("k(", "k2("), True),
        ("void helper() {}\n" + HOST, False),
    ],
)
def test_a_function_of_the_cpu_that_is_cpp(tmp_path: Path, text: str, is_known: bool) -> None:
    (tmp_path / "k.cc.j2").write_text(text.replace("CPP", HOST.removeprefix('extern "C" ')))
    (tmp_path / "tilus.toml").write_text(
        'edition = 1\ntarget.t.arch = "cpu"\n[script.k]\ntemplate = "k.cc.j2"\nkernel = "k"\n'
        f"args = {{ {RIGHT} }}\n"
    )
    if is_known:
        with pytest.raises(InputError, match=r"k.cc.j2:1:\d+: error: a script with a cpu target"):
            load_manifest(str(tmp_path / "tilus.toml"))
    else:
        load_manifest(str(tmp_path / "tilus.toml"))


def test_a_constant_that_is_a_type_is_compared_by_its_values(tmp_path: Path) -> None:
    args = 'x = "t*[n]", y = "u*[n]", n = "i32"'
    assert read_message(tmp_path, args, more='params = { t = "f32", u = "f32" }') == ""
    assert read_message(tmp_path, args, more='params = { t = "float", u = "f32" }') == ""
    message = read_message(tmp_path, args, more='params = { t = ["f32", "double"], u = "f32" }')
    assert message == (
        '"t*[n]": "x" is t*[n], also for "f64", and "k" takes "const float *x", which is f32*[n]'
    )


@pytest.mark.parametrize("args", ["", 'args = { x = "f32*[n]", n = "i32" }'])
def test_a_kernel_that_there_is_not(tmp_path: Path, args: str) -> None:
    (tmp_path / "k.cu").write_text(KERNEL.replace("k(", "saxpy(") + KERNEL.replace("k(", "dot("))
    (tmp_path / "tilus.toml").write_text(
        f'edition = 1\nscript.k = {{ template = "k.cu", kernel = "saxpyy", {args}'
        f'{", " * bool(args)}launch = {{ grid = "n", block = 1 }} }}\n'
    )
    with pytest.raises(InputError) as caught:
        load_manifest(str(tmp_path / "tilus.toml"))
    (mistake,) = caught.value.diagnostics
    assert mistake.message.endswith('k.cu has no kernel "saxpyy"')
    assert mistake.hint == 'did you mean "saxpy"?'
