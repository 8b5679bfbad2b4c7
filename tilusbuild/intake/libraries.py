"""The libraries that the commands of another build make: their sources, and how they are linked.

What one command links is one library here. Its sources that are compiled in another way are a part
of it, an archive that it links is flattened into it. What nothing links is grouped by the name that
it has there, or by how it is compiled. A program becomes an archive: its link is left to its build.
"""

from __future__ import annotations

import glob
import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from tilusbuild.arch import ArchError, parse_arch
from tilusbuild.intake.commands import LANGUAGE_NAMES, Arguments, Made, Product, made_by
from tilusbuild.intake.draft import (
    DEFAULT_ARCH,
    STANDARDS,
    Archs,
    Draft,
    LibraryDraft,
    name_of,
    standard,
)
from tilusbuild.manifest.check_targets import flag_problems
from tilusbuild.manifest.command_words import has_value
from tilusbuild.manifest.denied_flags import find_denied_flags, names_march
from tilusbuild.manifest.library import LANGUAGES
from tilusbuild.plan.library import name_library_files
from tilusbuild.runtime.where import is_within
from tilusbuild.toolchain.cuda import is_toolkit

_EXTENSION = "TORCH_EXTENSION_NAME"
_OF_CMAKE = re.compile(r"(?:^|/)CMakeFiles/([^/]+)\.dir/")
_OF_TORCH = ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python")
_OF_PYTHON = re.compile(r"python3\.\d+")
_TORCH = re.compile(r"/torch/include(/torch/csrc/api/include)?$")
_CUDART = {"shared": "cudart", "static": "cudart_static", "": "cudadevrt"}
_DEFAULT_STD = "c++17"
"""That of g++ and nvcc."""
_OF_A_SYSTEM = re.compile(r"/(usr/)?lib(64)?(/[^/]+-linux-gnu)?")


def top_of(directory: str) -> str:
    """Return the git repository that a directory is in; without one the directory, or that which
    holds its build directory."""
    above = [directory]
    while above[-1] != os.path.dirname(above[-1]):
        above.append(os.path.dirname(above[-1]))
    for each in above:
        if os.path.lexists(os.path.join(each, ".git")):
            return each
    built = next((each for each in above if "build" in os.path.basename(each)), "")
    return os.path.dirname(built) or directory


