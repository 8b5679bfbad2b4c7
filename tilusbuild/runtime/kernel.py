"""`Kernel`: a script as a callable that chooses a program by device and sizes, and launches it.

A call with all arguments in order costs, over the library's own call, reading the dispatch keys
from the arguments and one look-up in a dictionary. All else happens once for each combination of
sizes, and the caches are bounded. Kernels may be called from any number of threads, and after a
fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

from tilusbuild.runtime import arrays, choose, device, library, tables
from tilusbuild.runtime.arrays import CallForm
from tilusbuild.runtime.choose import Choice, Chooser, Evaluation
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.errors import DriverError, LoadError, did_you_mean, make_read_error
from tilusbuild.runtime.process import process
from tilusbuild.runtime.script import Script
from tilusbuild.runtime.semantics import (
    MAX_ALIGNMENT,
    Value,
    is_alignment,
    name_alignment,
    to_python_number,
)
from tilusbuild.runtime.states import check_states
from tilusbuild.runtime.structs import is_struct
from tilusbuild.runtime.table_file import explain_refusals
from tilusbuild.runtime.tables import DeviceTable, TableFile

# Combinations of sizes. A server may be called with any: its memory must not grow with them.
_MAX_LAUNCHERS = 4096

_KeyReader = Callable[[Sequence[Any]], Any]


class Program(NamedTuple):
    """One program of a kernel."""

    number: int
    hash: str
    status: str
    """ "built", or why there is none: "failed", "pruned", "missing"."""
    schedule: Mapping[str, Value]


class _ActiveDevice(NamedTuple):
    """The state for one device: the instance that serves it, its chooser, the verdicts on all
    instances and notes for `explain`."""

    device: Device
    script: Script
    chooser: Chooser
    evaluations: tuple[Evaluation, ...]
    notes: tuple[str, ...]


class Kernel:
    """A script as a callable; `load` makes it. A call takes the arguments that are not dimensions,
    in order or by name. Outputs that are left out are allocated like the first tensor, and
    returned."""

    load_again: Callable[[], Kernel] | None = None
    """Loads the kernel in another process; None for one that cannot be pickled."""

    def __init__(
        self,
        scripts: Sequence[Script],
        *,
        strict: bool = False,
        hold: object = None,
        launch: Callable[..., Any] | None = None,
    ) -> None:
        """`launch`, the launcher of a script with one program, serves every call. `hold` keeps the
        scripts' files from garbage collection. The kernel is added to `process.kernels`."""
        self._scripts = tuple(scripts)
        self._hold = hold
        self._strict = strict
        self._active: dict[tuple[str, int], _ActiveDevice] = {}
        self._warnings: set[str] = set()
        self._lock = threading.RLock()
        self._only_launcher = launch
        self.forget_launchers()
        process.kernels.add(self)  # for the reset after a fork, and when calls are to be counted
        arguments = arrays.list_call_arguments(scripts[0])
        # -1 for scripts with structs: `CallForm` packs them into bytes in every call.
        self._argument_count = -1 if any(is_struct(a.dtype) for a in arguments) else len(arguments)
        self._forms: dict[object, CallForm] = {}

    def reset_after_fork(self) -> None:
        """Make a new lock in a forked child: the thread that held the old one does not exist
        there. Forget the launchers if calls are recorded."""
        self._lock = threading.RLock()
        if process.recorder is not None:
            self.forget_launchers()

    def forget_launchers(self) -> None:
        """Forget the launchers of earlier calls. The next ones count their calls if the process
        records them, and only then."""
        script = self._scripts[0]
        recorded = [] if process.recorder is None else _list_recorded_sizes(script)
        names = list(dict.fromkeys([*recorded, *script.chosen_by]))
        runs_on_cpu_only = all(script.kind == "cpu" for script in self._scripts)
        self._shared_launcher = self._only_launcher
        self._launchers: dict[Any, Callable[..., Any]] = {}
        self._counters: dict[Any, Callable[[], int]] = {}
        self._make_key = _make_key_reader(script, names, one_device=runs_on_cpu_only)
        self._read_key = self._make_key
        if process.recorder is not None:
            self._read_key = _count_keys(self._make_key, self._counters)

    def __repr__(self) -> str:
        return f"<Kernel {', '.join(script.label for script in self._scripts)}>"

    def __deepcopy__(self, memo: object = None) -> Kernel:
        """Return the kernel itself: a call changes nothing in it that a caller sees."""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> tuple[Callable[[], Kernel], tuple[()]]:
        """Pickle the request that loaded the kernel. Raises `TypeError` for a kernel without."""
        if self.load_again is None:
            raise TypeError(f"{self!r} cannot be pickled: only a kernel that was loaded can")
        return self.load_again, ()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Launch the program that suits the arguments; return the outputs that were allocated, or
        None. NumPy scalars and read-only inputs, which the launcher refuses, are converted, and
        the call is repeated. Raises `LoadError`s, and the launcher's errors about the arguments."""
        outputs = None
        if named or len(args) != self._argument_count:
            args, outputs = arrays.complete_arguments(self._scripts[0], self._forms, args, named)
        shared_launcher = self._shared_launcher
        try:
            if shared_launcher is not None:
                shared_launcher(*args)
                return outputs
            try:
                launch = self._launchers[self._read_key(args)]
            except (KeyError, AttributeError, IndexError, TypeError):
                # New sizes, or arguments without sizes, which the slow way explains.
                if outputs is None:
                    check_states(self._scripts[0], args)
                launch = self._remember_launcher(args)
            launch(*args)
            return outputs
        except OverflowError as error:
            raise arrays.explain_overflow(self._scripts[0], args, error) from None
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            error.__suppress_context__ = True  # that the sizes were new explains nothing
            if isinstance(error, RuntimeError) and not arrays.is_conversion_error(error):
                raise
            # Only after an error, so that a right call does not pay for looking at each argument.
            converted = arrays.convert_arguments(self._scripts[0], args)
            if converted is None:
                raise
        self._remember_launcher(converted, is_counted=True)(*converted)
        return outputs

    def select(self, **sizes: Value) -> Choice:
        """Return the choice for these sizes on the default device; each tensor is taken to have
        the largest alignment that a rule asks for. Raises `TypeError` for an unknown size, one that
        is not a whole number and a missing dispatch key, and `LoadError`s."""
        active = self._activate_default()
        script = active.script
        integers = [argument.name for argument in script.arguments if argument.dims is None]
        for name, size in sizes.items():
            if name not in integers:
                hint = did_you_mean(name, integers) or "none is like it"
                raise TypeError(f"{script.name} has no size {name!r}: {hint}")
            sizes[name] = to_python_number(size)
            if not isinstance(sizes[name], int):
                raise TypeError(f"{script.name}: size {name!r} is a whole number, not {size!r:.60}")
        alignments = script.serves.alignments if script.serves else {}
        missing = [
            name for name in script.chosen_by if name not in sizes and name not in alignments
        ]
        if missing:
            raise TypeError(f"{script.name} is chosen by {', '.join(missing)} too: give all keys")
        choice = self._choose_program(active, sizes)
        if not alignments:
            return choice
        # A call with other addresses may get another program.
        assumed = "".join(f"; {name} is taken as {size}" for name, size in alignments.items())
        return choice._replace(why=choice.why + assumed)

    @property
    def programs(self) -> tuple[Program, ...]:
        """Return the programs for the default device, by their numbers."""
        script = self._activate_default().script
        return tuple(
            Program(i, digest, script.not_built.get(i, "built"), script.get_schedule(i))
            for i, digest in script.programs.items()
        )

    def schedule(self, program: int) -> dict[str, Value]:
        """Return the parameters of a program, by its number. Raises `IndexError`."""
        return self._activate_default().script.get_schedule(program)

    def explain(self, **sizes: Value) -> str:
        """Return text for people: each candidate with its verdict, the table, the choice."""
        active = self._activate_default()
        lines = [f"device: {active.device}", "candidates:"]
        lines += [f"  {evaluation}" for evaluation in active.evaluations]
        lines += [f"chosen: {active.script.label} in {active.script.path}", *active.notes]
        if sizes or not active.script.keys:
            choice = self.select(**sizes)
            text = ", ".join(f"{name}={value}" for name, value in choice.schedule.items())
            lines.append(f"program {choice.program} ({text or 'no parameters'})")
            lines.append(f"source: {choice.source}: {choice.why}")
        return "\n".join(lines)

    def _choose_program(self, active: _ActiveDevice, sizes: Mapping[str, Value]) -> Choice:
        """Return the choice for these sizes. Log a warning, once for the kernel, if their bucket
        was not measured. Raises `LoadError` and `ValueError`."""
        choice = active.chooser.choose_program(sizes)
        if choice.source == "nearest":
            text = f"{active.script.label}: {choice.why}; tune to have it measured"
            self._warn_once("nearest", text)
        return choice

    def _warn_once(self, topic: str, text: str) -> None:
        """Log a warning, once for each topic."""
        with self._lock:
            if topic in self._warnings:
                return
            self._warnings.add(topic)
        # Imported only for a message: it takes milliseconds.
        import logging

        logging.getLogger("tilusbuild").warning("%s", text)

    def _activate_default(self) -> _ActiveDevice:
        """Return the state for the default device: the first one in use, else cuda:0, else the cpu.
        Raises `LoadError`."""
        if self._active:
            return next(iter(self._active.values()))
        kinds = {script.kind for script in self._scripts}
        if kinds == {"cpu"} or not device.may_have_cuda():
            return self._activate("cpu", 0)
        try:
            return self._activate("cuda", 0)
        except DriverError as error:
            if "cpu" in kinds:
                return self._activate("cpu", 0)
            raise LoadError(f"{self._scripts[0].name} needs a GPU: {error}") from None

    def _activate(self, kind: str, index: int) -> _ActiveDevice:
        """Return the state for a device, made at the first call for it. Raises `LoadError` and
        `DriverError`."""
        key = (kind, index)
        with self._lock:
            if key not in self._active:
                device_in_use = device.get_cpu() if kind == "cpu" else device.get_gpu(index)
                self._active[key] = self._make_active(device_in_use)
            return self._active[key]

    def _make_active(self, device_in_use: Device) -> _ActiveDevice:
        """Return the state for a device: choose the instance, read its dispatch tables. When no
        table holds, log a warning once; raise its `LoadError` if the kernel is strict."""
        script, evaluations = choose.choose_instance(self._scripts, device_in_use)
        chooser, table = make_chooser(script, tables.read_dispatch_table(script), device_in_use)
        if isinstance(table, LoadError):
            if self._strict:
                raise table
            # No rows are used then: those of another device say nothing about this one.
            self._warn_once(f"table {script.path}", str(table))
            note = f"table refused: {table}"
        else:
            note = f"table: {len(table.entries)} entries" if table else "table: none"
        refused = (f"program {i} is not chosen: {why}" for i, why in chooser.refused.items())
        return _ActiveDevice(device_in_use, script, chooser, evaluations, (note, *refused))

    def _remember_launcher(
        self, args: Sequence[Any], *, is_counted: bool = False
    ) -> Callable[..., Any]:
        """Return the launcher for a call whose sizes are new, and count the call unless it
        `is_counted`. Cache the launcher by the call's key, if the call has one. Raises as
        `_find_launcher`."""
        names = (argument.name for argument in arrays.list_call_arguments(self._scripts[0]))
        launch, count = self._find_launcher(dict(zip(names, args, strict=True)))
        # A key may be missing or unhashable: an array library need not have `device`.
        with suppress(AttributeError, IndexError, TypeError):
            key = self._make_key(args)
            with self._lock:
                # All are dropped, not the oldest: an order of use would cost every call.
                if len(self._launchers) >= _MAX_LAUNCHERS:
                    self._counters.clear()
                    self._launchers.clear()
                self._launchers[key] = launch
                # Last: a call that `_read_key` counts has its launcher.
                self._counters[key] = count
        if not is_counted:
            count()
        return launch

    def _find_launcher(
        self, named: Mapping[str, Any]
    ) -> tuple[Callable[..., Any], Callable[[], int]]:
        """Choose a program for the arguments, open its library and return the launcher, and the
        function that counts a call with these sizes. A launcher that serves every call becomes
        `_shared_launcher`, unless calls are counted. Raises `TypeError` and `LoadError`."""
        active = self._activate_for(arrays.find_first_tensor(self._scripts[0], named), named)
        sizes = arrays.read_sizes(active.script, named)
        for argument in active.script.arguments:
            if (name := name_alignment(argument.name)) in active.script.chosen_by:
                sizes[name] = arrays.read_alignment(named[argument.name])
        missing = [name for name in active.script.chosen_by if name not in sizes]
        if missing:
            label = f'{active.script.name}: argument "{missing[0]}"'
            raise TypeError(f"{label}: it must be a whole number, since it chooses the program")
        choice = self._choose_program(active, sizes)
        launch = library.load_launcher(active.script, choice.program, active.device)
        if process.recorder is not None:
            names = _list_recorded_sizes(active.script)
            recorded_sizes = {name: int(sizes[name]) for name in names}
            return launch, process.recorder.find_counter(active.script, recorded_sizes)
        kinds = {script.kind for script in self._scripts}
        # If one program serves every call, calls need not even read a key.
        if active.chooser.is_constant and (
            kinds == {"cpu"} or (kinds == {"cuda"} and device.has_one_gpu())
        ):
            self._shared_launcher = launch
        return launch, _count_nothing

    def _activate_for(self, tensor: Any, named: Mapping[str, Any]) -> _ActiveDevice:
        """Return the state for the device of a tensor among the arguments `named`, for the default
        device without one. Raises `TypeError` for an object without DLPack, `LoadError` for a
        device that no instance is built for."""
        if tensor is None:
            return self._activate_default()
        name = self._scripts[0].name
        try:
            dlpack_device = tensor.__dlpack_device__()
        except AttributeError:
            argument = next(name for name, value in named.items() if value is tensor)
            problem = f"{type(tensor).__name__} is not an array that supports DLPack"
            raise TypeError(f'{name}: argument "{argument}": {problem}') from None
        kind, index = device.parse_dlpack_kind(dlpack_device), int(dlpack_device[1])
        if kind is None:
            raise LoadError(f"{name} runs on no device of DLPack type {dlpack_device[0]}")
        # Checked before the driver, which may be missing, is asked: the call is wrong in any case.
        if all(script.kind != kind for script in self._scripts):
            built = ", ".join(f"{script.target} ({script.arch})" for script in self._scripts)
            label = "the cpu" if kind == "cpu" else f"cuda:{index}"
            raise LoadError(f"{name} is built for {built}, and the call's tensors are on {label}")
        try:
            return self._activate(kind, index if kind == "cuda" else 0)
        except DriverError as error:
            raise LoadError(f"{name}: {error}") from None


