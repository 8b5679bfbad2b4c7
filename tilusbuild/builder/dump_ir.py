"""`--dump-ir`: for each program of a plan, what every step made of it, beside the program.

`ir/` has the template's steps, `module/ir/` the compiler's. They appear whole, once, and are in no
record: a program is the same with them and without. A program that has them is passed over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tilusbuild.builder.project import Project
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.entries import lookup
from tilusbuild.compile.dump import dump_module
from tilusbuild.expr import Value
from tilusbuild.plan.instance import style_of
from tilusbuild.plan.planner import Plan, ProgramJob, jobs
from tilusbuild.plan.rendering import RenderedProgram
from tilusbuild.render.renderer import resolved
from tilusbuild.table import table

TEMPLATE_STEPS, COMPILER_STEPS = "ir", "module/ir"


def dump(project: Project, plan: Plan) -> int:
    """Dump what has no dump yet; how many programs that were. Raises `InputError`, `CacheError`,
    and `CancelledError`."""
    wanted = {
        job.hash: job
        for job in jobs(plan)
        if lookup(project.cache, job.hash) is not None
        and not has_dump(project, job.hash)
        and not job.needs  # a link: each of its objects has a dump of its own
    }
    if not wanted:
        return 0
    with ThreadPoolExecutor(project.settings.jobs.value) as pool:
        for done in [pool.submit(_dump, project, job) for job in wanted.values()]:
            done.result()
    return len(wanted)


def has_dump(project: Project, program: str) -> bool:
    """Return whether a program has been dumped."""
    return os.path.isdir(os.path.join(project.cache.program_path(program), TEMPLATE_STEPS))


def _dump(project: Project, job: ProgramJob) -> None:
    made = job.render()
    private = project.cache.private()
    try:
        stage = private.path
        with wrap_oserror(stage):
            os.makedirs(os.path.join(stage, "module"))
            write(os.path.join(stage, "module", "source.cu"), made.recipe.source)
            _template_steps(project, job, made, os.path.join(stage, TEMPLATE_STEPS))
            digest = made.recipe.includes.digest
            dump_module(
                made.recipe,
                job.planned.spec.toolchain,
                stage,
                None if digest is None else project.cache.include_path(digest),
                project.runner,
                project.manifest.build.timeout,
            )
            directory = project.cache.program_path(job.hash)
            for name in (COMPILER_STEPS, TEMPLATE_STEPS):
                project.cache.move(os.path.join(stage, name), os.path.join(directory, name))
    finally:
        private.discard()


def _template_steps(
    project: Project, job: ProgramJob, made: RenderedProgram, directory: str
) -> None:
    """1: the values; 2: the template with what it includes; 3: what was rendered."""
    os.makedirs(directory)
    instance = job.planned
    schedule = instance.spec.space[job.planned.schedules[job.index]]
    values: dict[str, Mapping[str, Value]] = {
        "constant": instance.params,
        "schedule": {name: schedule.values[name] for name in instance.parameters},
        "derived": {name: schedule.values[name] for name in instance.spec.derived},
    }
    rows = [(kind, name, value) for kind, of in values.items() for name, value in of.items()]
    write(os.path.join(directory, "1_values.txt"), table(("", "name", "value"), rows))
    script = project.manifest.scripts[job.script]
    renderer = project.renderer.styled(style_of(script))
    write(os.path.join(directory, "2_template.cu.j2"), resolved(renderer, script.template))
    write(os.path.join(directory, "3_source.cu"), made.recipe.source)


def write(path: str, text: str) -> None:
    """Write a file of a private directory. Raises `OSError`."""
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
