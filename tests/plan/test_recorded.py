"""A recipe read back from a program's texts: the same commands, or none."""

import os
import random
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from support.recipes import make_recipe, make_toolchain
from tilusbuild.arch import parse_arch
from tilusbuild.compile.kernel_names import format_anchor, format_unit_anchors
from tilusbuild.compile.model import Includes, Link, Options, PartOptions, Recipe
from tilusbuild.compile.module import (
    collect_module_files,
    format_command_lines,
    format_options,
    lay_out_launcher,
)
from tilusbuild.compile.pipelines.library import LIBRARY_PIPELINES
from tilusbuild.compile.steps import list_steps
from tilusbuild.plan.identity import format_program_text
from tilusbuild.plan.recorded import ForeignTextsError, restore_recipe
from tilusbuild.render.closure import Header, make_closure

ROUNDS = int(os.environ.get("TILUSBUILD_TEST_RECORDED", "400"))
_ODD = ("a", "$(touch x)", "it's", '"q"', "a,b", "a\\b", "`x`", "new\nline", "{nvcc}", "ä", " ", "")
_FLAGS: dict[bool, tuple[tuple[str, ...], ...]] = {
    True: (("-O2",), ("-fno-exceptions",), ("-fopenmp",), ("-DN=1",), ("-D", "K=a b"), ("-g",)),
    False: (
        *(("-lineinfo",), ("-Xptxas", "-O2"), ("-maxrregcount=64",), ("--use_fast_math",)),
        *(("-DN=a,b",), ("-D", "K=$x"), ("-G",)),
    ),
}
_EVIL = (
    *("-fplugin=./x.so", "@x", "-B.", "-specs=x", "$(touch x)", "`touch x`", "-wrapper", "./x"),
    *("-Wl,--plugin,x.so", "-Xlinker", "--plugin=x.so", "-o", "../../x", "-include", "{sed}"),
    *("x;touch y", "-ccbin", "--compiler-bindir=x", "-Xcompiler", "-L.", "-imacros", "|| ", "&&"),
)


def some(chosen: random.Random, of: Any, most: int = 3) -> list[Any]:
    return [chosen.choice(of) for _ in range(chosen.randrange(most))]


def a_recipe(chosen: random.Random) -> tuple[Recipe, list[Header]]:
    """A recipe as a build has it, and its headers."""
    form = chosen.choice(("kernel", "kernel", "kernel-nvrtc", "cpu", "host", "object", "link"))
    cpu = form == "cpu" or (form in ("object", "link") and chosen.random() < 0.5)
    base = make_recipe(form if form not in ("object", "link") else "cpu" if cpu else "host")
    archs = ["cpu"] if cpu else chosen.choice((["sm_80"], ["sm_90a"], ["sm_80", "sm_90a"]))
    names = [name for name in _ODD if "\n" not in name]
    roots = [(f"project/{chosen.choice(names)}{n}", n == 0) for n in range(chosen.randrange(3))]
    headers = [Header(f"{name}/h.cuh", "0" * 64, None) for name, _ in roots]
    changes: dict[str, Any] = {
        "archs": tuple(map(parse_arch, archs)),
        "ptx": archs[0] == "sm_80" and chosen.random() < 0.5,
        "options": Options(
            flags=tuple(word for flag in some(chosen, _FLAGS[cpu]) for word in flag),
            defines=tuple(("M", value) for value in some(chosen, _ODD)),
            std=chosen.choice(("c++17", "c++20")),
            host_march=chosen.choice((None, "native-ish", "x86-64-v3")),
            cudart=chosen.choice(("static", "shared")),
        ),
        "includes": Includes(make_closure(headers).digest if headers else None, tuple(roots)),
        "headers": {"made.h": "#define X\n"} if chosen.random() < 0.3 else {},
    }
    if form == "object":
        language = chosen.choice(("c", "c++") if cpu else ("cu", "c++", "c"))
        changes["part"] = PartOptions(language, chosen.random() < 0.5, chosen.random() < 0.5)
        changes["pipeline"] = LIBRARY_PIPELINES["cpu" if cpu else "cuda", "object"]
    elif form == "link":
        kind = chosen.choice(("shared", "static"))
        changes |= {"pipeline": LIBRARY_PIPELINES["cpu" if cpu else "cuda", kind], "headers": {}}
        changes["link"] = Link(
            "libx.so",
            tuple(some(chosen, ("project/v/x.o", "project/v/lib-1.a"))),
            tuple(some(chosen, ("project/lib",))),
            tuple(some(chosen, ("m", "cublas"))),
            tuple(some(chosen, ("$ORIGIN", "$ORIGIN/../lib", "/opt/x"))),
            chosen.random() < 0.3,
            chosen.choice(("static", "shared", "none")),
            tuple(some(chosen, ("libtorch.so.2", "libfarm.so"))),
            ("1" * 64, "2" * 64),
        )
        changes["part"] = PartOptions(rdc=not cpu and kind == "shared" and chosen.random() < 0.5)
    elif form == "kernel" and chosen.random() < 0.5:
        unit = ("f<1, 2>", "ns::f<2>") if chosen.random() < 0.5 else ()
        changes |= {"symbol": "f<1, 2>", "unit": unit}
        changes["source"] = base.source + (
            format_unit_anchors(unit) if unit else format_anchor("f<1, 2>")
        )
    return replace(base, **changes), headers