def sources_of(commands: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the sources that commands compile, as absolute paths. Raises `ValueError`."""
    made = made_by(Draft(""), "/", commands)
    return [source for source, _ in made.objects.values()]


def read(draft: Draft, root: str, commands: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Add the libraries of (directory, words) to a draft; sources are below `root`. Raises
    `ValueError`."""
    made = made_by(draft, root, commands)
    reader = _Reader(draft, root, made)
    for product in made.products.values():
        product.find_libs(made)
    inputs = {path for product in made.products.values() for path in product.inputs}
    linked: set[str] = set()
    for product in made.products.values():
        if product.kind == "static" and product.output in inputs:
            continue  # a part of what links it
        objects = [*made.objects_in(product, set())]
        linked.update(objects)
        reader.link(product, objects)
    rest: dict[tuple[str, str], list[str]] = {}
    for path, (_, said) in made.objects.items():
        if path not in linked:
            target = _OF_CMAKE.search(path)
            name = target[1] if target else str(said.defines.get(_EXTENSION, ""))
            rest.setdefault((name, "" if name else said.key), []).append(path)
    for (name, _), objects in rest.items():
        reader.add(name or draft.project, objects, {"undefined": True})
    _name_targets(draft)
    _name_toolchains(draft)


class _Reader(Struct):
    draft: Draft
    root: str
    made: Made

    def link(self, product: Product, objects: Sequence[str]) -> None:
        """Add the library that a command links, or archives."""
        base = os.path.basename(product.output)
        name = base.removeprefix("lib").partition(".")[0]
        own, others = self._inputs(product)
        if product.kind == "shared":
            keys = {"output": self._output(product.output), "objects": own}
            self.add(name, objects, {**keys, **self._keys(product, others)})
            return
        if product.kind == "program":
            base = f"lib{base}.a"
            libs = [*others, *(f"-l{lib}" for lib in product.said.libs)]
            self.draft.note(
                f"{name} is a program: its objects are archived in {base}, and its link is left to "
                f"you: g++ -Wl,--whole-archive {base} -Wl,--no-whole-archive {' '.join(libs)}"
            )
        output = self._output(os.path.join(os.path.dirname(product.output), base))
        self.add(name, objects, {"kind": "static", "output": output, "objects": own})

    def _inputs(self, product: Product) -> tuple[list[str], list[str]]:
        """Return the objects that are linked and that nothing makes, as a manifest has them, and
        the other files that are linked."""
        ends = (".o", ".a") if product.kind == "shared" else (".o",)
        made = {*self.made.objects, *self.made.products, *self.made.device_links}
        files = [path for path in product.inputs if path not in made]
        there = [
            path
            for path in files
            if path.endswith(ends) and os.path.isfile(path) and is_within(path, self.root)
        ]
        own = [glob.escape(os.path.relpath(path, self.root)) for path in there]
        return own, [path for path in files if path not in there]

    def _output(self, path: str) -> str:
        relative = os.path.relpath(path, self.root)
        return f"build/{os.path.basename(path)}" if relative.startswith("..") else relative

    def _keys(self, product: Product, files: Sequence[str]) -> dict[str, object]:
        """Return how a shared library is linked, as a manifest has it."""
        said = product.said
        libs = [*said.libs]
        libs += ["gomp"] if "-fopenmp" in said.flags and "gomp" not in libs else []
        products = filter(None, map(self.made.products.get, product.inputs))
        needed = [os.path.basename(each.output) for each in products if each.kind == "shared"]
        directories = [*said.lib_dirs]
        for path in files:
            base = os.path.basename(path)
            if ".so" in base or base.endswith(".a"):
                plain = re.fullmatch(r"lib(.+)\.(so|a)", base)
                libs.append(plain[1] if plain else f":{base}")
                directories.append(os.path.dirname(path))
            else:
                output = os.path.basename(product.output)
                self.draft.note(f"left out of {output}, because nothing makes it here: {path}")
        cudart = said.cudart or next((kind for kind, lib in _CUDART.items() if lib in libs), "none")
        left = {*_CUDART.values(), *_OF_PYTHON.findall(" ".join(libs))}
        if any(path.endswith("/torch/lib") for path in directories):
            left |= {*_OF_TORCH}
            # Only modules of Python need it, and nothing else of torch's brings it along.
            needed += ["libtorch_python.so"] if "torch_python" in libs else []
        libs = [lib for lib in libs if lib not in left]
        defined, rpath = self._linker(said.linker)
        return {
            "link-libs": [*dict.fromkeys(libs)],
            "link-dirs": [*self._link_dirs(libs, directories)],
            "rpath": rpath,
            "needed": needed,
            "cudart": cudart if cudart != "static" else None,
            "undefined": not defined or None,
        }

    def _link_dirs(self, libs: Sequence[str], directories: Sequence[str]) -> Iterator[object]:
        """Yield the directories that hold one of these libraries, and are not searched anyway."""
        for path in dict.fromkeys(directories):
            files = {file for lib in libs for file in name_library_files(lib)}
            if _OF_A_SYSTEM.fullmatch(path) or os.path.isfile(f"{path}/libcudart.so"):
                continue
            if any(os.path.isfile(f"{path}/{file}") for file in files):
                yield self._place(path)

    def _linker(self, words: Sequence[str]) -> tuple[bool, list[str]]:
        """Return whether the linker refuses undefined symbols, and where the library looks."""
        rpath: list[str] = []
        rest = iter(words)
        for word in rest:
            word = re.sub("^-R(?=.)", "-rpath=", word)
            name, equals, value = word.partition("=")
            if name in ("-rpath", "--rpath", "-R"):
                where = value if equals else next(rest, "")
                rpath += [where] if where.startswith("$") else []
                if not where.startswith("$"):
                    self.draft.note(f"a path of this machine is left out of rpath: {where}")
            elif name in ("-soname", "-h", "--soname"):
                None if equals else next(rest, "")
            elif any(find_denied_flags(["-Xlinker", word], cpu=True)):
                self.draft.note(f"option of the linker left out: {word}")
        return not {"defs", "--no-undefined"}.isdisjoint(words), rpath

    def add(self, called: str, objects: Sequence[str], keys: Mapping[str, object]) -> None:
        """Add a library of objects, those that are compiled in another way as parts of it."""
        groups: dict[tuple[Archs | None, str], tuple[Arguments, list[str]]] = {}
        usable = [*self._usable(objects)]
        for name, said in usable:
            if LANGUAGES[os.path.splitext(name)[1]] == "cu":
                groups.setdefault((self._arch(said), said.key), (said, []))[1].append(name)
        for name, said in usable:
            if LANGUAGES[os.path.splitext(name)[1]] != "cu":
                alike = next((key for key in groups if key[1] == said.key), (None, said.key))
                groups.setdefault(alike, (said, []))[1].append(name)
        if not objects:
            self.draft.note(f"left out, because no source of it is compiled: {called}")
        whole: LibraryDraft | None = None
        # What the device compiler compiles comes first: its architectures are the library's.
        for (arch, _), (said, sources) in groups.items():
            taken = [library.name for library in self.draft.libraries]
            language = "cpp" if arch is None else "cuda"
            name = name_of(f"{whole.name}_{language}" if whole else called, taken)
            library = LibraryDraft(name, sorted(set(sources)), arch=arch)
            if whole is None:
                whole, library.keys = library, dict(keys)
            elif arch in (whole.arch, None):
                library.keys["library"] = whole.name
                library.arch = whole.arch
            else:
                library.keys["undefined"] = True
                self.draft.note(
                    f"{name} and {whole.name} are for different architectures, and so two "
                    "libraries, which the other build links together"
                )
            self._fill(library, whole, said)
            self.draft.libraries.append(library)

    def _usable(self, objects: Iterable[str]) -> Iterator[tuple[str, Arguments]]:
        """Yield the sources that can be in a library, relative to the project."""
        why = "left out, because"
        for source, said in map(self.made.objects.__getitem__, objects):
            name = os.path.relpath(source, self.root)
            suffix = os.path.splitext(name)[1]
            language = said.language and LANGUAGE_NAMES.get(said.language)
            if name.startswith(".."):
                self.draft.note(f"{why} it is outside of {self.root} (-o DIR): {source}")
            elif not os.path.isfile(source):
                self.draft.note(f"{why} it does not exist (is it generated?): {name}")
            elif language and language != LANGUAGES[suffix]:
                other = next(each for each in LANGUAGES if LANGUAGES[each] == language)
                self.draft.note(
                    f"{why} the other build compiles it as {other} (-x {said.language}), and here "
                    f"the suffix decides: {name}"
                )
            else:
                yield name, said

    def _arch(self, said: Arguments) -> Archs:
        """Return the architectures that a source is compiled for, and whether PTX is kept."""
        for name in said.arch_names:
            if not re.search("(sm|compute)_", name):
                self.draft.note(f"left out, because it names no architecture: -arch={name}")
        archs = []
        for arch in said.archs:
            try:
                archs.append(parse_arch(arch).name)
            except ArchError as error:
                self.draft.note(f"left out: {error}")
        if not archs and not said.archs:
            self.draft.note(f"assumed, because nothing says what to compile for: {DEFAULT_ARCH}")
        # PTX of sm_90a runs on nothing that its code does not run on.
        ptx = said.ptx and any(arch[-1].isdigit() for arch in archs)
        return tuple(archs) or (DEFAULT_ARCH,), ptx or not said.archs

    def _fill(self, library: LibraryDraft, whole: LibraryDraft, said: Arguments) -> None:
        """Take what is said of a library's sources."""
        library.defines = said.defines
        library.flags = self._checked(said.flags)
        if said.rdc:
            whole.keys["rdc"] = True
        every = [*said.include_dirs, *said.system_dirs]
        paths = [path for path in every if not _TORCH.search(path)]
        if len(paths) < len(every):
            whole.keys["torch"] = True
            whole.keys.pop("undefined", None)
        ours = [f"{sys.prefix}/include"]  # which setuptools always passes
        ours += [sysconfig.get_path("include")] if "torch" in whole.keys else []
        for path in paths:
            if path not in ours and not os.path.isdir(path):
                self.draft.note(f"left out, because it does not exist: include directory {path}")
            elif path not in ours and not is_toolkit(path):
                library.include_dirs.append(self._place(path))
        if said.march == "native" or not names_march(said.march or "x"):
            self.draft.note(f"flag left out: -march={said.march} (use host-march in [toolchain])")
        else:
            library.march = said.march
        if any(not name.endswith(".c") for name in library.sources):
            library.std = standard(said.std or _DEFAULT_STD)
        if said.std is not None and standard(said.std) is None:
            known = ", ".join(STANDARDS)
            self.draft.note(f"left out: -std={said.std} (a manifest has one of {known})")
        linked = {"torch", "kind"} & {*whole.keys} or "gomp" in str(whole.keys.get("link-libs"))
        if "-fopenmp" in library.flags and not linked:
            how = 'link-libs = ["gomp"] links it'
            self.draft.note(f"{library.name}: -fopenmp needs libgomp of the process; {how}")

    def _place(self, path: str) -> object:
        """Return a directory as a manifest names it: of a package, or relative to the project."""
        for site in sys.path:
            package, _, inside = os.path.relpath(path, site or ".").partition("/")
            if site.endswith("-packages") and package.isidentifier() and inside:
                return {"package": package, "path": inside}
        if is_within(path, top_of(self.root)):
            return os.path.relpath(path, self.root)
        self.draft.note(f"a directory of this machine, which others may have elsewhere: {path}")
        return path

    def _checked(self, flags: list[str]) -> list[str]:
        """Return the flags that a manifest may hold, and note the others."""
        hints = {number: hint for number, _, hint in flag_problems(flags, unsafe=False, cpu=False)}
        kept: list[str] = []
        number = 0
        while number < len(flags):
            # An option goes with its value: alone it would take the next word.
            end = number + 1 + has_value(flags, number)
            if hint := next((hints[each] for each in range(number, end) if each in hints), None):
                self.draft.note(f"flag left out: {' '.join(flags[number:end])} ({hint})")
            else:
                kept += flags[number:end]
            number = end
        return kept


def _name_targets(draft: Draft) -> None:
    """Name a target for each set of architectures that something is compiled for."""
    every = [*dict.fromkeys(library.arch for library in draft.libraries if library.arch)]
    for archs, ptx in every:
        name = "gpu" if len(every) == 1 else "_".join(archs)
        name = name if name not in draft.targets else f"{name}_ptx"
        draft.targets[name] = (archs, ptx)
    for library in draft.libraries:
        if len(every) > 1 and "library" not in library.keys:
            known = (name for name, target in draft.targets.items() if target == library.arch)
            library.keys["targets"] = [next(known, next(iter(draft.targets)))]


def _name_toolchains(draft: Draft) -> None:
    """Name a toolchain for each standard and CPU besides those of most libraries."""
    every = Counter(library.std for library in draft.libraries if library.std)
    std = every.most_common(1)[0][0] if every else None
    marches = {library.march for library in draft.libraries}
    # What [toolchain] says of the CPU cannot be unsaid.
    march = marches.pop() if len(marches) == 1 else None
    draft.toolchain = {"std": std, "host-march": march}
    for library in draft.libraries:
        own = (library.std or std, library.march)
        if own != (std, march):
            name = "_".join(each.replace("+", "x") for each in own if each)
            library.keys["toolchain"] = name
            draft.toolchains[name] = dict(zip(("std", "host-march"), own, strict=True))
