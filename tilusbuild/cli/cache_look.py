"""`tilusbuild cache ls [SCRIPT|DIR]`: list scripts, the programs of one, or a foreign cache; and
`cache show PROGRAM`: what is known of a program; with a flag one text of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import options
from tilusbuild.cli.arguments import Common, flag, one_of, positionals, target_option
from tilusbuild.cli.options import emit_line, print_message
from tilusbuild.errors import input_error
from tilusbuild.report.jsonl import declare_line
from tilusbuild.report.text import format_bytes, format_count
from tilusbuild.runtime.regular import read_text
from tilusbuild.status import Status

if TYPE_CHECKING:
    from tilusbuild.cache.entries import Entry
    from tilusbuild.cache.index import ScriptListing
    from tilusbuild.cache.tree import Tree

_PARTS: Mapping[str, str] = {
    "source": "source.cu",
    "log": "the compiler's output",
    "ptx": "the PTX, if it was dumped",
    "sass": "the SASS, if it was dumped",
    "path": "its directory",
}


class CacheLsArgs(Common, frozen=True, kw_only=True):
    names: tuple[str, ...] = positionals(
        "SCRIPT|DIR",
        help="list the programs of this script, instance or program, or"
        f" {options.describe_other_cache()}",
    )
    all: bool = flag("--all", help="list the scripts of other projects, too")


CachedScriptLine = declare_line(
    "script",
    script=str,
    hash=str,
    target=str | None,
    statuses=Mapping[str, int],
    size=int,
    roots=tuple[str, ...],
    label=str,
)
"""A script that was published, and the projects and packages that keep it."""


CachedProgramLine = declare_line(
    "program", script=str, target=str | None, index=int, hash=str, status=Status, label=str
)
"""A program of the named script."""


def list_cache(arguments: CacheLsArgs) -> int:
    """List the scripts of a cache, the programs of one script, or a foreign cache. Return the exit
    status."""
    word = arguments.names[0] if len(arguments.names) == 1 else ""
    # The name of a script is not a path: a directory with the name of a script comes first.
    if os.path.isdir(word) or _is_path(word):
        status = options.run_foreign_verb("ls", word, arguments)
        if status is not None:
            return status
        return _list_scripts(options.find_named_cache(word, arguments), arguments)
    cache = options.find_cache(arguments.cache_dir)
    for name in _join_names(cache, arguments.names):
        _list_programs(cache, arguments, name)
    return 0 if arguments.names else _list_scripts(cache, arguments)


def _join_names(cache: Tree, words: Sequence[str]) -> list[str]:
    """Return the names in the words of a command line: a target belongs to the name before it."""
    from tilusbuild.cache.index import list_scripts
    from tilusbuild.runtime.naming import join_targets

    return join_targets(words, {script.target for script in list_scripts(cache)})


def _is_path(word: str) -> bool:
    """Return whether a word has a slash and is not the name of a script or program."""
    from tilusbuild.runtime.naming import parse_name

    try:
        parse_name(word)
    except ValueError:
        return "/" in word
    return False


def _list_scripts(cache: Tree, arguments: CacheLsArgs) -> int:
    """Print a row, or a line of JSON, for each script in a cache. Return 0."""
    from tilusbuild.cache.index import list_scripts
    from tilusbuild.runtime.naming import format_instance_name
    from tilusbuild.table import format_table

    roots, foreign = _collect_roots(cache)
    scripts = list_scripts(cache)
    listings = scripts if arguments.all else [s for s in scripts if s.key not in foreign]
    if arguments.json:
        for script in listings:
            emit_line(
                CachedScriptLine(
                    *script.key,
                    script.head.get("target"),
                    dict(script.statuses),
                    script.size,
                    tuple(roots.get(script.key, ())),
                    script.label,
                )
            )
        return 0
    rows = [
        (
            format_instance_name(listing.script, listing.params),
            listing.target,
            listing.head.get("arch", ""),
            len(listing.programs),
            listing.statuses[Status.BUILT],
            listing.statuses[Status.FAILED] + listing.statuses[Status.PRUNED],
            format_bytes(listing.size),
            listing.hash[:12],
            # Two projects can have the same name; each counts once here.
            ", ".join(dict.fromkeys(roots.get(listing.key, []))),
        )
        for listing in listings
    ]
    titles = ("script", "target", "arch", "programs", "built", "refused", "size", "hash", "root")
    print(format_table(titles, rows), end="")
    if count := len(scripts) - len(listings):
        print_message(f"--all lists {format_count(count, 'script')} of other projects, too\n")
    return 0


def _collect_roots(cache: Tree) -> tuple[dict[tuple[str, str], list[str]], set[tuple[str, str]]]:
    """Return, by script, the projects and packages that keep it from the garbage collection; and
    the scripts that only projects elsewhere keep."""
    from tilusbuild.cache.index import find_projects_here, read_index
    from tilusbuild.runtime.sealed import CorruptFileError

    try:
        projects, own = read_index(cache), find_projects_here(cache)
    except CorruptFileError:
        return {}, set()  # `cache verify` says so
    roots: dict[tuple[str, str], list[str]] = {}
    own_scripts: set[tuple[str, str]] = set()
    for key, project in projects.items():
        root_name = f"package {project.name}" if key.startswith("package:") else project.name
        if key in own or not os.path.isabs(key):
            own_scripts.update(project.scripts)
        for directory_and_hash in project.scripts:
            roots.setdefault(directory_and_hash, []).append(root_name)
    return roots, roots.keys() - own_scripts


def _list_programs(cache: Tree, arguments: Common, word: str) -> None:
    """Print the programs of each instance that the name `word` means."""
    from tilusbuild.cache import index as cache_index
    from tilusbuild.cache.entries import lookup_entry

    for script in cache_index.find_instances(cache, word):
        numbers = cache_index.find_numbers(cache, word, script)
        if not arguments.json:
            _print_programs(cache, script, numbers)
            continue
        for index in numbers:
            program = script.numbered[index]
            entry = lookup_entry(cache, program)
            emit_line(
                CachedProgramLine(
                    script.directory,
                    script.target or None,
                    index,
                    program,
                    entry.status if entry else Status.MISSING,
                    script.format_label(index),
                )
            )


def _print_programs(cache: Tree, script: ScriptListing, numbers: Sequence[int]) -> None:
    """Print an instance's path, and the rows of its `schedule.txt` that have these numbers."""
    path = cache.script_path(script.directory, script.hash)
    print(f"{script.label}: {os.path.relpath(path)}")
    try:
        lines = read_text(os.path.join(path, "schedule.txt")).splitlines()
    except OSError as error:
        print(f"  schedule.txt: {error.strerror}")
        return
    head, program_lines = lines[:2], lines[2:]
    # There is a line for each program, in order; a damaged file may have fewer.
    pairs = zip(program_lines, script.numbered, strict=False)
    rows = [line for line, number in pairs if number in numbers]
    print("\n".join([*head, *rows, ""]))


