"""`tilusbuild cache …`: look at the cache tree and look after it. Works without a manifest too."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from tilusbuild.cli import adopt, foreign, merge, options, show
from tilusbuild.report.text import amount

if TYPE_CHECKING:
    from tilusbuild.cache.cache import Cache

_ACTIONS = {
    "dir": "print the cache's folder",
    "ls": "list scripts, or the programs of one",
    "show": "show one program",
    "stats": "counts and sizes",
    "verify": "check everything against its digests",
    "gc": "remove what no project's last build made",
    "clear": "remove everything",
    "merge": "join the caches of several machines into this one",
    "package": "pack a foreign cache, for other machines",
    "export": "write the tree as another system lays it out",
}

_OTHERS = "another cache: of tilusbuild, Tilus, TileLang, Hidet or Triton"


def configure(parser: argparse.ArgumentParser) -> None:
    """One action, each with its own options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = {
        name: actions.add_parser(name, help=text, allow_abbrev=False)
        for name, text in _ACTIONS.items()
    }
    for action in made.values():
        options.common(action, defaults=False)
    made["ls"].add_argument("folder", metavar="SCRIPT|DIR", nargs="?", help=_OTHERS)
    for name in ("stats", "verify", "gc"):
        made[name].add_argument("folder", metavar="DIR", nargs="?", help=_OTHERS)
    made["gc"].add_argument(
        "--broken", action="store_true", help="of another system's: what is broken, too"
    )
    made["show"].add_argument(
        "program", metavar="PROGRAM", help="SCRIPT/I, or the first digits of a hash"
    )
    shown = made["show"].add_mutually_exclusive_group()
    for name, text in show.PARTS.items():
        shown.add_argument(
            f"--{name}", dest="part", action="store_const", const=name, help=f"print {text}"
        )
    made["show"].add_argument("-t", "--target", metavar="NAME", help="which target, with SCRIPT/I")
    made["verify"].add_argument("--quick", action="store_true", help="sizes and names only")
    made["verify"].add_argument(
        "--repair",
        action="store_true",
        help="remove what is damaged; the next build makes it again",
    )
    merge.configure(made["merge"])
    adopt.configure(made["package"])
    made["gc"].add_argument(
        "--older-than", metavar="AGE", help="only what is older, as in 30d or 12h"
    )
    made["gc"].add_argument("--max-size", metavar="SIZE", help="only down to this size, as in 20GB")
    made["gc"].add_argument(
        "--forget",
        metavar="MANIFEST",
        action="append",
        default=[],
        help="what this project's last build made may go too",
    )
    made["gc"].add_argument(
        "-n", "--dry-run", action="store_true", help="say what would be removed"
    )
    made["export"].add_argument("folder", metavar="DIR", help="a new folder, or an earlier view")
    made["export"].add_argument("script", metavar="SCRIPT", nargs="*", help="all without one")
    made["export"].add_argument(
        "--layout", required=True, choices=("tilus", "tilelang", "hidet"), help="whose"
    )


def run(arguments: argparse.Namespace) -> int:
    """Do one action; 1 when `verify` found something."""
    if arguments.action == "package":
        return adopt.package(arguments)
    named = getattr(arguments, "folder", None)
    if arguments.action in ("ls", "stats", "verify", "gc") and _is_folder(arguments, named):
        if foreign.is_foreign(named):
            return foreign.run(arguments)
        arguments.cache_dir, arguments.folder = named, None
    cache = options.cache(arguments)
    if arguments.action == "merge":
        return merge.run(cache, arguments)
    action: int = globals()[f"_{arguments.action}"](cache, arguments)
    return action


def _is_folder(arguments: argparse.Namespace, word: str | None) -> bool:
    """Whether a word names a cache; `ls` takes the name of a script in its place."""
    return word is not None and (arguments.action != "ls" or "/" in word or os.path.isdir(word))


def _dir(cache: Cache, arguments: argparse.Namespace) -> int:
    if arguments.json:
        options.emit("cache", path=cache.root)
    else:
        print(cache.root)
    return 0


