"""The template's own function is compared with the declaration: C linkage would link anything."""

import random
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.processes import run_to_end
from support.recipes import make_recipe, make_toolchain
from tilusbuild.compile import declared
from tilusbuild.status import Cause

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

SPELLINGS = {
    "f32": ("float", "const float"),
    "f64": ("double",),
    "i32": ("int", "int32_t", "unsigned", "signed int"),
    "i64": ("long long", "std::int64_t", "size_t", "long", "unsigned long long int"),
    "u8": ("uint8_t", "unsigned char", "char"),
    "bool": ("bool",),
    "f32*[n]": ("float *", "const float *__restrict", "void *", "const void *"),
    "i64*[n]": ("const long *", "int64_t *", "long long *__restrict__"),
    "f16*[n]": ("const void *", "uint16_t *", "const short *"),
}
"""How an author may write the parameter for each declared type."""


def refused(recipe, directory: Path) -> str | None:
    """What the check says of a recipe, as a compile asks it."""
    (directory / "source.cu").write_text(recipe.source)
    check = declared.write_declaration_check(recipe)
    assert check is not None
    unit, shared = check
    (directory / declared.CHECK).write_text(unit)
    source = tuple(
        word.replace("/proc/self/cwd/", "") for word in recipe.pipeline.find_source_command(recipe)
    )
    argv = declared.derive_check_command(source, shared=shared)
    argv = tuple("g++" if word == "{cxx}" else word for word in argv)
    plain = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    log = run_to_end(argv, status=None, cwd=directory, env=plain).stderr
    return declared.find_declaration_problem(recipe, "\n".join(declared.extract_findings(log)))


def recipe_of(kinds: list[str], parameters: list[str], *, hidden: bool):
    """A function with these parameters; `hidden` behind names that only the compiler knows."""
    arguments = {f"a{i}": kind for i, kind in enumerate(kinds)} | {"n": "i32"}
    texts, head = [*parameters, "int"], ""
    if hidden:
        head = "".join(f"using T{i} = {text};\n" for i, text in enumerate(texts))
        texts = [f"T{i}" for i in range(len(texts))]
    names = [*arguments, *(f"more{i}" for i in range(9))]
    written = ", ".join(f"{text} {name}" for text, name in zip(texts, names, strict=False))
    source = (
        f'#include <cstddef>\n#include <cstdint>\n{head}extern "C" void saxpy({written}) {{}}\n'
    )
    return make_recipe("cpu", arguments=arguments, out=(), source=source)


@pytest.mark.parametrize("hidden", [False, True])
def test_an_output_can_be_written(hidden: bool, tmp_path) -> None:
    for kind, spellings in SPELLINGS.items():
        for spelling in spellings if "*" in kind else ():
            recipe = recipe_of([kind], [spelling], hidden=hidden)
            signature = replace(recipe.signature.arguments[0], out=True)
            arguments = (signature, *recipe.signature.arguments[1:])
            recipe = replace(recipe, signature=replace(recipe.signature, arguments=arguments))
            message = refused(recipe, tmp_path)
            assert (message is not None) == spelling.startswith("const"), (spelling, message)


@pytest.mark.parametrize("seed", range(12))
def test_a_parameter_is_refused_exactly_if_it_is_of_another_type(seed, tmp_path) -> None:
    rng = random.Random(seed)
    kinds = [rng.choice(list(SPELLINGS)) for _ in range(rng.randint(1, 5))]
    parameters = [rng.choice(SPELLINGS[kind]) for kind in kinds]
    hidden = rng.random() < 0.5
    assert refused(recipe_of(kinds, parameters, hidden=hidden), tmp_path) is None

    index = rng.randrange(len(kinds))
    others = [t for kind in SPELLINGS for t in SPELLINGS[kind] if not fits(t, kinds[index])]
    wrong = [*parameters]
    wrong[index] = rng.choice(others)
    message = refused(recipe_of(kinds, wrong, hidden=hidden), tmp_path)
    assert message is not None
    assert f"parameter {index + 1} of" in message
    assert f'"a{index}" is declared {kinds[index]}' in message

    missing = refused(recipe_of(kinds, [*parameters, "int"], hidden=hidden), tmp_path)
    assert missing is not None
    assert f"takes {len(kinds) + 2} parameters; it is called with {len(kinds) + 1}" in missing


def fits(spelling: str, kind: str) -> bool:
    """Whether a spelling of any type is one that this kind accepts: the oracle."""
    if ("*" in spelling) != ("*" in kind):
        return False
    if "*" not in kind:
        return spelling in SPELLINGS[kind] or {
            kind,
            *(k for k, all_of in SPELLINGS.items() if spelling in all_of),
        } <= {"u8", "bool"}
    return spelling in SPELLINGS[kind] or "void" in spelling or kind.startswith("f16")


@pytest.mark.parametrize(
    "written",
    ["const float *x, float a, float *y, int n", "float a, const double *x, float *y, int n"],
)
def test_a_compile_refuses_it_at_the_templates_line(compile_in, tmp_path, written) -> None:
    source = f'// saxpy(a, x);\n\nextern "C" void saxpy({written}) {{}}\n'
    outcome = compile_in(make_recipe("cpu", source=source), make_toolchain(), tmp_path / "stage")
    assert (outcome.status, outcome.cause) == ("failed", Cause.SOURCE)
    assert outcome.reason.startswith("source.cu:3: error: parameter ")
    assert outcome.reason in (tmp_path / "stage/module/nvcc_output.txt").read_text()


def test_a_host_function_in_c_types_is_compared_too(tmp_path) -> None:
    source = make_recipe("host").source
    for old, new, expected in (
        ("float a", "float a", "None"),
        ("float a, const float *x", "const float *x, float a", "parameter 1 of"),
        (", cudaStream_t stream", "", "and the stream"),
    ):
        assert old in source
        recipe = make_recipe("host", source=source.replace(old, new))
        assert expected in str(refused(recipe, tmp_path))


def test_what_the_check_cannot_read_is_nobodys_fault(tmp_path) -> None:
    inside = 'namespace k { extern "C" void saxpy(T *x) {} }\n'
    assert refused(make_recipe("cpu", source=inside), tmp_path) is None