def make_chooser(
    script: Script, table_file: TableFile, device_in_use: Device
) -> tuple[Chooser, DeviceTable | LoadError | None]:
    """Return the chooser of a script on a device, and the dispatch table whose fingerprint fits the
    device: None without tables, the `LoadError` when none of the tables fits."""
    table: DeviceTable | LoadError | None
    try:
        table = tables.select_table(script, table_file.tables, device_in_use)
    except LoadError as error:
        table = error
    held = table if isinstance(table, DeviceTable) else None
    refused = explain_refusals(script.programs, table_file.refused)
    return Chooser(script, held, list_available_programs(script), refused), table


def list_available_programs(script: Script) -> frozenset[int]:
    """Return the numbers of the programs whose directories exist. A package may leave some out.
    Raises `LoadError` for a tree without programs."""
    directory = os.path.join(script.root, "programs")
    try:
        os.stat(os.path.join(directory, "."))
    except OSError as error:
        raise make_read_error(directory, error) from None
    # Not a listing: a tree may hold a hundred times more programs than the script has.
    return frozenset(
        i
        for i, digest in script.programs.items()
        if i not in script.not_built and os.path.isdir(os.path.join(directory, digest))
    )


def _list_recorded_sizes(script: Script) -> list[str]:
    """Return the sizes of a call that are recorded: all dimensions, and the other integers that
    choose the program."""
    return [a.name for a in script.arguments if a.dimension or a.name in script.chosen_by]