def texts(recipe: Recipe, headers: Sequence[Header]) -> tuple[str, str, dict[str, bytes], str]:
    program_txt = format_program_text(
        script="s",
        entry=("kernel", recipe.symbol),
        params={},
        schedule={},
        derived={},
        signature=recipe.signature.format_text().splitlines(),
        launch=[],
        source=recipe.source,
        headers=[(header.sha256, header.name) for header in make_closure(headers).headers],
        objects=[(f"o{number}", program) for number, program in enumerate(recipe.objects)],
    )
    toolchain = make_toolchain("/usr/bin/nvcc")
    files = dict(collect_module_files(recipe, toolchain, "0" * 64))
    script = files.pop("compile.sh").decode("utf-8", "surrogateescape")
    if recipe.pipeline.launcher.is_there:
        files["launcher.c"] = lay_out_launcher(recipe)[1]["launcher.c"]
    return program_txt, format_options(recipe, toolchain), files, script


@pytest.mark.parametrize("seed", range(4))
def test_what_a_build_wrote_is_read_back(seed: int) -> None:
    chosen = random.Random(seed)
    for _ in range(ROUNDS // 4):
        recipe, headers = a_recipe(chosen)
        written = texts(recipe, headers)
        restored_recipe = restore_recipe(*written)
        assert format_command_lines(restored_recipe) == format_command_lines(recipe)
        assert restored_recipe.includes.digest == recipe.includes.digest
        assert type(restored_recipe.pipeline) is type(recipe.pipeline)
        product = recipe.pipeline.product.replace(".", r"\.")
        assert rf"module\/{product}" in written[3]  # where sed looks for the recorded digest
        assert restored_recipe.objects == recipe.objects
        for name, text in restored_recipe.pipeline.collect_own_files(restored_recipe).items():
            assert written[2][name].decode() == text


@pytest.mark.parametrize("seed", range(4))
def test_two_recipes_of_one_name_are_the_same_bytes(seed: int) -> None:
    """What an option of the manifest, or another program of the build, says without an effect on
    this one is in none of its files."""
    chosen, same = random.Random(seed), 0
    for _ in range(ROUNDS // 4):
        recipe, headers = a_recipe(chosen)
        other, _ = a_recipe(chosen)
        own, others = recipe.options, other.options
        changes = [{n: getattr(others, n)} for n in Options.__struct_fields__]
        differing = [replace(recipe, options=replace(own, **change)) for change in changes]
        for differs in (*differing, replace(recipe, part=other.part)):
            try:
                changed = texts(differs, headers)
            except ValueError:
                continue
            written = texts(recipe, headers)
            if changed[:2] == written[:2] and recipe.part.language == other.part.language:
                same += differs != recipe
                assert changed == written
    assert same


@pytest.mark.parametrize("seed", range(4))
def test_no_word_of_a_stranger_becomes_one_of_a_command(seed: int) -> None:
    """Wherever a word is put into the commands, it is refused."""
    chosen = random.Random(seed)
    for _ in range(ROUNDS // 4):
        recipe, headers = a_recipe(chosen)
        program_txt, options_txt, files, script = texts(recipe, headers)
        before, title, rest = options_txt.partition("\n[commands]\n")
        commands, *after = rest.partition("\n\n[generated]\n")
        words = commands.split(" ")
        index, evil = chosen.randrange(len(words) + 1), chosen.choice(_EVIL)
        quoted = evil if chosen.random() < 0.5 else f"'{evil}'"
        changed = [*words[:index], quoted, *words[index + (chosen.random() < 0.3) :]]
        commands = chosen.choice((" ".join(changed), commands + "\n" + quoted))
        options_txt = "".join((before, title, commands, *after))
        with suppress(ForeignTextsError):
            restored_recipe = restore_recipe(program_txt, options_txt, files, script)
            assert words_of(restored_recipe).count(evil) <= words_of(recipe).count(evil)


@pytest.mark.parametrize("evil", _EVIL)
def test_a_stranger_says_no_more_than_a_manifest_may(evil: str) -> None:
    recipe = make_recipe("cpu")
    link = LIBRARY_PIPELINES["cpu", "shared"]
    changes = [
        replace(recipe, options=Options(flags=(evil,))),
        replace(recipe, options=Options(host_march=evil)),
        replace(recipe, part=PartOptions(evil), pipeline=LIBRARY_PIPELINES["cpu", "object"]),
    ]
    if not evil.startswith("."):  # it is a path, and no option
        changes += [replace(recipe, options=Options(std=evil))]
        changes += [replace(recipe, pipeline=link, link=Link("l.so", libs=(evil,)))]
        changes += [replace(recipe, pipeline=link, link=Link("l.so", rpath=(evil,)))]
    for changed in changes:
        with pytest.raises(ForeignTextsError):
            restore_recipe(*texts(changed, ()))


@pytest.mark.parametrize("root", ["/etc", "..", "project/../.."])
def test_headers_of_a_stranger_stay_in_their_directory(root: str) -> None:
    headers = [Header("project/h.cuh", "0" * 64, None)]
    recipe = replace(
        make_recipe("cpu"), includes=Includes(make_closure(headers).digest, ((root, False),))
    )
    with pytest.raises(ForeignTextsError, match="headers of"):
        restore_recipe(*texts(recipe, headers))


def words_of(recipe: Recipe) -> list[str]:
    """The words of the commands without macros, which `escape_define` quotes for the shell."""
    argvs = (("", *step.argv) for step in list_steps(recipe))
    return [word for argv in argvs for before, word in pairwise(argv) if before != "-D"]


def test_what_was_generated_is_what_the_texts_name() -> None:
    recipe, headers = make_recipe("cpu"), ()
    program_txt, options_txt, files, script = texts(recipe, headers)
    for name in files:
        if name in ("source.cu", "launcher.c"):
            with pytest.raises(ForeignTextsError, match="not what the texts name"):
                restore_recipe(program_txt, options_txt, {**files, name: b"int x;\n"}, script)