def _ls(cache: Cache, arguments: argparse.Namespace) -> int:
    from tilusbuild.errors import did_you_mean, input_error
    from tilusbuild.table import table

    listed = cache.scripts()
    if arguments.folder is not None:
        known = {script.folder for script in listed}
        listed = [script for script in listed if script.folder == arguments.folder]
        if not listed:
            raise input_error(
                f'no script "{arguments.folder}" in {cache.root}',
                hint=did_you_mean(arguments.folder, known),
            )
        return _ls_programs(cache, arguments, listed)
    roots = _roots(cache)
    if arguments.json:
        for s in listed:
            options.emit(
                "script",
                script=s.folder,
                hash=s.hash,
                target=s.head.get("target"),
                statuses=dict(s.statuses),
                size=s.size,
                roots=roots.get((s.folder, s.hash), []),
            )
        return 0
    rows = [
        (
            s.folder,
            s.head.get("target", ""),
            s.head.get("arch", ""),
            len(s.programs),
            s.statuses["built"],
            s.statuses["failed"] + s.statuses["pruned"],
            amount(s.size),
            s.hash[:12],
            ", ".join(roots.get((s.folder, s.hash), [])),
        )
        for s in listed
    ]
    titles = ("script", "target", "arch", "programs", "built", "refused", "size", "hash", "root")
    print(table(titles, rows), end="")
    return 0


def _roots(cache: Cache) -> dict[tuple[str, str], list[str]]:
    """The projects and packages that keep each script from collection."""
    from tilusbuild.cache.sealed import CorruptFileError

    try:
        projects = cache.projects()
    except CorruptFileError:
        return {}
    found: dict[tuple[str, str], list[str]] = {}
    for key, project in projects.items():
        name = f"package {project.name}" if key.startswith("package:") else project.name
        for pair in project.scripts:
            found.setdefault(pair, []).append(name)
    return found


def _ls_programs(cache: Cache, arguments: argparse.Namespace, listed: list[Any]) -> int:
    for script in listed:
        path = cache.tree.script_path(script.folder, script.hash)
        if arguments.json:
            for index, program in enumerate(script.programs):
                entry = cache.lookup(program)
                options.emit(
                    "program",
                    script=script.folder,
                    target=script.head.get("target"),
                    index=index,
                    hash=program,
                    status=entry.status if entry else "missing",
                )
            continue
        print(f"{script.folder} {script.head.get('target', '')}: {os.path.relpath(path)}")
        try:
            with open(os.path.join(path, "schedule.txt"), encoding="utf-8") as file:
                print(file.read())
        except OSError as error:
            print(f"  schedule.txt: {error.strerror}")
    return 0


def _program(cache: Cache, arguments: argparse.Namespace) -> str:
    """The one hash that is meant. Raises `InputError`."""
    from tilusbuild.errors import input_error

    name, slash, number = arguments.program.partition("/")
    if not slash:
        found = cache.find(name)
        if len(found) == 1:
            return found[0]
        what = "no program begins so" if not found else f"{len(found)} programs begin so"
        raise input_error(
            f'"{name}": {what}', hint="a program is SCRIPT/I or the first digits of its hash"
        )
    matching = [
        script
        for script in cache.scripts()
        if script.folder == name
        and number.isdigit()
        and int(number) < len(script.programs)
        and arguments.target in (None, script.head.get("target"))
    ]
    roots = {pair for project in cache.projects().values() for pair in project.scripts}
    current = [script for script in matching if (script.folder, script.hash) in roots] or matching
    if not current:
        raise input_error(f'no program "{arguments.program}" in {cache.root}')
    programs = {script.programs[int(number)] for script in current}
    if len(programs) > 1:
        targets = ", ".join(sorted(f"{s.head.get('target')}" for s in current))
        raise input_error(
            f'"{arguments.program}" is several programs', hint=f"choose with --target: {targets}"
        )
    return programs.pop()


def _show(cache: Cache, arguments: argparse.Namespace) -> int:
    program = _program(cache, arguments)
    folder = cache.program_path(program)
    if arguments.part is not None:
        show.show(cache, program, arguments.part)
        return 0
    entry = cache.lookup(program)
    if arguments.json:
        options.emit(
            "program", path=folder, **(dict(entry.meta) if entry else {"status": "broken"})
        )
        return 0
    print(f"{program}\n{os.path.relpath(folder)}")
    if entry is None:
        print("not whole: `tilusbuild cache verify` says why")
        return 1
    with open(os.path.join(folder, "program.txt"), encoding="utf-8", errors="replace") as file:
        print("\n" + file.read())
    _show_entry(entry)
    return 0