class CacheShowArgs(Common, frozen=True, kw_only=True):
    program: tuple[str, ...] = positionals(
        "PROGRAM",
        at_least_one=True,
        help="SCRIPT/I, as `build` prints it, or the first digits of a hash",
    )
    part: str | None = one_of({name: f"print {text}" for name, text in _PARTS.items()})
    target: str | None = target_option("the target, for a program that is named SCRIPT/I")


ShownProgramLine = declare_line("program", inlined="meta", path=str, meta=Mapping[str, Any])
"""A program: where it is, and its `meta.json`."""


ShownPartLine = declare_line("part", program=str, part=str, text=str)
"""One text of a program, exactly."""


def show_programs(arguments: CacheShowArgs) -> int:
    """Print each program's facts, or one part of it. Return 1 when a program is damaged."""
    from tilusbuild.cache.index import find_program

    cache = options.find_cache(arguments.cache_dir)
    names = _join_names(cache, arguments.program)
    programs = [find_program(cache, name, arguments.target) for name in names]
    return max(_show_program(cache, arguments, program) for program in programs)


def _show_program(cache: Tree, arguments: CacheShowArgs, program: str) -> int:
    """Print a program's facts, or one part of it. Return 1 when the program is damaged."""
    from tilusbuild.cache.entries import lookup_entry

    directory = cache.program_path(program)
    if arguments.part is not None:
        text = _read_part(program, directory, arguments.part)
        if arguments.json:
            emit_line(ShownPartLine(program, arguments.part, text))
        else:  # not `print`: a text has its own last newline, or none
            sys.stdout.write(text)
        return 0
    entry = lookup_entry(cache, program)
    if arguments.json:
        emit_line(ShownProgramLine(directory, entry.meta if entry else {"status": "broken"}))
        return 0
    print(f"{program}\n{os.path.relpath(directory)}")
    if entry is None:
        print("incomplete: see `tilusbuild cache verify`")
        return 1
    print("\n" + _read_file(os.path.join(directory, "program.txt")))
    _print_entry(entry)
    return 0


def _print_entry(entry: Entry) -> None:
    """Print a program's status, code images, resources of each kernel, and files."""
    from tilusbuild.table import format_table

    print(f"status: {entry.status}" + (f" ({entry.reason})" if entry.reason else ""))
    images = [
        f"{image['arch']} {image['kind']} {image['size']} B" for image in entry.meta["images"]
    ]
    if images:
        print(f"code: {', '.join(images)}")
    fields = ("registers", "stack", "spill_stores", "spill_loads", "static_smem", "barriers")
    rows = [
        (kernel, arch, *(usage[field] for field in fields))
        for kernel, usages in entry.meta["kernels"].items()
        for arch, usage in usages.items()
    ]
    # A program for the host has no kernel of a GPU.
    if rows:
        print(f"dynamic shared memory: {entry.meta.get('dynamic_smem', 0)}")
        print(format_table(("kernel", "arch", *fields), rows), end="")
    files = [(name, facts["size"]) for name, facts in entry.meta["files"].items()]
    print(format_table(("file", "bytes"), files), end="")


def _read_part(program: str, directory: str, part: str) -> str:
    """Return a text of a program. Raises `InputError` when it was not dumped."""
    if part == "path":
        return f"{directory}\n"
    from tilusbuild.compile.pipelines.cubin import KERNEL_CUBIN

    files = {"source": "source.cu", "log": "nvcc_output.txt"}
    cubin = os.path.join(directory, "module", KERNEL_CUBIN.source_name)
    if part == "source" and os.path.isfile(cubin):
        raise input_error(f"{program[:12]} has no source but a cubin: {cubin}")
    if part in files:
        return _read_file(os.path.join(directory, "module", files[part]))
    from tilusbuild.cache.entries import read_dump

    text = read_dump(directory, part)
    if text:
        return text
    hint = "`tilusbuild build SCRIPT --dump-ir` dumps it, and compiles nothing else again"
    if part == "sass":
        hint += "; it needs an nvdisasm: pip install 'tilusbuild[sass]'"
    raise input_error(f"{program[:12]}: its {part.upper()} was not dumped", hint=hint)


def _read_file(path: str) -> str:
    try:
        return read_text(path, "replace")
    except OSError as error:
        raise input_error(f"{path}: {error.strerror}") from None
