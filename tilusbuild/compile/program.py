"""Compile one program: run its steps in a private directory, check their outputs, keep `lib.so`.

The stage's `module` directory holds the files of `collect_module_files` before, and
`nvcc_output.txt` after the compile; `lib.so` too if the program is built. Nothing else is ever in
the stage: the private directory is beside it, so what could not be removed of it is not published.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NoReturn

from msgspec import Struct, field

from tilusbuild.arch import list_embedded_archs
from tilusbuild.compile import checks, declared
from tilusbuild.compile.causes import (
    ProgramInputs,
    StepError,
    find_step_error,
    make_start_error,
    scrub_output,
)
from tilusbuild.compile.kernel_names import SYMBOL_FILE, is_symbol_looked_up
from tilusbuild.compile.launcher import format_launcher
from tilusbuild.compile.model import PRODUCT, Findings, Recipe, Step, Tools
from tilusbuild.compile.reads import CompileReads
from tilusbuild.compile.steps import (
    CC_FLAGS,
    ENVIRONMENT,
    LAUNCHER,
    LAUNCHER_OBJECT,
    LAUNCHER_STEP,
    TOOLS,
    choose_host_march,
    collect_tools,
    format_defines,
    format_object_name,
    list_steps,
)
from tilusbuild.compile.units import Code, UnitOutput, UnitSteps, extract_kernel, find_entries
from tilusbuild.errors import Diagnostic
from tilusbuild.process.base import Command, CompletedCommand, Runner, WorkerRun
from tilusbuild.runtime.regular import read_bytes, try_read_text
from tilusbuild.state.envelope import StepStore
from tilusbuild.status import RECORDED, Cause, Compiled, Status
from tilusbuild.toolchain import Toolchain

_NAME_OFFSET = 64 + 2  # of a name in a line of MANIFEST: behind a sha256 and two blanks
_FIXED_TIMES = (1, 1)  # atime and mtime in seconds: with -lineinfo, ptxas writes mtimes into code


def compile_launcher(
    recipe: Recipe,
    toolchain: Toolchain,
    stage: str,
    runner: Runner,
    launchers: StepStore,
    timeout: float | None = None,
) -> bytes | Compiled:
    """Return the launcher's object from the store, or compile it in a directory beside the stage.
    Return the outcome if the compile fails. Raises `CancelledError` and `OSError`."""
    work = f"{stage}.launcher"
    compiling = Compile(recipe, collect_tools(toolchain), stage, work, runner, launchers, timeout)
    try:
        compiling.make_directory()
        return compiling.load_launcher()
    except StepError as stop:
        return Compiled.stopped(stop.cause, "".join(compiling.logs), stop.reason)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def compile_program(
    recipe: Recipe,
    toolchain: Toolchain,
    stage: str,
    include_dir: str | None,
    runner: Runner,
    launchers: StepStore,
    timeout: float | None = None,
    notes: Sequence[Diagnostic] = (),
    objects: Sequence[str] = (),
    units: UnitSteps | None = None,
) -> Compiled:
    """Compile `module/lib.so` from the files in the stage's `module` directory, in a private
    directory beside the stage. Return the outcome; write `module/nvcc_output.txt`.

    `include_dir` is the directory of the recipe's headers, `timeout` the seconds for each process,
    `notes` the notes of the closure, `objects` the paths of the objects to link; `units` stores the
    outputs that programs share. Raises `CancelledError` and `OSError` (of the stage's file system).
    """
    starts_kernel = recipe.pipeline.launcher.starts_kernel and recipe.recorded is None
    if starts_kernel and (problem := checks.find_launch_problem(recipe)):
        return _finish_compile(stage, Compiled.stopped(Cause.CHECK, "", problem))
    work = f"{stage}.work"
    tools = collect_tools(toolchain)
    compiling = Compile(recipe, tools, stage, work, runner, launchers, timeout, notes=notes)
    if units is not None:
        compiling.units = units
    try:
        compiling.prepare_directory(include_dir)
        for number, path in enumerate(objects):
            try:
                shutil.copyfile(path, compiling.locate_file(format_object_name(number)))
            except FileNotFoundError:
                # A wrong remote's entries are removed, also while others link them.
                reason = f"{path} no longer exists"
                return _finish_compile(stage, Compiled.stopped(Cause.OUTPUT, "", reason))
        return _finish_compile(stage, compiling.run_steps())
    finally:
        # What cannot be removed stays beside the stage, and so is not published.
        shutil.rmtree(work, ignore_errors=True)


def _finish_compile(stage: str, outcome: Compiled) -> Compiled:
    """Write an outcome's log and reason to the stage, and return the outcome."""
    log = outcome.log
    if outcome.reason and outcome.reason not in log:
        log = f"{log}{outcome.reason}\n"
    with open(os.path.join(stage, "module", "nvcc_output.txt"), "w", encoding="utf-8") as file:
        file.write(log)
    return outcome


class Compile(Struct):
    """One compile in progress, with its logs, resource use and findings so far."""

    recipe: Recipe
    tools: Tools
    stage: str
    work: str
    runner: Runner
    launchers: StepStore
    timeout: float | None
    logs: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak_rss: int = 0
    elsewhere: WorkerRun | None = None
    """The worker that ran a step, if any: the peak of memory is unknown then."""
    findings: Findings = field(default_factory=Findings)
    include_dir: str | None = None
    notes: Sequence[Diagnostic] = ()
    units: UnitSteps = field(default_factory=UnitSteps)
    launcher_key: str | None = None
    """The key of the linked launcher in the store."""

    def make_directory(self) -> None:
        """Create the private directory with the links of `TOOLS`, by which tools find each
        other."""
        for name in ("tmp", TOOLS):
            os.makedirs(self.locate_file(name))
        for name, path in self.tools.links.items():
            os.symlink(os.path.abspath(path), self.locate_file(TOOLS, name))

    def prepare_directory(self, include_dir: str | None) -> None:
        """Create the private directory with copies of the inputs, and `include` in it: a link to
        `include_dir`, or a copy of it if the compiler records the headers' times. Keep the absolute
        `include_dir` in the attribute of this name."""
        pipeline = self.recipe.pipeline
        self.include_dir = include_dir and os.path.abspath(include_dir)
        input_directory = os.path.join(self.stage, "module")
        self.make_directory()
        own_files = pipeline.collect_own_files(self.recipe)
        for name in (pipeline.source_name, *pipeline.fixed_files, *own_files):
            source = os.path.join(input_directory, name)
            if os.path.exists(source):
                shutil.copyfile(source, self.locate_file(name))
                os.utime(self.locate_file(name), _FIXED_TIMES)
        headers = self.locate_file("include")
        if include_dir is not None and pipeline.copies_headers(self.recipe):
            shutil.copytree(include_dir, headers)
            for parent, _, names in os.walk(headers):
                for name in names:
                    os.utime(os.path.join(parent, name), _FIXED_TIMES)
        elif include_dir is not None:
            os.symlink(os.path.abspath(include_dir), headers)
        for link, directory in pipeline.list_links(self.recipe, self.tools).items():
            os.symlink(directory, self.locate_file(link))

    def run_steps(self, *, until: str | None = None) -> Compiled:
        """Run all steps, check their outputs, and move the product into the stage. With `until`,
        stop after the step that makes this output. Return the outcome."""
        cause: Cause | None = None
        reason = ""
        if self.recipe.log:
            self.logs.append(self.scrub_log(self.recipe.log.encode()))
        try:
            self._check_source()
            for step in self._run_each_step():
                self._check_output(step)
                if step.output == until:
                    break
            else:  # no step was the last one by `until`
                self._publish_product()
        except StepError as error:
            cause, reason = error.cause, error.reason
            if cause.status not in RECORDED:
                # A damaged output in the store can be the cause, since only the exit status of its
                # compile was checked: the next try makes the output again.
                if self.launcher_key is not None:
                    self.launchers.drop_output(self.launcher_key)
                self.units.forget_used()
        return Compiled(
            Status.BUILT if cause is None else cause.status,
            cause=cause,
            log="".join(self.logs),
            ptxas=self.findings.ptxas,
            images=self.findings.images,
            seconds=self.seconds,
            peak_rss=self.peak_rss,
            reason=reason,
            elsewhere=self.elsewhere,
        )

    def _run_each_step(self) -> Iterator[Step]:
        """Run the steps in turn, and yield each of them; of the code of an architecture, which may
        be in the store, the last one only. Raises `StepError`."""
        for code, group in groupby(list_steps(self.recipe), lambda step: step.code):
            if code:
                yield self._load_code(code, list(group))
                continue
            for step in group:
                self._run_one(step)
                yield step

    def _run_one(self, step: Step) -> None:
        """Run a step, or write its output from the store. Raises `StepError`."""
        path = self.locate_file(step.output)
        if step == LAUNCHER_STEP:
            # The source has compiled before, so only the declaration can be wrong.
            self._check_declaration()
            with open(path, "wb") as file:
                file.write(self.load_launcher())
        elif step.alone:
            self._run_shared_step(step, path)
        else:
            self._run_step(step)

    def _check_output(self, step: Step) -> None:
        """Have the pipeline check the output of a step. Raises `StepError`."""
        if self.recipe.recorded is None:
            path, log = self.locate_file(step.output), "".join(self.logs)
            self.recipe.pipeline.check_output(self.recipe, step, path, log, self.findings)

    def _load_code(self, arch: str, steps: Sequence[Step]) -> Step:
        """Write the code of an architecture from the store, or run the steps that make it and store
        it. Return the last step. Raises `StepError`."""
        *earlier, last = steps
        base_name = last.output.removesuffix(".cubin")
        paths = {".cubin": last.output}
        codes = list_embedded_archs(self.recipe.archs, ptx=self.recipe.ptx)
        if any(with_ptx and code.name == arch for code, with_ptx in codes):
            paths[".ptx"] = f"{base_name}.ptx"
        if is_symbol_looked_up(self.recipe):
            paths[SYMBOL_FILE] = SYMBOL_FILE

        def run_steps() -> Code:
            log_count = len(self.logs)
            for step in earlier:
                self._run_one(step)
                self._check_output(step)
            self._run_one(last)
            for path in paths.values():
                self._require_file(last, path)
            files = {name: read_bytes(self.locate_file(path)) for name, path in paths.items()}
            log = "".join(self.logs[log_count:])
            # It is added below, as for the programs that read it from the store.
            del self.logs[log_count:]
            return Code(files, log)

        code = self.units.load_code(self.recipe, arch, paths.keys(), run_steps)
        for name, path in paths.items():
            with open(self.locate_file(path), "wb") as file:
                file.write(code.files[name])
        self.logs.append(code.log)
        return last

    def locate_file(self, *names: str) -> str:
        """Return the path of a file in the private directory."""
        return os.path.join(self.work, *names)

    def _fail(self, cause: Cause, error: str) -> NoReturn:
        """Add a compiler's error line to the log, and raise `StepError`."""
        self.logs.append(f"{error}\n")
        raise StepError(cause, error)

    def _check_source(self) -> None:
        """Raise `StepError` for a source that the compiler would accept by mistake, and for one of
        NVRTC whose reads nothing confines."""
        headers = self.locate_file("include")
        headers_directory = os.path.realpath(headers) if os.path.exists(headers) else None
        if error := self.recipe.pipeline.find_source_problem(self.recipe, headers_directory):
            self._fail(Cause.CHECK, error)
        # Other compilers list their reads, which are checked after the step.
        if self.recipe.pipeline.compiler == "NVRTC":
            reason = self._make_reads().explain_unconfined(self.notes)
            if reason is not None:
                self._fail(Cause.OUTSIDE, reason)

    def _check_declaration(self) -> None:
        """Compile a unit that compares the template's function with the declared arguments, or take
        the answer for an equal unit from the store. Raises `StepError` if they differ."""
        if self.recipe.pipeline.launcher.starts_kernel or self.recipe.recorded is not None:
            return
        check = declared.write_declaration_check(self.recipe)
        if check is None:
            return

        def ask_compiler() -> bytes:
            with open(self.locate_file(declared.CHECK), "w", encoding="utf-8") as file:
                file.write(check.unit)
            command = self.recipe.pipeline.find_source_command(self.recipe)
            argv = declared.derive_check_command(command, shared=check.shared)
            try:
                finished = self.execute_step(Step("declaration", argv, declared.CHECK))
            except OSError as error:
                raise make_start_error("g++", error) from None
            log = finished.output.decode("utf-8", "replace")
            # Schedules share the entry, so it holds only the lines that are equal for all of them:
            # paths and line numbers are not.
            return "\n".join(declared.extract_findings(log)).encode()

        key = StepStore.make_key(check.unit, (declared.CHECK,), self.tools.cc_fingerprint)
        findings = self.launchers.get_or_make(key, ask_compiler) if check.shared else ask_compiler()
        if error := declared.find_declaration_problem(self.recipe, findings.decode()):
            self._fail(Cause.SOURCE, error)

    def _run_shared_step(self, step: Step, path: str) -> None:
        """Read the output of a unit's step from the store, or run the step and store its output. If
        the step fails for the unit, run it for this program alone. Raises `StepError`."""

        def run_for_unit() -> UnitOutput:
            log_count = len(self.logs)
            try:
                self._run_step(step)
                ptx = read_bytes(path)
                return UnitOutput(ptx, "".join(self.logs[log_count:]), find_entries(ptx))
            except StepError as error:
                if error.cause.status not in RECORDED:
                    raise
                return UnitOutput(output=None, log="")  # the kernels do not compile together
            finally:
                # The log of the unit's output is added below, for the program that ran the step as
                # for those that read its output from the store.
                del self.logs[log_count:]

        unit_output = self.units.load_or_run(self.recipe, step, run_for_unit)
        if unit_output.output is None:
            count = len(self.recipe.unit)
            self.logs.append(f"{count} kernels do not compile together: this one compiles alone\n")
            self._run_step(step.by_itself)
            return
        with open(path, "wb") as file:
            file.write(extract_kernel(self.recipe, unit_output.output, unit_output.kernels))
        self.logs.append(unit_output.log)

    def _run_step(self, step: Step) -> None:
        """Run a step, add its output to the log, and check its reads and its end. Raises
        `StepError`."""
        try:
            finished = self.execute_step(step)
        except OSError as error:
            raise make_start_error(step.tool, error) from None
        log = self.scrub_log(finished.output)
        if log:
            self.logs.append(log if log.endswith("\n") else log + "\n")
        # The reads are checked before the compiler's own error, which says "not found" of a file
        # that the sandbox hides.
        if not finished.timed_out:
            problem = self._make_reads().find_problem(step, finished, self.recipe.source)
            if problem is not None:
                error_line = self.scrub_log(problem.encode("utf-8", "surrogateescape"))
                self._fail(Cause.OUTSIDE, error_line)
        if finished.status or finished.timed_out:
            program = self._collect_program_inputs() if step.of_program else None
            explanation = checks.explain_link_error(self.recipe, log)
            if step_error := find_step_error(step.tool, finished, log, program, explanation):
                raise step_error
        self._require_file(step, step.output)

    def _require_file(self, step: Step, name: str) -> None:
        """Raise `StepError` if a step that has ended well did not write a file."""
        if not os.path.isfile(self.locate_file(name)):
            raise StepError(Cause.OUTPUT, f"{step.tool} ended well but made no {name}")

    def _collect_program_inputs(self) -> ProgramInputs:
        """Return the inputs by which a tool's errors are attributed to the program."""
        recipe = self.recipe
        flags = [*recipe.options.flags, *format_defines(recipe), f"-std={recipe.options.std}"]
        if recipe.pipeline.host_code:
            flags.append(f"-march={choose_host_march(recipe)}")
        # Headers that were rendered for the program are the author's text.
        generated = recipe.pipeline.collect_own_files(recipe).keys() - recipe.headers.keys()
        return ProgramInputs(
            flags=tuple(flags),
            generated_files=frozenset({LAUNCHER, *recipe.pipeline.fixed_files, *generated}),
            # The method itself: few errors need the list, for which a file is read.
            list_headers=self._list_promised_headers,
            roots=tuple(name for name, _ in recipe.includes.roots),
        )

    def _list_promised_headers(self) -> frozenset[str] | None:
        """Return the names of the program's headers; None if a computed include leaves the names
        open, or the list is missing."""
        if any(note.undetermined for note in self.notes):
            return None
        if self.recipe.includes.digest is None:
            return frozenset()
        manifest = try_read_text(self.locate_file("include", "MANIFEST"), "replace")
        if not manifest:
            return None
        return frozenset(line[_NAME_OFFSET:] for line in manifest.splitlines())

    def execute_step(self, step: Step) -> CompletedCommand:
        """Run one step's command in the private directory, here or on a worker, and add to the time
        and the peak of memory. Raises `OSError` if the command cannot start."""
        pipeline, reads = self.recipe.pipeline, self._make_reads()
        reads.remove_lists()
        command = Command(
            reads.build_argv(step),
            self.work,
            {**self.tools.environment, **ENVIRONMENT, **reads.environment},
            self.timeout,
            sandbox=reads.select_sandbox(step),
        )
        if remote_outputs := pipeline.list_remote_outputs(step):
            if pipeline.explain_local_only(self.recipe, self.notes) is not None:
                command = replace(command, stays=True)
            else:
                command = replace(
                    command,
                    outputs=(*remote_outputs, *reads.list_dependency_files(step)),
                    on_worker=pipeline.find_worker_command(step, self.tools),
                )
        finished = self.runner.run(command)
        self.seconds += finished.seconds
        self.elsewhere = finished.elsewhere or self.elsewhere
        # A worker does not report its peak of memory, and the peak of the steps that ran here would
        # be taken for the program's.
        self.peak_rss = 0 if self.elsewhere else max(self.peak_rss, finished.peak_rss)
        return finished

    def _make_reads(self) -> CompileReads:
        return CompileReads(self.tools, self.work, self.include_dir)

    def scrub_log(self, output: bytes) -> str:
        """Return a tool's output with the names of directories that every machine has."""
        links = self.recipe.pipeline.list_include_links(self.recipe)
        names = {**links, self.work: "", "/proc/self/cwd": "", **self.tools.directories}
        return scrub_output(output, names)

    def load_launcher(self) -> bytes:
        """Return the launcher's object from the store, or compile and store it; set `launcher_key`.
        Raises `StepError`."""
        source = format_launcher(self.recipe)

        def compile_source() -> bytes:
            with open(self.locate_file(LAUNCHER), "w", encoding="utf-8") as file:
                file.write(source)
            self._run_step(LAUNCHER_STEP)
            return read_bytes(self.locate_file(LAUNCHER_OBJECT))

        self.launcher_key = StepStore.make_key(source, CC_FLAGS, self.tools.cc_fingerprint)
        return self.launchers.get_or_make(self.launcher_key, compile_source)

    def _publish_product(self) -> None:
        """Check the product, move it into the stage, and set the images of the findings. Raises
        `StepError`."""
        pipeline = self.recipe.pipeline
        path = self.locate_file(pipeline.product)
        data = read_bytes(path)
        images = checks.read_images(data)
        if pipeline.launcher.is_there and (
            problem := checks.find_library_problem(self.recipe, data, images)
        ):
            raise StepError(Cause.OUTPUT, problem)
        if pipeline.product == PRODUCT:
            os.chmod(path, 0o755)  # noqa: S103 - a library, as linkers leave it
        os.replace(path, os.path.join(self.stage, "module", pipeline.product))
        self.findings.images = images