def _count_nothing() -> int:
    return 0


def _count_keys(read_key: _KeyReader, counters: Mapping[Any, Callable[[], int]]) -> _KeyReader:
    """Return `read_key` as a function that also calls the counter of the key. It raises `KeyError`
    for a key without one."""

    def read_and_count(args: Sequence[Any]) -> Any:
        key = read_key(args)
        counters[key]()
        return key

    return read_and_count


def _make_key_reader(script: Script, names: Sequence[str], *, one_device: bool) -> _KeyReader:
    """Return a function from a call's arguments to a hashable key: the device and the sizes
    `names`. With `one_device` the key has no device."""
    arguments = arrays.list_call_arguments(script)
    tensor_indices = [i for i, argument in enumerate(arguments) if argument.is_on_device]
    sizes = [name for name in names if not is_alignment(name)]
    read_sizes = _make_sizes_reader([locate_size(script, name) for name in sizes])
    aligned = [i for i, a in enumerate(arguments) if name_alignment(a.name) in names]
    if aligned:
        read_sizes = _join_alignments(read_sizes, aligned)
    if one_device or not tensor_indices:
        return read_sizes
    first_tensor = tensor_indices[0]
    # `device` of torch, CuPy and JAX is hashable and quick; NumPy's is a string from 2.0 on.
    return lambda args: (args[first_tensor].device, read_sizes(args))


