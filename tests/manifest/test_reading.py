"""What a manifest leaves out: read from the template and the machine, and never once more than it
says."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.project import Project
from tilusbuild.errors import InputError
from tilusbuild.manifest import reading
from tilusbuild.manifest.loading import load_manifest
from tilusbuild.manifest.model import Manifest

KERNEL = """\
{% if target.kind == "cpu" %}
extern "C" void axpy(int n, float a, const float *x, float *y) {
  for (int i = 0; i < n; ++i) y[i] += a * x[i];
}
{% else %}
extern "C" __global__ void __launch_bounds__({{ threads }})
axpy(int n, float a, const float *__restrict__ x, float *y) {
  int i = blockIdx.x * {{ threads }} + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
{% endif %}
"""
LEAST = """\
edition = 1
[script.axpy]
template = "axpy.cu.j2"
launch = { grid = "cdiv(n, threads)", block = "threads" }
space.threads = [128, 256]
"""


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Manifest]:
    """Load `LEAST`, or another text, in a directory called `my kernels!`, with this template."""
    directory = tmp_path / "my kernels!"
    directory.mkdir()
    monkeypatch.chdir(directory)

    def load_it(more: str = "", kernel: str = KERNEL) -> Manifest:
        (directory / "axpy.cu.j2").write_text(kernel)
        (directory / "tilus.toml").write_text(LEAST + more)
        return load_manifest("tilus.toml")

    return load_it


def signature(manifest: Manifest) -> dict[str, tuple[str, bool]]:
    return {name: (arg.type, arg.out) for name, arg in manifest.scripts["axpy"].args.items()}


READ = {
    "n": ("i32", False),
    "a": ("f32", False),
    "x": ("f32*[...]", False),
    "y": ("f32*[...]", True),
}


def test_all_that_is_not_written_is_read(read: Callable[..., Manifest]) -> None:
    manifest = read()
    assert (manifest.project.name, manifest.project.version) == ("my-kernels", "0.1.0")
    assert manifest.scripts["axpy"].kernel == "axpy"
    assert signature(manifest) == READ
    assert list(manifest.targets) == ["sm_80", "cpu"]
    assert manifest.targets["sm_80"].ptx
    assert manifest.list_script_targets("axpy") == ("sm_80", "cpu")


def test_of_several_kernels_the_one_of_the_scripts_name_is_meant(
    read: Callable[..., Manifest],
) -> None:
    manifest = read(kernel="__global__ void before(int n) {}\n" + KERNEL)
    assert (manifest.scripts["axpy"].kernel, signature(manifest)) == ("axpy", READ)


def test_the_gpus_of_the_machine(
    read: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "find_local_archs", lambda: ("sm_80", "sm_90a"))
    manifest = read(kernel=KERNEL.replace("target.kind", "kind"))
    assert list(manifest.targets) == ["sm_80", "sm_90a"]
    assert not manifest.targets["sm_80"].ptx
    assert manifest.reading.reread() is not None
    monkeypatch.setattr(reading, "find_local_archs", lambda: ("sm_80",))
    assert manifest.reading.reread() is None
    monkeypatch.setattr(reading, "find_local_archs", lambda: ("sm_80", "sm_999"))
    notes = read(kernel=KERNEL.replace("target.kind", "kind")).reading.notes
    assert notes[-1] == "targets: sm_80 (of this machine; unknown GPU: sm_999)"
    monkeypatch.setattr(reading, "find_local_archs", lambda: ("sm_999",))
    notes = read(kernel=KERNEL.replace("target.kind", "kind")).reading.notes
    assert notes[-1].endswith("(with PTX: there is no known GPU here; unknown GPU: sm_999)")


@pytest.mark.parametrize(("written", "dtype"), [("{{ t }}", "t"), ("double", "f64")])
def test_the_name_of_an_instance_says_the_types_of_a_template(
    read: Callable[..., Manifest], written: str, dtype: str
) -> None:
    kernel = """template <int N, class T = float, class U = T> __global__ void
axpy(unsigned n, T a, const T *__restrict__ x, unsigned char *y, U **u) {}"""
    more = f'kernel = "axpy<4, {written}>"\nparams.t = ["f32", "i32"]\nargs.u = "u64*[n]"'
    types = {name: type_ for name, (type_, _) in signature(read(more, kernel)).items()}
    own = {"a": dtype, "x": f"{dtype}*[...]"}
    assert types == {"n": "i32", "y": "u8*[...]", "u": "u64*[n]"} | own


def test_the_size_of_a_shape_has_a_sign(read: Callable[..., Manifest]) -> None:
    kernel = KERNEL.replace("int n", "size_t n")
    assert signature(read(kernel=kernel))["n"] == ("u64", False)
    for args in ('x = "[n]"', 'x = { type = "[4]", strides = ["n"] }', 'x = "[cdiv(n, 2)]"'):
        assert signature(read(f"args = {{ {args} }}\n", kernel))["n"] == ("i64", False)


def test_without_a_kernel_cpu_targets_have_a_function_of_the_host(
    read: Callable[..., Manifest],
) -> None:
    function = 'void help() {}\nextern "C" void axpy(int n, float a, const float *x, float *y) {}'
    manifest = read('[target.c]\narch = "cpu"\n', function)
    assert (manifest.scripts["axpy"].kernel, signature(manifest)) == ("axpy", READ)
    with pytest.raises(InputError, match="has no __global__ function to read"):
        read('[target]\nc.arch = "cpu"\ng.arch = "sm_80"\n', function)


@pytest.mark.parametrize(
    ("declared", "example"),
    [
        ("const float4 *x", 'args.x = { type = "f32*[n, 4]", align = 16 }'),
        ("const half2 *x", 'args.x = { type = "f16*[n, 2]", align = 4 }'),
        ("const double3 *x", 'args.x = "f64*[n, 3]"'),
        ("const float *const *x", 'args.x = "u64*[n]"'),
        ("const Element *x", 'args.x = "f32*[n]"'),
        ("const struct Shape x", 'as in args.x = "f32"\na struct is written with its members'),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_read_has_an_example(
    read: Callable[..., Manifest], declared: str, example: str
) -> None:
    with pytest.raises(InputError) as raised:
        read(kernel=KERNEL.replace("const float *__restrict__ x", declared))
    assert example in (raised.value.diagnostics[0].hint or "")


@pytest.mark.parametrize(
    ("written", "changed"),
    [
        ('args = { x = "[n]", y = "[n]" }', {"x": ("f32*[n]", False), "y": ("f32*[n]", True)}),
        ('args = { x = "f32*[n]" }', {"x": ("f32*[n]", False)}),
        ('args = { y = "f32*[n]" }', {"y": ("f32*[n]", False)}),
        ("args = { y = { optional = true } }", {"y": ("f32*[...]", False)}),
        ("args = { n = { range = [1, 8] } }", {}),
        ('args = { x = "[m]", m = { type = "i64", parameter = false } }\ntargets = ["sm_80"]',
         {"x": ("f32*[m]", False), "m": ("i64", False)}),
        ('kernel = "axpy"', {}),
    ],
)  # fmt: skip
def test_what_is_written_is_laid_over(
    read: Callable[..., Manifest], written: str, changed: dict[str, tuple[str, bool]]
) -> None:
    assert signature(read(written)) == READ | changed


@pytest.mark.parametrize(
    ("old", "new", "line", "says", "right"),
    [
        ("float a", "Half a", 6, 'the type of the parameter "Half a"', 'args.a = "f32"'),
        ("x, float *y", "x, {{ t }} *y", 6, 'the type of the parameter "*y"', 'args.y = "f32*[n]"'),
        ('extern "C" __g', "template <int N> __g", 6, '"axpy" is a template', 'kernel = "axpy<…>"'),
        ("axpy(int n, float a, const float *_", "f() {}\n__global__ void g(int *_", 6,
         '2 kernels are declared: "f" in line 6, "g" in line 8', 'kernel = "f"'),
        ('"cpu" %}', '"cpu"', 2, "expected token 'end of statement block', got 'extern'", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(
    read: Callable[..., Manifest], old: str, new: str, line: int, says: str, right: str
) -> None:
    assert old in KERNEL
    with pytest.raises(InputError) as raised:
        read(kernel=KERNEL.replace(old, new))
    (only,) = raised.value.diagnostics
    assert only.location is not None
    assert (only.location.path, only.location.line) == ("axpy.cu.j2", line)
    assert only.location.text == KERNEL.replace(old, new).split("\n")[line - 1]
    assert says in only.message
    assert right in (only.hint or "")


def test_a_caret_is_below_what_is_written(read: Callable[..., Manifest]) -> None:
    with pytest.raises(InputError) as raised:
        read('args = { x = "[n, a q]" }')
    location = raised.value.diagnostics[0].location
    assert location is not None
    assert (location.text or "")[(location.column or 0) - 1 :] == 'q]" }'


def test_a_changed_signature_is_read_again(tmp_path: Path) -> None:
    project = Project(tmp_path, {"TILUSBUILD_CACHE_DIR": str(tmp_path / ".cache")})
    project.environment["XDG_CACHE_HOME"] = str(tmp_path / "home")
    project.write_all({"tilus.toml": LEAST, "axpy.cu.j2": KERNEL})

    def parameters() -> list[str]:
        project.build("--target", "cpu")
        (script,) = tmp_path.glob(".cache/scripts/axpy/*/script.json")
        names = [argument["name"] for argument in json.loads(script.read_text())["arguments"]]
        (tmp_path / ".cache" / "scripts" / "axpy" / script.parent.name).rename(tmp_path / names[-1])
        return names

    assert parameters() == ["n", "a", "x", "y"]
    text = KERNEL.replace("float *y)", "float *y, int step)")
    assert text.count("step") == 2
    project.write("axpy.cu.j2", text)
    assert parameters() == ["n", "a", "x", "y", "step"]


@pytest.mark.parametrize("kernel", ["", 'kernel = "axpy"\n'])
def test_arguments_by_other_names_are_whole(read: Callable[..., Manifest], kernel: str) -> None:
    manifest = read(kernel + 'args = { n = "i32", b = "f32", p = "f32*[n]", q = "f32*[n]" }')
    assert manifest.scripts["axpy"].kernel == "axpy"
    assert [*signature(manifest)] == ["n", "b", "p", "q"]
