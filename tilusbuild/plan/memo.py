"""The hashes of programs in earlier plans, so that a plan renders only what may have changed.

The hash of a program is a function of its instance's fixed facts, of the schedule's values, of the
templates that its rendering asked for, and of the headers that its source can reach. A memo keeps
the hashes together with digests of all four, and gives one only when each is what it was:

- fixed facts (`format_fixed_facts`) and the code that makes programs: by digest;
- templates: by the digest of what the renderer reads now;
- headers: of the sources with the same includes one is kept, and its closure is computed again.

So a plan by memo is the plan without it, and time stamps play no part. A memo is a file that only
saves work (`tilusbuild.state.envelope`), and is written only when something was added.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache

from msgspec import Struct, field

from tilusbuild.plan.instance import InstanceSpec, PlanInputs, ScriptReader, read_style
from tilusbuild.plan.rendering import ReadsCollector, RenderedProgram, find_closure, render_programs
from tilusbuild.plan.spaces import SpaceCache
from tilusbuild.render.closure import Closure
from tilusbuild.render.scans import ScanMemory
from tilusbuild.space.model import Schedule
from tilusbuild.state.digests import DigestMemory
from tilusbuild.state.envelope import Envelope
from tilusbuild.state.files import sha256_text

_ENVELOPE = Envelope("plan")
_MAX_INPUTS = 1000
_SPARE_ROWS = 1000
"""So many rows, or as many as four times those in use, are kept though no schedule asks for them:
those of another level, or of values that were taken out and may come back."""


class InputsKey(Struct, frozen=True, array_like=True):
    """The inputs of programs that read the same templates and have the same includes."""

    templates: tuple[tuple[str, str], ...]
    """Name and digest of each template asked for, the script's first; "" for a missing one."""
    sample: bytes
    """The source of one of the programs, which need not be UTF-8."""
    closure: str
    """The digest of the closure of `sample`, and of the toolchain's headers beyond it."""


class KnownPrograms(Struct, array_like=True):
    """The remembered programs of one instance."""

    facts_digest: str
    """The digest of the instance's fixed facts and of our own code."""
    inputs: list[InputsKey] = field(default_factory=list)
    rows: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """The program's hash and the index of its inputs, by the digest of a schedule's values."""


_InstancesByLabel = dict[str, KnownPrograms]


class PlanMemo:
    """The known programs of one project's scripts: a file for each script in `directory`, read when
    it is needed and written by `save_changes` only. `owner` distinguishes projects that share it.
    """

    def __init__(self, directory: str, owner: str, memory: DigestMemory) -> None:
        self._directory = directory
        self._owner = owner
        self.code = digest_own_code(memory)
        """The digest of the code that makes programs of inputs."""
        self.renders = 0
        """How many programs were rendered because they were not known."""
        self._instances_by_script: dict[str, dict[str, KnownPrograms]] = {}
        self._changed: set[str] = set()
        self.spaces = SpaceCache(directory, owner, self.code)
        """The schedules that were chosen of the scripts' spaces."""
        self.scans = ScanMemory(os.path.join(directory, sha256_text(f"{self.code}\0scans")))
        """The scans of headers, of any project with this cache."""

    def find_program_hashes(
        self,
        spec: InstanceSpec,
        sources: ScriptReader,
        schedules: Sequence[Schedule],
        on_render: Callable[[int, str], None] | None = None,
    ) -> tuple[tuple[str, ...], PlanInputs]:
        """Return the hashes of an instance's programs, and their inputs. Programs that are not
        remembered are rendered, counted in `renders`, and remembered; `on_render` is called with
        the position and the hash of each. Raises `InputError`."""
        script, label = spec.script, spec.label
        if script not in self._instances_by_script:
            self._instances_by_script[script] = (
                _ENVELOPE.load_value(self._name_file(script), _InstancesByLabel) or {}
            )
        facts_digest = sha256_text(f"{self.code}\n{format_fixed_facts(spec, sources)}")
        # Other facts change every hash, so none of the old rows can be used again.
        remembered = self._instances_by_script[script].get(label)
        if remembered is None or remembered.facts_digest != facts_digest:
            remembered = KnownPrograms(facts_digest)
        lookup = _ProgramLookup(spec, sources, remembered)
        hashes = lookup.find_program_hashes(schedules, on_render)
        self.renders += lookup.rendered
        # A plan that rendered nothing has no news: its file is not written again.
        if lookup.rendered:
            self._changed.add(script)
            self._instances_by_script[script][label] = lookup.select_current()
        return hashes, lookup.reads.collect_inputs(spec, sources)

    def save_changes(self) -> None:
        """Write what changed; do nothing where the directory cannot be written."""
        self.spaces.save_changes()
        self.scans.save_scans()
        for script in self._changed:
            _ENVELOPE.save_value(self._name_file(script), self._instances_by_script[script])
        self._changed.clear()

    def forget_scripts(self) -> None:
        """Forget the programs of all scripts that were asked for, in their files too at the next
        `save_changes`."""
        self._instances_by_script = {script: {} for script in self._instances_by_script}
        self._changed.update(self._instances_by_script)

    def _name_file(self, script: str) -> str:
        return os.path.join(self._directory, sha256_text(f"{self._owner}\0{script}"))


