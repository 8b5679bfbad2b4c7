"""`--dump-ir`: for each program of a plan, what every step made of it, beside the program.

`ir/` has the template's steps, `module/ir/` the compiler's. They appear whole, once, and are in no
record: a program is the same with them and without. A program that has them is passed over. The
price: it is compiled once more, with the compiler's intermediate files kept and line numbers on. An
output that a step does not have, or that needs a missing tool, is left out.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tilusbuild.binary.elf import BinaryError
from tilusbuild.binary.fatbin import Cubin, extract_cubins
from tilusbuild.builder.project import Project
from tilusbuild.cache.disk import wrap_oserror
from tilusbuild.cache.entries import lookup_entry
from tilusbuild.compile.model import Step
from tilusbuild.compile.pipelines.nvcc import choose_image_name
from tilusbuild.compile.program import Compile
from tilusbuild.compile.steps import collect_tools
from tilusbuild.plan.instance import read_style
from tilusbuild.plan.planner import Plan, ProgramJob, iterate_jobs
from tilusbuild.plan.rendering import RenderedProgram, make_context
from tilusbuild.process.base import CompletedCommand
from tilusbuild.render.renderer import resolve_includes
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.envelope import StepStore
from tilusbuild.status import Compiled
from tilusbuild.table import format_table
from tilusbuild.toolchain.cuda import find_disassembler

TEMPLATE_STEPS, COMPILER_STEPS = "ir", "module/ir"


def dump_programs(project: Project, plan: Plan) -> int:
    """Dump every built program of a plan that has no dump yet, several at once. Return how many
    were dumped. Raises `InputError`, `CacheError`, `CancelledError`."""
    jobs: dict[str, ProgramJob] = {}
    for job in iterate_jobs(plan):
        dump_path = os.path.join(project.cache.program_path(job.hash), TEMPLATE_STEPS)
        is_built = lookup_entry(project.cache, job.hash) is not None
        # A job that needs others is a link: each of its objects has a dump of its own.
        if is_built and not os.path.isdir(dump_path) and not job.needs:
            jobs[job.hash] = job
    with ThreadPoolExecutor(project.settings.jobs.value) as pool:
        futures = [pool.submit(_dump_program, project, job) for job in jobs.values()]
        for future in futures:
            # This raises what the dump raised.
            future.result()
    return len(jobs)


def _dump_program(project: Project, job: ProgramJob) -> None:
    """Compile a program again in a private directory, and move `ir` and `module/ir` from there to
    the program's entry."""
    rendered = job.render()
    private = project.cache.make_private()
    try:
        stage = private.path
        with wrap_oserror(stage):
            os.makedirs(os.path.join(stage, "module"))
            recipe = rendered.recipe
            source = os.path.join(stage, "module", recipe.pipeline.source_name)
            write_text(source, recipe.source)
            _write_template_steps(project, job, rendered, os.path.join(stage, TEMPLATE_STEPS))
            _write_compiler_steps(project, job, rendered, stage)
            _write_generator_steps(job, stage)
            directory = project.cache.program_path(job.hash)
            # `ir` is moved last: a program that has it counts as dumped, and is passed over.
            for name in (COMPILER_STEPS, TEMPLATE_STEPS):
                project.cache.move_into_place(
                    os.path.join(stage, name), os.path.join(directory, name)
                )
    finally:
        private.discard()


