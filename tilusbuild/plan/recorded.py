"""A recipe read back from the texts of a program, to compile the program again.

No command of `options.txt` is run and no word of `compile.sh` is: a stranger may have written them.
What a manifest had said is read off the commands and held to what a manifest may say, and this
machine's own pipeline makes its commands of it. These must be the recorded ones, word for word:
that is also the proof that everything was read. Code that was generated (launcher, constants) is
taken as it is, if it has the digest that `options.txt` names.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, takewhile

from msgspec.structs import replace

from tilusbuild.arch import parse_arch
from tilusbuild.compile import Link, Recipe
from tilusbuild.compile.kernel_names import VARIABLE
from tilusbuild.compile.model import HERE, SOURCE, Includes, PartOptions
from tilusbuild.compile.module import command_lines
from tilusbuild.compile.pipelines import CPU, pipeline_named
from tilusbuild.compile.pipelines.nvcc import from_nvcc, with_macros
from tilusbuild.compile.pipelines.nvrtc import CUDA_HEADERS
from tilusbuild.compile.steps import DEVICE_LINKER, LAUNCHER
from tilusbuild.manifest.library import LANGUAGES
from tilusbuild.manifest.pure_flags import impure, names_march
from tilusbuild.plan.identity import section_of
from tilusbuild.render.closure import Header, manifest_of
from tilusbuild.signature import Signature
from tilusbuild.state.files import sha256_bytes, sha256_text

_INCLUDE = f"{HERE}/include"
_SEARCHED = re.compile(rf"(-I)?{HERE}(/include.*|/{CUDA_HEADERS}(/cccl)?)?\Z", re.DOTALL)
_HOST = "-fPIC,-march="
_OURS = ("program.s", "needed.s", LAUNCHER)
_PLAIN = re.compile(r"[\w$/.~][\w.+$/{}~=:-]*")
"""Words of a link that no shell, linker or compiler takes for more than a name."""
_NAMED = re.compile(rf"^extern .* {VARIABLE}_\d+ = &(.*);$", re.MULTILINE)


class UnlikeOursError(ValueError):
    """The texts say what no build of this tilusbuild would have written."""


def recorded(
    program_txt: str, options_txt: str, files: Mapping[str, bytes], compile_sh: str
) -> Recipe:
    """Return the recipe of a program. `files` are the source and what was generated, launcher
    included, by name. Raises `UnlikeOursError`."""
    try:
        recipe = _read(program_txt, options_txt, files, compile_sh)
        same = "\n".join(command_lines(recipe)) == _commands(options_txt)
    except (ValueError, LookupError, StopIteration) as error:
        raise UnlikeOursError(f"its commands cannot be read: {error}") from None
    if not same:
        raise UnlikeOursError("its commands are not those that this tilusbuild makes")
    return recipe


def _commands(options_txt: str) -> str:
    return options_txt.partition("\n[commands]\n")[2].partition("\n\n[generated]\n")[0]


def _read(
    program_txt: str, options_txt: str, files: Mapping[str, bytes], compile_sh: str
) -> Recipe:
    head, program = section_of(options_txt, ""), section_of(program_txt, "")
    # A new line is the one character that the texts have no quotes around.
    lines = [shlex.split(x.replace("'$'\\n''", "\n")) for x in _commands(options_txt).split("\n")]
    used = {word for line in lines for word in line}
    pipeline = pipeline_named(head["pipeline"], nvrtc="{nvrtc}" in used)
    if pipeline is None:
        raise ValueError(f"pipeline {head['pipeline']} is unknown")
    texts = {name: data.decode("utf-8", "surrogateescape") for name, data in files.items()}
    digests = section_of(options_txt, "generated")
    if pipeline.has_source:
        digests["source.cu"] = program["source"].removeprefix("sha256:")
    if any(sha256_bytes(files[name]) != digest for name, digest in digests.items()):
        raise ValueError("the source, or what was generated, is not what the texts name")
    archs = head["target"].split(" ")
    headers = [Header(n, d, None) for n, d in section_of(program_txt, "headers").items()]
    kernel = json.loads(program.get("kernel", '""'))
    recipe = Recipe(
        pipeline=pipeline,
        archs=tuple(parse_arch(name) for name in archs if name != "ptx"),
        ptx="ptx" in archs,
        source=texts.get("source.cu", ""),
        symbol=kernel,
        signature=Signature(()),
        launch=None,
        constants={},
        includes=Includes(sha256_text(manifest_of(headers)) if headers else None),
        assembled="{ptxas}" in used,
        recorded={name: texts[name] for name in digests if name in _OURS},
        headers={n: texts[n] for n in digests if n not in (*_OURS, "source.cu")},
    )
    if not pipeline.has_source:
        return _of_link(recipe, program_txt, lines, used)
    unit = tuple(kernel if n == kernel.strip() else n for n in _NAMED.findall(recipe.source))
    return _of_source(replace(recipe, unit=unit), lines, used, compile_sh)


def _of_source(
    recipe: Recipe, lines: Sequence[Sequence[str]], used: Iterable[str], compile_sh: str
) -> Recipe:
    words, compiler = lines[0], recipe.pipeline.compiler
    nvrtc, nvcc = compiler == "NVRTC", compiler == "nvcc"
    end = len(words) if nvrtc else words.index(SOURCE)
    if nvrtc:
        at = next(i for i, word in enumerate(words) if word.startswith("--std="))
    else:
        at = words.index("{cxx}", 1) + 1 if nvcc else words.index(f"-ffile-prefix-map={HERE}/=") + 1
    std = re.fullmatch(r"--?std=([a-z0-9+]+)", words[at])
    at += std is not None
    march = words[at].partition("=")[2] if words[at].startswith("-march=") else None
    at += march is not None
    # On the cpu the flags are those of the link, too: where macros end is known only there.
    linked = lines[-1][lines[-1].index("launcher.o") + 1 : -3] if recipe.pipeline is CPU else ()
    defines = list(takewhile(re.compile("-D.").match, words[at : end - len(linked)]))
    searched = [i for i in range(at, end) if _SEARCHED.match(words[i])]
    at = max((at + len(defines), *(i + 1 for i in searched)))
    roots = {os.path.dirname(words[3])[len(_INCLUDE) + 1 :]: True} if nvrtc else {}
    for i in searched:
        if name := _root(words[i].removeprefix("-I"), compile_sh):
            roots.setdefault(name, words[i - 1] in ("-iquote", "-Xcompiler"))
    roots.pop("", None)
    if nvcc:
        at = words.index("--orig_src_path_name", at) + 5
    elif nvrtc:
        at = words.index("--ptxas-options=-v", at) + 1
    flags, rest = words[at:end], words[end:]
    tail = next((i for i in range(at, end) if nvcc and words[i].startswith(_HOST)), None)
    if tail is not None:
        march = words[tail].removeprefix(_HOST).partition(",")[0]
        flags, rest = words[at : tail - 1], words[tail + 1 : end]
    plain = from_nvcc if nvcc else str
    made = replace(
        recipe,
        std=std[1] if std else recipe.std,
        host_march=march,
        defines=tuple((plain(define)[2:], "") for define in defines),
        includes=Includes(recipe.includes.digest, tuple(roots.items())),
        flags=tuple(with_macros(flags, plain)),
        cudart=_cudart(lines[-1]),
        part=PartOptions(
            words[words.index("-x") + 1] if "-x" in words else "cu",
            nvcc and "/tilusbuild/source.cu" not in words,  # of all objects of an rdc library
            "-frandom-seed=0" in rest,
        ),
    )
    _check(made)
    return made


def _check(recipe: Recipe) -> None:
    """Raise `ValueError` for what no manifest may say: the pipelines take it as it is."""
    for _, flag in impure(recipe.flags, cpu=recipe.pipeline.compiler == "g++"):
        raise ValueError(f"{flag} is for unsafe-flags: its own project compiles it again")
    march = recipe.host_march
    if (march and not names_march(march)) or recipe.part.language not in LANGUAGES.values():
        raise ValueError(f"-march={march} -x {recipe.part.language}")
    link = recipe.link or Link("")
    for word in (link.soname, *link.inputs, *link.dirs, *link.libs, *link.rpath, *link.needed):
        if word and not _PLAIN.fullmatch(word):
            raise ValueError(f'"{word}" is linked')


def _root(place: str, compile_sh: str) -> str:
    """Return the name of a header directory that is searched as this, or by this link to it."""
    link = re.escape(place.removeprefix(f"{HERE}/"))
    found = re.search(rf'^ln -s -- (.*) "\$work/{link}"$', compile_sh, re.MULTILINE)
    name = shlex.split(found[1])[0] if found else place.removeprefix(f"{HERE}/")
    return name.removeprefix("include/") if name.startswith("include/") else ""


def _cudart(link: Sequence[str]) -> str:
    if "{cudart}" in link:
        return "shared"
    return "none" if ("-cudart", "none") in pairwise(link) else "static"


def _of_link(
    recipe: Recipe, program_txt: str, lines: Sequence[Sequence[str]], used: Iterable[str]
) -> Recipe:
    last = lines[-1]
    pairs = zip(("", *last), last, strict=False)
    linker = [
        word.removeprefix("-Wl,")
        for before, word in pairs
        if before == "-Xlinker" or "-Wl," in word
    ]
    values = [*pairwise(linker)]
    needed = [line[line.index("-soname") + 1] for line in lines[:-1] if line[0] == "{ld}"]
    rdc = DEVICE_LINKER in used
    libs = [word[2:] for word in last if re.match("-l[^:]", word)]
    link = Link(
        soname=next((value for name, value in values if name == "-soname"), ""),
        inputs=tuple(w.removeprefix("include/") for w in last if w.startswith("include/")),
        dirs=tuple(w[len(_INCLUDE) + 3 :] for w in last if w.startswith(f"-L{_INCLUDE}/")),
        libs=tuple(libs[:-1] if rdc else libs),
        rpath=tuple(value for name, value in values if name == "-rpath"),
        undefined="defs" not in linker and not needed,
        cudart=_cudart(last),
        needed=tuple(needed),
        objects=tuple(section_of(program_txt, "objects").values()),
    )
    made = replace(recipe, link=link, part=PartOptions(rdc=rdc))
    _check(made)
    return made