class _ProgramLookup:
    """The look-up of one instance's programs. Each `InputsKey` is validated once."""

    def __init__(
        self, spec: InstanceSpec, sources: ScriptReader, remembered: KnownPrograms
    ) -> None:
        self._spec = spec
        self._sources = sources
        self._digest_template = sources.renderer.digest_template
        self._remembered = remembered
        self.reads = ReadsCollector()
        self._has_current_inputs = cache(self._are_inputs_current)
        self._number_by_inputs: dict[tuple[tuple[str, ...], int], int] = {}
        self._used_keys: set[bytes] = set()
        self.rendered = 0

    def find_program_hashes(
        self, schedules: Sequence[Schedule], on_render: Callable[[int, str], None] | None
    ) -> tuple[str, ...]:
        """Return the hashes of the schedules' programs. Render the programs that are not
        remembered, and add them to the remembered ones. Raises `InputError`."""
        keys = [self._digest_schedule(schedule) for schedule in schedules]
        hashes = [self._recall_hash(key) for key in keys]
        unknown_positions = [position for position, digest in enumerate(hashes) if digest is None]
        # Iterating over `schedules` makes many at a time, and indexing it makes one, which is slow.
        # So it is indexed only if some of the hashes are known.
        unknown_schedules = schedules
        if len(unknown_positions) < len(hashes):
            unknown_schedules = [schedules[position] for position in unknown_positions]
        programs = render_programs(self._spec, self._sources, unknown_schedules)
        for position, program in zip(unknown_positions, programs, strict=True):
            self.reads.add_program(program)
            program_hash = hashes[position] = program.hash
            if on_render is not None:
                on_render(position, program_hash)
            inputs_number = self._remember_inputs(program)
            if inputs_number is not None:
                row = bytes.fromhex(program_hash), inputs_number
                self._remembered.rows[keys[position]] = row
            self.rendered += 1
        # The loop has replaced each None: the condition is for the type only.
        return tuple(digest for digest in hashes if digest is not None)

    def _digest_schedule(self, schedule: Schedule) -> bytes:
        """Return the digest of a schedule's values, and of the kernels of its unit."""
        unit = self._spec.list_unit_kernels(self._spec.merge_values(schedule))
        # `repr` distinguishes 1, 1.0 and True.
        text = repr(dict(schedule.values))
        return bytes.fromhex(sha256_text(f"{text}{unit}" if unit else text))

    def _recall_hash(self, key: bytes) -> str | None:
        """Return the remembered hash of a program; None if there is none, or if its inputs have
        changed. Marks `key` as used."""
        # The key of a missing row is used, too: `find_program_hashes` adds the row under this key.
        self._used_keys.add(key)
        row = self._remembered.rows.get(key)
        if row is None:
            return None
        program, inputs_number = row
        return program.hex() if self._has_current_inputs(inputs_number) else None

    def _are_inputs_current(self, number: int) -> bool:
        """Return whether the inputs with this number are unchanged: their templates and the
        headers that these reach. Unchanged inputs are added to `reads`."""
        inputs = self._remembered.inputs[number]
        if any(self._digest_template(name) != digest for name, digest in inputs.templates):
            return False
        template = inputs.templates[0][0]
        # All sources with these inputs reach the same headers, so one of them stands for all.
        sample = inputs.sample.decode("utf-8", "surrogateescape")
        closure = find_closure(self._spec, self._sources, sample, template)
        if self._digest_closure(closure) != inputs.closure:
            return False
        self.reads.add_reads(tuple(name for name, _ in inputs.templates), closure)
        return True

    def _remember_inputs(self, rendered: RenderedProgram) -> int | None:
        """Append a program's inputs to the remembered ones if they are new. Return their number;
        None for new ones beyond `_MAX_INPUTS`."""
        inputs = self._remembered.inputs
        # Sources with the same includes have one closure object, which `Headers` keeps alive. The
        # same headers are not enough: a new file may come before that of "a.h", and not of <a.h>.
        key = rendered.templates, id(rendered.closure)
        if key not in self._number_by_inputs:
            # With so many, each program seems to have inputs of its own: remembering more would
            # save no rendering.
            if len(inputs) >= _MAX_INPUTS:
                return None
            self._number_by_inputs[key] = len(inputs)
            source = rendered.scanned or rendered.recipe.source
            inputs.append(
                InputsKey(
                    tuple((name, self._digest_template(name)) for name in rendered.templates),
                    source.encode("utf-8", "surrogateescape"),
                    self._digest_closure(rendered.closure),
                )
            )
        return self._number_by_inputs[key]

    def _digest_closure(self, closure: Closure) -> str:
        """Return the digest of a closure and of the toolchain's headers beyond it."""
        others = self._sources.digest_other_headers(self._spec, closure)
        return sha256_text("\n".join((closure.digest, *others)))

    def select_current(self) -> KnownPrograms:
        """Return the rows worth keeping, with the inputs that they use."""
        rows = self._remembered.rows
        if len(rows) > _SPARE_ROWS + 4 * len(self._used_keys):
            rows = {key: rows[key] for key in self._used_keys if key in rows}
        # A row that was not asked for (of another level) stays only if its inputs are current, as
        # those that were added now are: to look again would scan the sample of each.
        added_numbers = {*self._number_by_inputs.values()}
        rows = {
            key: (program, number)
            for key, (program, number) in rows.items()
            if number in added_numbers or self._has_current_inputs(number)
        }
        # Inputs that no row uses are dropped, so that the others get other numbers.
        used_numbers = dict.fromkeys(inputs_number for _, inputs_number in rows.values())
        new_numbers = {old_number: new for new, old_number in enumerate(used_numbers)}
        return KnownPrograms(
            self._remembered.facts_digest,
            [self._remembered.inputs[number] for number in new_numbers],
            {key: (program, new_numbers[number]) for key, (program, number) in rows.items()},
        )


