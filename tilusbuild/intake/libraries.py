"""The libraries that the commands of another build make: their sources, and how they are linked.

The output of one link command is one library. Its sources with other flags are a part of it, and an
archive that it links is flattened into it. Objects that no command links are grouped by the name of
their target, or by their flags. The own objects of a program become an archive: its link is left to
its build, and the archives that it links are libraries.
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
from tilusbuild.intake.commands import (
    LANGUAGE_NAMES,
    CommandOutputs,
    CompileArguments,
    LinkProduct,
    collect_outputs,
)
from tilusbuild.intake.draft import (
    DEFAULT_ARCH,
    STANDARDS,
    Archs,
    LibraryDraft,
    ManifestDraft,
    make_table_name,
    to_standard,
)
from tilusbuild.manifest.command_words import has_value
from tilusbuild.manifest.denied_flags import list_flag_problems, names_march
from tilusbuild.manifest.library import LANGUAGES
from tilusbuild.plan.library import name_library_files
from tilusbuild.runtime.where import is_within
from tilusbuild.toolchain.cuda import is_toolkit

_EXTENSION_NAME_MACRO = "TORCH_EXTENSION_NAME"
_CMAKE_TARGET = re.compile(r"(?:^|/)CMakeFiles/([^/]+)\.dir/")
_TORCH_LIBS = ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python")
_PYTHON_LIB = re.compile(r"python3\.\d+")
_TORCH_INCLUDE_DIR = re.compile(r"/torch/include(/torch/csrc/api/include)?$")
_CUDART_LIBS = {"shared": "cudart", "static": "cudart_static", "": "cudadevrt"}
# As nvcc, which linked the program, adds them; g++ does not know the toolkit's directory.
_TOOLKIT_LIB_DIR = '-L"$(dirname "$(command -v nvcc)")/../lib64"'
_CUDART_WORDS: Mapping[str, Sequence[str]] = {
    "static": (_TOOLKIT_LIB_DIR, "-lcudart_static", "-ldl", "-lrt", "-lpthread"),
    "shared": (_TOOLKIT_LIB_DIR, "-lcudart"),
    "none": (),
}
_DEFAULT_STD = "c++17"
"""That of g++ and nvcc."""
# Those that change no symbol and no dependency of a library of ours, which takes all objects.
_IMPLIED_LINKER_OPTION = re.compile(
    r"-O\d?|-z|(no)?defs|now|lazy|relro|noexecstack|--(no-)?undefined|--(no-)?as-needed|-s|-g"
    r"|--(start|end)-group|--(no-)?whole-archive|--(push|pop)-state|--hash-style=\w+|--sort-common"
    r"|--build-id(=\w+)?|--enable-new-dtags|--gc-sections|--dependency-file=.*|--eh-frame-hdr"
    r"|--allow-shlib-undefined|--no-warn.*|--fatal-warnings|--export-dynamic|-E|--strip-\w+"
)
_SYSTEM_LIB_DIR = re.compile(r"/(usr/)?lib(64)?(/[^/]+-linux-gnu|/gcc/[^/]+/\d+)?")


def find_repository(directory: str) -> str:
    """Return the root of the git repository of a directory. Without one, return the parent of the
    build directory that it is in, or the directory itself."""
    ancestors = [directory]
    while ancestors[-1] != os.path.dirname(ancestors[-1]):
        ancestors.append(os.path.dirname(ancestors[-1]))
    for ancestor in ancestors:
        if os.path.lexists(os.path.join(ancestor, ".git")):
            return ancestor
    # A source archive has no git: its build directory is usually `build` or `cmake-build-*`.
    build_directory = next((path for path in ancestors if "build" in os.path.basename(path)), "")
    return os.path.dirname(build_directory) or directory


def list_sources(commands: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the absolute paths of the sources that commands compile. Raises `ValueError`."""
    # Notes are made later, when the root is known that their paths are relative to.
    outputs = collect_outputs(ManifestDraft(""), "/", commands)
    return [source for source, _ in outputs.objects.values()]