def _show_entry(entry: Any) -> None:
    from tilusbuild.table import table

    print(f"status: {entry.status}" + (f" ({entry.reason})" if entry.reason else ""))
    images = ", ".join(f"{i['arch']} {i['kind']} {i['size']} B" for i in entry.meta["images"])
    if images:
        print(f"code: {images}")
    if rows := show.resources(entry.meta):
        print(f"dynamic shared memory: {entry.meta.get('dynamic_smem', 0)}")
        print(rows, end="")
    print(
        table(("file", "bytes"), [(n, f["size"]) for n, f in entry.meta["files"].items()]), end=""
    )


def _stats(cache: Cache, arguments: argparse.Namespace) -> int:
    from tilusbuild.table import table

    stats = cache.stats()
    if arguments.json:
        options.emit(
            "stats",
            path=stats.root,
            programs=dict(stats.statuses),
            sizes=dict(stats.sizes),
            size=stats.size,
        )
        return 0
    print(stats.root)
    print(table(("programs", "count"), list(stats.statuses.items())))
    rows = [(name, amount(size)) for name, size in stats.sizes.items()]
    print(table(("folder", "size"), [*rows, ("all", amount(stats.size))]), end="")
    return 0


def _verify(cache: Cache, arguments: argparse.Namespace) -> int:
    problems = cache.verify(deep=not arguments.quick)
    for problem in problems:
        if arguments.json:
            options.emit("problem", name=problem.name, what=problem.what, advice=problem.advice)
        else:
            print(problem)
    removed = cache.repair(problems) if arguments.repair else []
    left = [problem for problem in problems if problem.entry not in removed]
    if arguments.json:
        options.emit("summary", problems=len(problems), removed=len(removed))
    elif not problems:
        print("no problems found")
    else:
        sys.stderr.write(f"{len(problems)} problems, {len(removed)} entries removed\n")
    return 1 if left else 0


def _gc(cache: Cache, arguments: argparse.Namespace) -> int:
    from tilusbuild.manifest.table import parse_duration, parse_size

    older = parse_duration(arguments.older_than) if arguments.older_than else None
    size = parse_size(arguments.max_size) if arguments.max_size else None
    if arguments.forget and not arguments.dry_run:
        cache.forget([os.path.abspath(path) for path in arguments.forget])
    result = cache.gc(older_than=older, max_size=size, dry_run=arguments.dry_run)
    freed = sum(item.size for item in result.removed)
    if arguments.json:
        for item in result.removed:
            options.emit("removed", name=item.name, size=item.size, age=item.age)
        options.emit("summary", removed=len(result.removed), freed=freed, kept=result.kept_size)
        return 0
    if arguments.verbose or arguments.dry_run:
        for item in result.removed:
            print(f"{amount(item.size):>10}  {item.name}")
    verb = "would remove" if arguments.dry_run else "removed"
    print(f"{verb} {len(result.removed)} entries, {amount(freed)}; {amount(result.kept_size)} stay")
    return 0


def _clear(cache: Cache, arguments: argparse.Namespace) -> int:
    cache.clear()
    if not arguments.quiet and not arguments.json:
        print(f"{cache.root} is empty")
    return 0


def _export(cache: Cache, arguments: argparse.Namespace) -> int:
    from tilusbuild.interop.export.collect import sources
    from tilusbuild.interop.export.layouts import LAYOUTS
    from tilusbuild.interop.export.write import export

    found = sources(cache, arguments.script)
    items = LAYOUTS[arguments.layout](found)
    with cache.in_use():
        exported = export(arguments.layout, items, arguments.folder)
    if arguments.json:
        options.emit(
            "exported",
            path=os.path.abspath(arguments.folder),
            layout=arguments.layout,
            files=exported.files,
            linked=exported.linked,
            copied=exported.copied,
        )
    elif not arguments.quiet:
        print(
            f"{arguments.folder}: {len(found)} scripts, {exported.files} files,"
            f" {exported.linked} of them links; {amount(exported.copied)} more on disk"
        )
    return 0