def format_fixed_facts(spec: InstanceSpec, sources: ScriptReader) -> str:
    """Return, as a text, all that decides a program besides the schedule's values, the
    templates, the headers, and tilusbuild's code."""
    # If `render_program` reads a value that is not here, the memo returns a hash that is out of
    # date.
    owner, tools, recipe = spec.owner, spec.toolchain, spec.recipe
    launch = recipe.launch
    expressions = [] if launch is None else [expr for _, group in launch.lines for expr in group]
    roots = tuple((root.name, root.quoted_only) for root in sources.headers(owner.template).roots)
    parts = (
        (spec.script, owner.template, read_style(owner), owner.kernel, owner.entry, owner.form),
        (spec.target, spec.valued.target_names, spec.params, spec.parameters, spec.derived),
        (spec.signature, spec.signature.format_text()),
        (launch, [expression.canonical for expression in expressions]),
        [(name, limit.source, limit.canonical) for name, limit in spec.valued.prune.items()],
        (spec.valued.flag_sources, recipe.options.defines, roots, tuple(owner.generate.items())),
        (recipe.options.std, recipe.options.host_march, recipe.options.cudart, recipe.part.rdc),
        (spec.manifest.build.line_directives, spec.manifest.list_header_patterns(spec.script)),
        (tools.fingerprint_cuda, tools.fingerprint_host, tools.fingerprint_nvrtc),
        (repr(type(spec.pipeline)), tools.fingerprint_joiner),
        tools.fingerprint_cudart if recipe.options.cudart == "shared" else "",
        None if spec.grouping is None else spec.grouping.group,
    )
    return "\n".join(repr(part) for part in parts)


def digest_own_code(memory: DigestMemory) -> str:
    """Return, as a text, the digest of this package and the versions of Python and of the libraries
    that make programs."""
    # An edit of any file may change a program, also of the launcher's C. Two checkouts may have one
    # version.
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    digest = memory.digest_tree(
        package, "tilusbuild's files", lambda name: not name.endswith("__pycache__/")
    )
    libraries = (f"{name} {find_version(name)}" for name in ("jinja2", "markupsafe", "numpy"))
    return "\n".join([digest, sys.version, *libraries])


def find_version(name: str) -> str:
    """Return the version of an installed library. Raises `PackageNotFoundError`."""
    # The directory's name (`numpy-2.1.0.dist-info`) has the version, and listing takes a hundredth
    # of the import below.
    for directory in filter(os.path.isdir, sys.path):
        for entry in os.listdir(directory):
            project, _, suffix = entry.partition("-")
            if project.lower() == name and suffix.endswith(".dist-info"):
                return suffix.removesuffix(".dist-info")
    # A library of a Linux distribution may have a directory with another name.
    from importlib import metadata

    return metadata.version(name)