def add_libraries(
    draft: ManifestDraft, root: str, commands: Iterable[tuple[str, Sequence[str]]]
) -> None:
    """Add the libraries that commands, (directory, arguments), make to a draft, with notes and with
    the targets and toolchains that they need. Sources are named relative to `root`. Raises
    `ValueError`."""
    outputs = collect_outputs(draft, root, commands)
    reader = _LibraryReader(draft, root, outputs)
    # All commands are read by now: a link may name a library that a later command makes.
    for product in outputs.products.values():
        product.resolve_own_libs(outputs)
    products = outputs.products.values()
    program_inputs = {path for p in products if p.kind == "program" for path in p.inputs}
    library_inputs = {path for p in products if p.kind != "program" for path in p.inputs}
    linked_objects: set[str] = set()
    for product in outputs.products.values():
        # An archive that only libraries link becomes a part of these.
        if product.kind == "static" and product.output in library_inputs - program_inputs:
            continue
        skipped_archives = {*outputs.products} if product.kind == "program" else set()
        objects = [*outputs.list_objects(product, skipped_archives)]
        linked_objects.update(objects)
        reader.add_product(product, objects)
    unlinked_objects: dict[tuple[str, str], list[str]] = {}
    for path, (_, arguments) in outputs.objects.items():
        if path not in linked_objects:
            # Such as `build/CMakeFiles/kernels.dir/gemm.cu.o`.
            target = _CMAKE_TARGET.search(path)
            extension_name = str(arguments.defines.get(_EXTENSION_NAME_MACRO, ""))
            name = target[1] if target else extension_name
            # Objects without a target's name are grouped by equal arguments.
            group_key = (name, "" if name else arguments.key)
            unlinked_objects.setdefault(group_key, []).append(path)
    for (name, _), objects in unlinked_objects.items():
        # A program that is not known here links these objects: symbols may be undefined until then.
        reader.add_library(name or draft.project, objects, {"undefined": True})
    # After all libraries: a name depends on whether there are several targets or toolchains.
    _name_targets(draft)
    _name_toolchains(draft)


