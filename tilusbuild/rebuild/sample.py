"""Compile programs of a package or a cache again, and compare the libraries byte for byte.

The sample is chosen by hash, so that everybody who asks for 5 % checks the same programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from tilusbuild.builder.project import Project
from tilusbuild.cache import layout
from tilusbuild.cache.entries import get_product, lookup_entry
from tilusbuild.cache.index import list_programs
from tilusbuild.cache.tree import Tree
from tilusbuild.package import names
from tilusbuild.package.errors import missing
from tilusbuild.package.extract import Limits
from tilusbuild.package.listing import FileList
from tilusbuild.package.read import is_cache, unpack_package
from tilusbuild.plan.model import PlanSelection
from tilusbuild.plan.planner import iterate_jobs
from tilusbuild.process.local import LocalRunner
from tilusbuild.process.machine import count_usable_cores
from tilusbuild.rebuild.rebuilder import Rebuilder, RebuildResult
from tilusbuild.status import Status


def rebuild_share(path: str, share: float, limits: Limits) -> Iterator[RebuildResult]:
    """Compile a share (0 to 1) of the programs of a package or a cache again, at least one. Yield
    the result of each.

    Raises `PackageError`, also for a package without sources.
    """
    if is_cache(path):
        cache = Tree(path)
        yield from _compile_all(cache.root, _sample_library_hashes(cache, share))
        return

    def select(listing: FileList) -> set[str]:
        return _select_needed_files(listing, share)

    with unpack_package(path, select, limits) as (listing, root):
        recorded = {
            program: listing.files[f"{layout.PROGRAMS}/{program}/{layout.LIBRARY}"].sha256
            for program in sample_programs(listing.programs, share)
        }
        yield from _compile_all(root, recorded)


def find_unsteady_scripts(project: Project) -> Iterator[str]:
    """Call all generators of a project in new processes. Yield the name and the generator of each
    script of which a program is not that of the plan. Raises `InputError`."""
    scripts = project.manifest.scripts
    generators = {name: script.generator for name, script in scripts.items() if script.generator}
    selection = PlanSelection(tuple(generators))
    if generators:
        first, second = (
            {(job.script, job.index, job.instance_label): job.hash for job in iterate_jobs(plan)}
            for plan in (project.make_plan(selection), project.make_fresh_plan(selection))
        )
        differing = {job[0] for job, program in first.items() if second.get(job) != program}
        yield from (f"{name}: {generators[name]}" for name in sorted(differing))


def sample_programs(programs: Iterable[str], share: float) -> set[str]:
    """Return the programs whose hashes are in the lowest `share` of all hashes; at least one."""
    ordered = sorted(programs)
    # 15 hexadecimal digits are 60 bits, which a product with a float keeps apart well enough.
    chosen = {program for program in ordered if int(program[:15], 16) < share * (1 << 60)}
    return chosen or set(ordered[:1])


def _sample_library_hashes(cache: Tree, share: float) -> dict[str, str]:
    """Return the sha256 of the product of each built program in the sample, by program."""
    entries = (lookup_entry(cache, program) for program in list_programs(cache))
    built = {entry.hash: entry for entry in entries if entry and entry.status == Status.BUILT}
    return {
        program: get_product(built[program].meta).sha256 or ""
        for program in sample_programs(built, share)
    }


def _select_needed_files(listing: FileList, share: float) -> set[str]:
    """Return the paths of the sample's programs and of all headers. Raises `PackageError` if the
    package has no sources."""
    chosen = sample_programs(listing.programs, share)
    for program in sorted(chosen):
        if f"{layout.PROGRAMS}/{program}/{layout.COMPILE_SH}" not in listing.files:
            raise missing(
                f"{layout.PROGRAMS}/{program}/{layout.COMPILE_SH} is not packed",
                hint="only a package that includes its sources can be built again",
            )
    needed = set()
    for path in listing.files:
        kind, _, digest = names.split_root(path)
        if kind == layout.INCLUDE or digest in chosen:
            needed.add(path)
    return needed


def _compile_all(root: str, recorded: Mapping[str, str]) -> Iterator[RebuildResult]:
    """Compile the programs of the tree at `root` again, as many at once as there are cores.

    `recorded` has the sha256 of each program's library. Yield the results in the order of hashes.
    """
    programs, digests = zip(*sorted(recorded.items()), strict=True)
    with ThreadPoolExecutor(count_usable_cores()) as pool:
        runner = LocalRunner()
        try:
            yield from pool.map(Rebuilder(root, runner).rebuild_program, programs, digests)
        finally:
            # Before the pool ends: it waits for its threads, and they for compilers.
            runner.close()