def _write_compiler_steps(
    project: Project, job: ProgramJob, rendered: RenderedProgram, stage: str
) -> None:
    """Compile a program again, and write what each step made to `module/ir` in the stage. The
    source is in the stage's `module` directory."""
    recipe, toolchain = rendered.recipe, job.planned.spec.toolchain
    digest = recipe.includes.digest
    include_path = None if digest is None else project.cache.include_path(digest)
    directory, work = os.path.join(stage, COMPILER_STEPS), os.path.join(stage, "work")
    os.makedirs(directory)
    try:
        compiling = Compile(
            recipe,
            collect_tools(toolchain),
            stage,
            work,
            project.runner,
            StepStore(),
            project.manifest.build.timeout,
        )
        compiling.prepare_directory(include_path)
        dump = Dump(compiling, directory, find_disassembler(toolchain.cuda))
        # The steps of a kernel end with its image: what follows only wraps the image in a library.
        is_kernel = recipe.pipeline.launcher.starts_kernel
        outcome = compiling.run_steps(until=choose_image_name(recipe) if is_kernel else None)
        recipe.pipeline.dump_intermediates(recipe, dump)
        if outcome.ptxas:
            write_text(os.path.join(directory, "usage.txt"), _format_usage(outcome))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_template_steps(
    project: Project, job: ProgramJob, rendered: RenderedProgram, directory: str
) -> None:
    """Write the steps of the template: 1 the values, 2 the template with its includes, 3 the
    source."""
    os.makedirs(directory)
    instance, values = job.planned, job.schedule.values
    rows = [
        *(("constant", name, value) for name, value in instance.params.items()),
        *(("schedule", name, values[name]) for name in instance.parameters),
        *(("derived", name, values[name]) for name in instance.spec.derived),
    ]
    write_text(os.path.join(directory, "1_values.txt"), format_table(("", "name", "value"), rows))
    script = project.manifest.scripts[job.script]
    renderer = project.renderer.get_styled_renderer(read_style(script))
    template = resolve_includes(renderer, script.template)
    write_text(os.path.join(directory, "2_template.cu.j2"), template)
    if rendered.recipe.pipeline.source_name == "source.cu":
        write_text(os.path.join(directory, "3_source.cu"), rendered.recipe.source)


def _write_generator_steps(job: ProgramJob, stage: str) -> None:
    """Write the intermediate texts of a generator's compiler below `ir` and `module/ir`."""
    spec, sources = job.planned.spec, job.planned.sources
    if not spec.owner.generator:
        return
    context = make_context(spec, job.schedule)
    for name, text in sources.renderer.generate_ir(spec.owner.template, context).items():
        write_text(os.path.join(stage, name), text)


def _format_usage(outcome: Compiled) -> str:
    """Return a line for each kernel, with the resources that ptxas reported."""
    return "".join(
        f"{kernel.arch} {kernel.kernel}: {kernel.registers} registers, {kernel.stack} bytes of"
        f" stack, {kernel.static_smem} bytes of static shared memory,"
        f" {kernel.spill_stores} bytes of spill stores, {kernel.spill_loads} bytes of spill"
        " loads\n"
        for kernel in outcome.ptxas
    )


def write_text(path: str, text: str) -> None:
    """Write a file of a private directory. Raises `OSError`."""
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


class Dump:
    """A dump in progress: a pipeline runs commands and adds files through it.

    Names are relative to the private directory of the compile, which still holds all its files.
    """

    def __init__(self, compiling: Compile, directory: str, disassembler: str | None) -> None:
        self._compiling = compiling
        self.work = compiling.work
        self._directory = directory
        self._disassembler = disassembler

    def run(self, step: Step) -> bool:
        """Run a command. Return whether it made its output."""
        finished = self._execute_step(step)
        return finished is not None and os.path.exists(os.path.join(self.work, step.output))

    def _execute_step(self, step: Step) -> CompletedCommand | None:
        """Run a command. Return its end; None if it failed or cannot be started."""
        try:
            finished = self._compiling.execute_step(step)
        except OSError:
            return None
        return finished if finished.status == 0 else None

    def disassemble(self, path: str) -> None:
        """Write the instructions of every cubin in a file, with source lines if it has them."""
        if self._disassembler is None:
            return
        # A file without cubins and a broken disassembler are passed over. An error of writing is
        # raised: a dump is not made again, so none may be published with a part missing.
        cubins: tuple[Cubin, ...] = ()
        with suppress(OSError, BinaryError):
            cubins = extract_cubins(read_bytes(path))
        for cubin in cubins:
            name = f"{cubin.image.arch}.sass"
            with open(os.path.join(self.work, "one.cubin"), "wb") as file:
                file.write(cubin.data)
            argv = (self._disassembler, "-c", "-g", "one.cubin")
            finished = self._execute_step(Step("disassemble", argv, name))
            if finished is not None:
                self._write_output(name, finished.output)

    def copy(self, output: str, name: str) -> None:
        """Add the output of a command as `name`."""
        self._write_output(name, read_bytes(os.path.join(self.work, output)))

    def _write_output(self, name: str, output: bytes) -> None:
        """Write an output that is not empty, without the paths and times of this run."""
        if text := self._compiling.scrub_log(output):
            write_text(os.path.join(self._directory, name), text)