class _LibraryReader(Struct):
    """Adds the products of commands to a draft."""

    draft: ManifestDraft
    root: str
    outputs: CommandOutputs

    def add_product(self, product: LinkProduct, objects: Sequence[str]) -> None:
        """Add the library of a linked or archived product. A program becomes a static library, with
        a note on its link."""
        file_name = os.path.basename(product.output)
        name = file_name.removeprefix("lib").partition(".")[0]
        unmade_objects, other_files = self._split_unmade_inputs(product)
        if product.kind == "shared":
            keys = {"output": self._to_output(product.output), "objects": unmade_objects}
            self.add_library(name, objects, {**keys, **self._list_link_keys(product, other_files)})
            return
        if product.kind == "program":
            file_name = f"lib{file_name}.a"
            # A library of the other build may have that name, often the one that it links.
            if os.path.join(os.path.dirname(product.output), file_name) in self.outputs.products:
                file_name, name = f"lib{name}_program.a", f"{name}_program"
            own_paths = filter(self.outputs.products.get, product.inputs)
            libs = [*map(os.path.basename, own_paths), *other_files]
            libs += (f"-L{directory}" for directory in product.arguments.lib_dirs)
            libs += (f"-l{lib}" for lib in product.arguments.libs)
            all_objects = self.outputs.list_objects(product, set())
            compiles = [self.outputs.objects[name][1] for name in all_objects]
            archs = dict.fromkeys(arch for step in compiles if step.rdc for arch in step.archs)
            link = f"g++ -Wl,--whole-archive {file_name} -Wl,--no-whole-archive"
            # Only nvcc links relocatable device code. It puts all files before the linker's words.
            if any(step.rdc for step in compiles):
                codes = (arch.replace("sm_", "") for arch in archs or (DEFAULT_ARCH,))
                gencodes = (f"-gencode=arch=compute_{code},code=sm_{code}" for code in codes)
                link = f"nvcc {' '.join(gencodes)} {file_name}"
            elif product.arguments.cudart:
                libs += _CUDART_WORDS[product.arguments.cudart]
            link = " ".join([link, *libs])
            self.draft.add_note(
                f"{os.path.basename(product.output)} is a program: its objects are archived in"
                f" {file_name}, and its link is left to you: {link}"
            )
        output = self._to_output(os.path.join(os.path.dirname(product.output), file_name))
        self.add_library(
            name, objects, {"kind": "static", "output": output, "objects": unmade_objects}
        )

    def _split_unmade_inputs(self, product: LinkProduct) -> tuple[list[str], list[str]]:
        """Split the inputs that no command makes: return the files within the project that a
        library can contain, as patterns of a manifest, and the paths of all other inputs."""
        ends = (".o", ".a") if product.kind == "shared" else (".o",)
        made_paths = {*self.outputs.objects, *self.outputs.products, *self.outputs.device_links}
        files = [path for path in product.inputs if path not in made_paths]
        project_files = [
            path
            for path in files
            if path.endswith(ends) and os.path.isfile(path) and is_within(path, self.root)
        ]
        patterns = [glob.escape(os.path.relpath(path, self.root)) for path in project_files]
        return patterns, [path for path in files if path not in project_files]

    def _to_output(self, path: str) -> str:
        """Return the output relative to the project, or in `build/` if it is outside."""
        relative = os.path.relpath(path, self.root)
        return f"build/{os.path.basename(path)}" if relative.startswith("..") else relative

    def _list_link_keys(self, product: LinkProduct, files: Sequence[str]) -> dict[str, object]:
        """Return the manifest's keys for the link of a shared library. `files` are inputs that no
        command makes: libraries are linked, any other file becomes a note."""
        arguments = product.arguments
        libs = [*arguments.libs]
        # With -fopenmp the compiler links libgomp without a word on the command line.
        if "-fopenmp" in arguments.flags and "gomp" not in libs:
            libs.append("gomp")
        linked_products = filter(None, map(self.outputs.products.get, product.inputs))
        needed = [os.path.basename(p.output) for p in linked_products if p.kind == "shared"]
        directories = [*arguments.lib_dirs]
        for path in files:
            base = os.path.basename(path)
            if ".so" in base or base.endswith(".a"):
                # `libx.so` is `-lx`; another name, such as `libx.so.1`, is `-l:libx.so.1`.
                library_match = re.fullmatch(r"lib(.+)\.(so|a)", base)
                libs.append(library_match[1] if library_match else f":{base}")
                directories.append(os.path.dirname(path))
            else:
                output = os.path.basename(product.output)
                self.draft.add_note(f"left out of {output}, because nothing makes it here: {path}")
        linked_cudarts = (kind for kind, lib in _CUDART_LIBS.items() if lib in libs)
        cudart = arguments.cudart or next(linked_cudarts, "none")
        # A manifest names the CUDA runtime by `cudart`, and an extension module needs no libpython.
        implied_libs = {*_CUDART_LIBS.values(), *_PYTHON_LIB.findall(" ".join(libs))}
        if any(path.endswith("/torch/lib") for path in directories):
            implied_libs |= {*_TORCH_LIBS}
            # Only Python modules need libtorch_python, and no other library of torch brings it.
            if "torch_python" in libs:
                needed.append("libtorch_python.so")
        links_torch = not {*_TORCH_LIBS}.isdisjoint(libs)
        libs = [lib for lib in libs if lib not in implied_libs]
        defined, rpath = self._read_linker_options(arguments.linker)
        return {
            "link-libs": [*dict.fromkeys(libs)],
            "link-dirs": [*self._list_link_dirs(libs, directories)],
            "rpath": rpath,
            "needed": needed,
            "cudart": cudart if cudart != "static" else None,
            "undefined": not defined or None,
            # With its headers alone, such as those of half.h, a library loads without torch.
            **({} if links_torch else {"torch": None}),
        }

    def _list_link_dirs(self, libs: Sequence[str], directories: Sequence[str]) -> Iterator[object]:
        """Yield, as values of a manifest, the directories that have one of these libraries and that
        a link does not search by itself."""
        files = {file for lib in libs for file in name_library_files(lib)}
        for path in dict.fromkeys(directories):
            # The linker searches the system's directories by itself; our link adds the toolkit's.
            if _SYSTEM_LIB_DIR.fullmatch(path) or os.path.isfile(f"{path}/libcudart.so"):
                continue
            if any(os.path.isfile(f"{path}/{file}") for file in files):
                yield self._to_manifest_directory(path)

    def _read_linker_options(self, options: Sequence[str]) -> tuple[bool, list[str]]:
        """Return whether the linker's options refuse undefined symbols, and the entries of the
        rpath that are relative to the library. Options that are left out become notes."""
        rpath: list[str] = []
        remaining = iter(options)
        for word in remaining:
            # `-R/path` is `-rpath=/path`.
            option = re.sub("^-R(?=.)", "-rpath=", word)
            name, equals, value = option.partition("=")
            if name in ("-rpath", "--rpath", "-R"):
                path = value if equals else next(remaining, "")
                for entry in path.split(":"):
                    # Such as `$ORIGIN/lib`, relative to the library, wherever it is installed.
                    if entry.startswith("$"):
                        rpath.append(entry)
                    # CMake pads a list by `:`, to leave room for what an installation writes there.
                    elif entry:
                        self.draft.add_note(f"a path of this machine is left out of rpath: {entry}")
            elif name in ("-soname", "-h", "--soname", "-rpath-link", "-m"):
                # tilusbuild names the output itself. A value that is the next word is skipped, too.
                if not equals:
                    next(remaining, "")
            elif not _IMPLIED_LINKER_OPTION.fullmatch(option):
                self.draft.add_note(f"option of the linker left out: {option}")
        return not {"defs", "--no-undefined"}.isdisjoint(options), rpath

    def add_library(
        self, library_name: str, objects: Sequence[str], keys: Mapping[str, object]
    ) -> None:
        """Add a library of the sources of `objects` to the draft, with `keys` of its table. Sources
        with other flags or architectures become parts of it. Sources that cannot be carried over
        become notes."""
        groups: dict[tuple[Archs | None, bool, str], tuple[CompileArguments, list[str]]] = {}
        # Device code comes first, relocatable code before other: its architectures are the
        # library's, and host code with equal flags joins it. The sort is stable: sources stay in
        # the order of the commands.
        sources_in_order = sorted(
            self._list_usable_sources(objects),
            key=lambda source: (not _is_device_code(source[0]), not source[1].rdc),
        )
        for name, arguments in sources_in_order:
            group_key: tuple[Archs | None, bool, str] = None, False, arguments.key
            if _is_device_code(name):
                group_key = self._read_archs(arguments), arguments.rdc, arguments.key
            else:
                equal_keys = (key for key in groups if key[-1] == arguments.key)
                group_key = next(equal_keys, group_key)
            _, group_sources = groups.setdefault(group_key, (arguments, []))
            group_sources.append(name)
        if not objects:
            self.draft.add_note(f"left out, because no source of it is compiled: {library_name}")
        first_library: LibraryDraft | None = None
        for (arch, rdc, _), (arguments, sources) in groups.items():
            used_names = [library.name for library in self.draft.libraries]
            language = "cpp" if arch is None else "cuda"
            base_name = f"{first_library.name}_{language}" if first_library else library_name
            name = make_table_name(base_name, used_names)
            library = LibraryDraft(name, sorted(set(sources)), arch=arch)
            if first_library is None:
                first_library, library.keys = library, {**keys, **({"rdc": True} if rdc else {})}
            else:
                library.keys["library"] = first_library.name
                library.arch = first_library.arch
                if arch not in (first_library.arch, None):
                    library.keys |= {"arch": [*arch[0]], "ptx": arch[1] or None}
                if arch and first_library.keys.get("rdc") and not rdc:
                    library.keys["rdc"] = False
            self._set_arguments(library, first_library, arguments)
            self.draft.libraries.append(library)

    def _list_usable_sources(
        self, objects: Iterable[str]
    ) -> Iterator[tuple[str, CompileArguments]]:
        """Yield (name, arguments) of the sources of `objects` that a library can have. Each other
        source becomes a note."""
        for source, arguments in map(self.outputs.objects.__getitem__, objects):
            name = os.path.relpath(source, self.root)
            suffix = os.path.splitext(name)[1]
            language = arguments.language and LANGUAGE_NAMES.get(arguments.language)
            if name.startswith(".."):
                why = f"it is outside of {self.root} (-o DIR): {source}"
            elif not os.path.isfile(source):
                why = f"it does not exist (is it generated?): {name}"
            elif language and language != LANGUAGES[suffix]:
                usual_suffix = next(key for key, value in LANGUAGES.items() if value == language)
                option = f"-x {arguments.language}"
                why = f"the other build compiles it as {usual_suffix} ({option}), and here the"
                why += f" suffix decides: {name}"
            else:
                yield name, arguments
                continue
            self.draft.add_note(f"left out, because {why}")

    def _read_archs(self, arguments: CompileArguments) -> Archs:
        """Return the architectures that a compile names, and whether PTX is kept. Without any,
        return `DEFAULT_ARCH`, with PTX, and add a note. Unknown names become notes."""
        for name in arguments.arch_names:
            if not re.search("(sm|compute)_", name):
                self.draft.add_note(f"left out, because it names no architecture: -arch={name}")
        archs = []
        for arch in arguments.archs:
            try:
                archs.append(parse_arch(arch).name)
            except ArchError as error:
                self.draft.add_note(f"left out: {error}")
        if not archs and not arguments.archs:
            self.draft.add_note(
                f"assumed, because nothing says what to compile for: {DEFAULT_ARCH}"
            )
        # The PTX of an architecture such as sm_90a runs only where its code runs: it is not kept.
        keeps_ptx = arguments.ptx and any(arch[-1].isdigit() for arch in archs)
        return tuple(archs) or (DEFAULT_ARCH,), keeps_ptx or not arguments.archs

    def _set_arguments(
        self, library: LibraryDraft, first_library: LibraryDraft, arguments: CompileArguments
    ) -> None:
        """Set defines, flags, include directories, standard and CPU of a library, and `torch` of
        the first library, which is linked. Arguments that are left out become notes."""
        library.defines = arguments.defines
        library.flags = self._keep_allowed_flags(arguments.flags)
        include_dirs = [*arguments.include_dirs, *arguments.system_dirs]
        paths = [path for path in include_dirs if not _TORCH_INCLUDE_DIR.search(path)]
        if paths != include_dirs and first_library.keys.setdefault("torch", True):
            first_library.keys.pop("undefined", None)
        else:
            paths = include_dirs
        # setuptools always passes the first; `torch = true` brings the second.
        implied_dirs = [f"{sys.prefix}/include"]
        if first_library.keys.get("torch"):
            implied_dirs.append(sysconfig.get_path("include"))
        for path in paths:
            if path not in implied_dirs and not os.path.isdir(path):
                self.draft.add_note(
                    f"left out, because it does not exist: include directory {path}"
                )
            # Since CUDA 13 nvcc searches `cccl` by itself, too.
            elif path not in implied_dirs and not is_toolkit(path.removesuffix("/cccl")):
                library.include_dirs.append(self._to_manifest_directory(path))
        march = arguments.march
        if march and (march == "native" or not names_march(march)):
            self.draft.add_note(f"flag left out: -march={march} (use host-march in [toolchain])")
        else:
            library.march = march
        if any(not name.endswith(".c") for name in library.sources):
            library.std = to_standard(arguments.std or _DEFAULT_STD)
        if arguments.std is not None and to_standard(arguments.std) is None:
            standards = ", ".join(STANDARDS)
            self.draft.add_note(
                f"left out: -std={arguments.std} (a manifest has one of {standards})"
            )
        # torch brings libgomp, and an archive (`kind`) is not linked here.
        needs_no_gomp = first_library.keys.get("torch") or "kind" in first_library.keys
        links_gomp = "gomp" in str(first_library.keys.get("link-libs"))
        if "-fopenmp" in library.flags and not needs_no_gomp and not links_gomp:
            self.draft.add_note(
                f"{library.name}: -fopenmp needs libgomp of the process;"
                ' link-libs = ["gomp"] links it'
            )

    def _to_manifest_directory(self, path: str) -> object:
        """Return a directory as a value of a manifest: {package, path} inside site-packages, a
        relative path inside the repository, else the absolute path (a note is added)."""
        # Where a package is installed differs from machine to machine, its name does not.
        for site in sys.path:
            package, _, inside = os.path.relpath(path, site or ".").partition("/")
            # A path outside of `site` begins with `..`, which is not an identifier.
            if site.endswith("-packages") and package.isidentifier() and inside:
                return {"package": package, "path": inside}
        if is_within(path, find_repository(self.root)):
            return os.path.relpath(path, self.root)
        self.draft.add_note(f"a directory of this machine, which others may have elsewhere: {path}")
        return path

    def _keep_allowed_flags(self, flags: list[str]) -> list[str]:
        """Return the flags that a manifest may have. Each other flag, with its value, becomes a
        note."""
        hints = {
            number: hint for number, _, hint in list_flag_problems(flags, unsafe=False, cpu=False)
        }
        allowed_flags: list[str] = []
        number = 0
        while number < len(flags):
            # An option is left out with its value, which would be an argument of its own otherwise.
            end = number + 1 + has_value(flags, number)
            hint = next((hints[i] for i in range(number, end) if i in hints), None)
            if hint:
                self.draft.add_note(f"flag left out: {' '.join(flags[number:end])} ({hint})")
            else:
                allowed_flags += flags[number:end]
            number = end
        return allowed_flags