def _join_alignments(read_sizes: _KeyReader, tensors: Sequence[int]) -> _KeyReader:
    """Return a function from a call's arguments to their sizes and the alignments of the tensors at
    these positions."""
    read_alignment, readers = arrays.read_alignment, arrays.address_readers
    if len(tensors) == 1:
        tensor = tensors[0]

        def read_with_one(args: Sequence[Any]) -> Any:
            # `read_alignment`, without its call. A new type is a `KeyError`: the call is new, too.
            array = args[tensor]
            bits = readers[type(array)](array) | MAX_ALIGNMENT
            return read_sizes(args), bits & -bits

        return read_with_one
    return lambda args: (read_sizes(args), *[read_alignment(args[tensor]) for tensor in tensors])


class SizeLocation(NamedTuple):
    """The location of a size in a call: an argument's position, and the axis of its shape."""

    position: int
    axis: int | None
    """None for an integer argument, whose value is the size."""


def locate_size(script: Script, name: str) -> SizeLocation:
    """Return the location of the size `name` in a call. Raises `LoadError` when no argument has
    it."""
    arguments = arrays.list_call_arguments(script)
    for i, argument in enumerate(arguments):
        if argument.name == name:
            return SizeLocation(i, axis=None)
    for i, argument in enumerate(arguments):
        if not argument.optional and name in (argument.dims or ()):
            return SizeLocation(i, axis=(argument.dims or ()).index(name))
    raise LoadError(f"{script.label}: dispatch key {name} is not an integer argument of it")


def _make_sizes_reader(locations: Sequence[SizeLocation]) -> _KeyReader:
    """Return a function from a call's arguments to the sizes at `locations`: a tuple of several,
    one alone, None for none."""
    # The commonest forms are written out: each call pays every tenth of a microsecond.
    if not locations:
        return lambda args: None
    axes = [location.axis for location in locations]
    if len(locations) == 1 and axes[0] is not None:
        tensor, axis = locations[0]
        return lambda args: args[tensor].shape[axis]
    if None not in axes and len({location.position for location in locations}) == 1:
        # Once: `shape` makes a tuple at each access, which takes 0.2 us for tvm-ffi's tensors.
        common_tensor, read_axes = locations[0].position, itemgetter(*axes)
        return lambda args: read_axes(args[common_tensor].shape)
    if len(locations) == 2 and None not in axes:
        (tensor_1, axis_1), (tensor_2, axis_2) = locations
        return lambda args: (args[tensor_1].shape[axis_1], args[tensor_2].shape[axis_2])
    return lambda args: tuple(
        [args[i] if axis is None else args[i].shape[axis] for i, axis in locations]
    )