def _is_device_code(name: str) -> bool:
    return LANGUAGES[os.path.splitext(name)[1]] == "cu"


def _name_targets(draft: ManifestDraft) -> None:
    """Add a target to the draft for each set of architectures. If there are several, set the key
    `targets` of each library."""
    arch_sets = [*dict.fromkeys(library.arch for library in draft.libraries if library.arch)]
    for archs, ptx in arch_sets:
        name = "gpu" if len(arch_sets) == 1 else "_".join(archs)
        name = name if name not in draft.targets else f"{name}_ptx"
        draft.targets[name] = (archs, ptx)
    for library in draft.libraries:
        if len(arch_sets) > 1 and "library" not in library.keys:
            fitting = [name for name, target in draft.targets.items() if target == library.arch]
            # Host code has no architecture. It is compiled once, for the first target.
            library.keys["targets"] = (fitting or [*draft.targets])[:1]


def _name_toolchains(draft: ManifestDraft) -> None:
    """Set the draft's toolchain: the standard of most libraries, and the CPU if all have the same.
    A library with another standard or CPU gets a named toolchain, and the key for it."""
    standard_counts = Counter(library.std for library in draft.libraries if library.std)
    std = standard_counts.most_common(1)[0][0] if standard_counts else None
    marches = {library.march for library in draft.libraries}
    # A named toolchain can change the CPU of [toolchain], and cannot take it back.
    march = marches.pop() if len(marches) == 1 else None
    draft.toolchain = {"std": std, "host-march": march}
    default_toolchain = (std or _DEFAULT_STD, march)
    toolchains: dict[object, tuple[str, str | None]] = {}
    for library in draft.libraries:
        library_toolchain = (library.std or default_toolchain[0], library.march)
        # A part has the toolchain of its library, unless it names another.
        if library_toolchain != toolchains.get(library.keys.get("library"), default_toolchain):
            name = "_".join(part.replace("+", "x") for part in library_toolchain if part)
            library.keys["toolchain"] = name
            keys = zip(("std", "host-march"), library_toolchain, strict=True)
            draft.toolchains[name] = dict(keys)
        toolchains[library.name] = library_toolchain
