"""Writes the C dispatcher of a script, `dispatch.c` and `dispatch.h`, from the script's directory.

The dispatcher decides as `tilusbuild.runtime.choose` does: rules, tables and model are written into
it. It finds the programs' libraries relative to itself, opens each when it is first chosen, and
before that compares its bytes with the digest of the build. `NoDispatcherError` is raised for an
expression or a number that C does not have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tilusbuild.compile.arguments import format_c_type
from tilusbuild.compile.launcher_tables import format_c_string
from tilusbuild.dispatch.describe import json_to_node
from tilusbuild.errors import TilusbuildError
from tilusbuild.expr import ExprError, write_c_prelude
from tilusbuild.expr.c import CWriter
from tilusbuild.expr.tree import Node
from tilusbuild.runtime import library
from tilusbuild.runtime.arrays import list_call_arguments
from tilusbuild.runtime.kernel import list_available_programs, locate_size
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.runtime.script import FILE, DispatchRule, Script
from tilusbuild.runtime.sealed import unseal_json
from tilusbuild.runtime.semantics import MAX_ALIGNMENT, is_alignment, name_alignment
from tilusbuild.runtime.tables import DeviceTable


class NoDispatcherError(TilusbuildError):
    """A script can have no dispatcher in C. The text names the reason."""


def to_c_symbol(script: Script) -> str:
    """Return the prefix of a script's C functions."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", script.name)
    return f"_{name}" if name[0].isdigit() else name


def write_dispatcher_sources(
    script: Script, tables: Sequence[DeviceTable], refused: Mapping[int, str] | None = None
) -> dict[str, str]:
    """Return the texts of `dispatch.c` and `dispatch.h`, by file name. `refused` has the number of
    each program that may not be chosen, with the reason. Raises `NoDispatcherError` and
    `LoadError`."""
    try:
        return _SourceWriter(script, tables, refused or {}).write_files()
    except ExprError as error:
        raise NoDispatcherError(f"{script.label}: {error.message}") from None


class _SourceWriter:
    """Writes the two files of one script."""

    def __init__(
        self, script: Script, tables: Sequence[DeviceTable], refused: Mapping[int, str]
    ) -> None:
        """Keep the tables that C can compare with a device, and the rules whose programs are built
        or refused. Raises `NoDispatcherError`."""
        self.script = script
        self.refused = refused
        self.index_of = {number: index for index, number in enumerate(script.programs)}
        """Indexes in the C table of programs, by the program's number."""
        self.tables = [table for table in tables if _can_compare(table, script)]
        self.available = list_available_programs(script) - refused.keys()
        if not self.available:
            raise NoDispatcherError(f"{script.label}: no program is built")
        description = unseal_json(read_bytes(os.path.join(script.path, FILE)))
        self.dispatch: Mapping[str, Any] = description["dispatch"]
        self.rules = [
            rule
            for rule in script.rules
            if rule.program in self.available or rule.program in refused
        ]
        self.sizes = script.chosen_by
        self.u64_names = {a.name for a in script.arguments if a.dtype == "u64" and a.dims is None}
        """The u64 arguments: a choice takes only those of their values that an int64_t has."""
        self.names = {name: f"size[{i}]" for i, name in enumerate(self.sizes)}
        self.given_sizes = [name for name in self.sizes if not is_alignment(name)]
        """The parameters of `_select`. The alignments, which follow them, are the largest there."""

    def write_files(self) -> dict[str, str]:
        """Return the texts of `dispatch.c` and `dispatch.h`, by file name."""
        title = f"Written by tilusbuild: chooses a program of {self.script.label}, launches it."
        parts = [
            f"/* {title}\n   {self.script.hash} */\n#define _GNU_SOURCE",
            self._write_definitions(),
            _read_part("head.c"),
            write_c_prelude(),
            self._write_tables(),
            _read_part("choose.c"),
            self._write_buckets(),
            self._write_serves(),
            self._write_rules(),
            self._write_fitted(),
            self._write_model(),
            _read_part("sha256.c"),
            # It opens libcuda with RTLD_GLOBAL, a launcher (compile/launcher_parts/kernel.c) with
            # RTLD_LOCAL. Either would do, since both look symbols up in their own handle. Another
            # text would make every dispatcher in every cache outdated.
            _read_part("open.c"),
            _read_part("call.c"),
            self._write_functions(),
        ]
        return {"dispatch.c": "\n".join(parts), "dispatch.h": self._write_header()}

    def _write_definitions(self) -> str:
        """Return the `#define`s of counts, of the default program and of the host's machine, then
        an array with 1 for each argument of a call that is constant, else 0."""
        call_arguments = [argument for argument in self.script.arguments if not argument.dimension]
        default, available = self.script.default, self.available
        if default is not None and default in self.refused:
            # The macro is an expression in C, here one that fails.
            default_program = self._write_refusal("the default schedule", default)
        else:
            # As in `Chooser.choose_default`, a default that was not built causes no error.
            number = default if default is not None and default in available else min(available)
            default_program = str(self.index_of[number])
        macros = {
            "KEYS": len(self.script.keys),
            "SIZES": len(self.sizes),
            "PROGRAMS": len(self.script.programs),
            "TABLES": len(self.tables),
            "COSTS": sum(len(table.fitted) for table in self.tables),
            "PASSED": len(call_arguments),
            "DEFAULT_PROGRAM": default_program,
            "SERVING_DEFAULT": self.index_of[default] if default in available else -1,
            "MACHINE": format_c_string(self.script.code.machine),
        }
        lines = [f"#define TD_{name} {text}" for name, text in macros.items()]
        if self.script.kind == "cuda":
            lines.append("#define TD_CUDA 1")
        constants = "".join(f"{int(argument.constant)}, " for argument in call_arguments)
        lines.append(f"static const unsigned char td_is_constant[] = {{{constants}0}};")
        return "\n".join(lines) + "\n"

    def _write_refusal(self, decision: str, program: int) -> str:
        """Return a C expression that fails, for a rule or a default that names a refused
        program."""
        text = f"{decision} chooses program {program}, which was {self.refused[program]}"
        return f'td_fail("%s", {format_c_string(f"{self.script.name}: {text}")})'

    def _write_tables(self) -> str:
        """Return the tables of C: programs with their digests, measured rows, devices, and the
        argument and axis of each size."""
        # All that may be empty end with a row of zeros, since C has no empty arrays. The brace that
        # closes an array is on the line that opens the next one.
        script = self.script
        lines = [f"static const char td_name[] = {format_c_string(script.name)};"]
        lines.append("static const td_program td_programs[TD_PROGRAMS] = {")
        for number, digest in script.programs.items():
            row = "0, 0"
            if number in self.available:
                sha256 = library.read_meta(script, number)["files"][library.LIBRARY]["sha256"]
                row = f"{format_c_string(digest)}, {format_c_string(sha256)}"
            lines.append(f"  {{{row}}},")
        device_rows = []
        for i, table in enumerate(self.tables):
            lines.append(f"}};\nstatic const td_entry td_entries_{i}[] = {{")
            # Sorted by key, because C searches the rows by bisection.
            entries = sorted(e for e in table.entries if e.program in self.available)
            for entry in entries:
                sizes = ", ".join(f"INT64_C({size})" for size in entry.key) or "0"
                others = [self.index_of[n] for n in entry.others if n in self.available]
                numbers = ", ".join(map(str, [*others, -1]))
                program = self.index_of[entry.program]
                lines.append(f"  {{{{{sizes}}}, {program}, (const int32_t[]){{{numbers}}}}},")
            # The last row, of zeros: C has no empty arrays.
            lines.append("  {{0}, 0, 0}")
            device, arch = (format_c_string(table.fingerprint[f]) for f in ("device", "arch"))
            device_rows.append(f"  {{{device}, {arch}, td_entries_{i}, {len(entries)}}},")
        lines.append("};\nstatic const td_table td_tables[TD_TABLES + 1] = {")
        lines += [*device_rows, "  {0, 0, 0, 0}\n};\nstatic const td_read td_reads[] = {"]
        for name in self.given_sizes:
            argument, axis = locate_size(script, name)
            u64 = format_c_string(name) if name in self.u64_names else 0
            lines.append(f"  {{{argument}, {-1 if axis is None else axis}, {u64}}},")
        for i, a in enumerate(list_call_arguments(script)):
            if name_alignment(a.name) in self.sizes:
                lines.append(f"  {{{i}, -2, 0}},")
        return "\n".join([*lines, "  {0, -1, 0}\n};\n"])

    def _write_buckets(self) -> str:
        """Return the C function that rounds sizes to dispatch keys."""
        lines = []
        for i, key in enumerate(self.script.keys):
            bucket = self.dispatch["buckets"][key]
            size = f"size[{i}]"
            if isinstance(bucket, list):
                edges = ", ".join(f"INT64_C({edge})" for edge in bucket)
                lines.append(f"  static const int64_t edges_{i}[] = {{{edges}}};")
                text = f"td_edge({size}, edges_{i}, {len(bucket)})"
            elif isinstance(bucket, dict):
                text = f"td_every({size}, INT64_C({bucket['every']}))"
            else:
                text = size if bucket == "exact" else f"td_{bucket}({size})"
            lines.append(f"  bucket[{i}] = {text};")
        body = "\n".join(lines)
        return (
            "static void td_bucket(const int64_t *size, int64_t *bucket) {\n"
            f"  (void)size;\n  (void)bucket;\n{body}\n}}\n"
        )

    def _write_serves(self) -> str:
        """Return the C function of the rules of `serves`, of a program by its index."""
        serves = self.script.serves
        lines, types, names = [], {}, dict(self.names)
        columns = serves.columns if serves else {}
        for number, (name, column) in enumerate(sorted(columns.items())):
            types[name], ctype, cells = _format_column(name, list(column.values()))
            names[name] = f"column_{number}[program]"
            lines.append(f"  static const {ctype} column_{number}[] = {{{cells}}};")
        rules = self.dispatch["serves"]["rules"] if serves else ()
        for rule in rules:
            text = CWriter(names, types).write_node(json_to_node(rule["when"]))[0]
            # A rule without a value, such as 1 // 0, is false.
            lines.append(f"  tb_expr_error = 0;\n  if (!({text}) || tb_expr_error) return 0;")
        body = "\n".join(lines)
        return f"""\
static int td_serves(int program, const int64_t *size) {{
  (void)program;
  (void)size;
{body}
  return 1;
}}
"""

    def _write_rules(self) -> str:
        """Return the C function of the rules. It returns a program, -2 if no rule holds, or -1 if a
        rule names a refused program."""
        lines = []
        for rule in self.rules:
            served = result = str(self.index_of[rule.program])
            if rule.program in self.refused:
                source = f"the dispatch rule {rule.source!r}"
                result = self._write_refusal(source, rule.program)
            lines.append(_write_rule(rule, self.names, f"td_serves({served}, size)", result))
        body = "\n".join(lines)
        return (
            f"static int td_rule(const int64_t *size) {{\n  (void)size;\n{body}\n  return -2;\n}}\n"
        )

    def _write_fitted(self) -> str:
        """Return the C function of the fitted costs of a table. It returns the cheapest of the
        programs that serve a call; -2 if none has a fitted cost."""
        writer = CWriter({key: f"size[{i}]" for i, key in enumerate(self.script.keys)})
        lines = []
        for number, table in enumerate(self.tables):
            for fitted in table.fitted:
                if fitted.program in self.available:
                    program = self.index_of[fitted.program]
                    text = writer.write_node(json_to_node(fitted.tree))[0]
                    lines.append(f"""\
  if (which == {number} && (!call || td_serves({program}, call))) {{
    tb_expr_error = 0;
    cost = (double)({text});
    if (!tb_expr_error && (best < 0 || cost < least)) best = {program}, least = cost;
  }}""")
        body = "\n".join(lines)
        return f"""\
static int td_fitted(int which, const int64_t *size, const int64_t *call) {{
  int best = -2;
  double cost = 0, least = 0;
  (void)which;
  (void)size;
  (void)call;
{body}
  (void)cost;
  (void)least;
  return best;
}}
"""

    def _write_model(self) -> str:
        """Return the C function of the cost model. It returns the cheapest of the programs
        that serve a call; -2 if none has a known cost, or if the script has no model."""
        model = self.dispatch["model"]
        if model is None:
            return f"{_MODEL_HEAD}  (void)size;\n  (void)call;\n  return -2;\n}}\n"
        # As in `Chooser._choose_by_model`, programs with unknown columns do not take part, and of
        # equal costs the first wins.
        cost: Node = json_to_node(model["cost"])
        columns = self.script.model.columns if self.script.model else {}
        programs = [
            program
            for program in sorted(self.available)
            if all(column[program] is not None for column in columns.values())
        ]
        lines, types, names = [], {}, dict(self.names)
        for number, (name, column) in enumerate(sorted(columns.items())):
            values = [column[program] for program in programs]
            types[name], ctype, cells = _format_column(name, values)
            names[name] = f"column_{number}[i]"
            lines.append(f"  static const {ctype} column_{number}[] = {{{cells}}};")
        text, kind = CWriter(names, types).write_node(cost)
        number_type = "double" if kind == "float" else "int64_t"
        # C has no empty arrays.
        program_numbers = ", ".join(str(self.index_of[program]) for program in programs) or "0"
        body = "\n".join(lines)
        return f"""\
{_MODEL_HEAD}  static const int programs[] = {{{program_numbers}}};
{body}
  int best = -2;
  {number_type} least = 0;
  (void)size;
  for (int i = 0; i < {len(programs)}; i++) {{
    if (call && !td_serves(programs[i], call)) continue;
    tb_expr_error = 0;
    {number_type} cost = {text};
    if (tb_expr_error) continue;
    if (best < 0 || cost < least) best = programs[i], least = cost;
  }}
  return best;
}}
"""

    def _write_functions(self) -> str:
        """Return the C functions that `dispatch.h` declares, `launch` and `launch_error`. Raises
        `NoDispatcherError` if a program's number does not fit an int."""
        name = to_c_symbol(self.script)
        # `launch` and `launch_error` are the names in every program, so a dispatcher can stand for
        # one. With the script's name both are in the header.
        sizes = ", ".join(f"int64_t {size}" for size in self.given_sizes)
        alignments = [str(MAX_ALIGNMENT)] * (len(self.sizes) - len(self.given_sizes))
        values = ", ".join([*self.given_sizes, *alignments]) or "0"
        # The prefix `a_` keeps the names of arguments apart from the variables of the C code.
        arguments = "".join(f"{format_c_type(a)} a_{a.name}, " for a in self.script.arguments)
        argument_names = "".join(f"a_{a.name}, " for a in self.script.arguments)
        types = "".join(f"{format_c_type(a)}, " for a in self.script.arguments)
        size_words = [f"(int64_t)a_{size}" for size in self.given_sizes]
        size_words += [
            f"td_align(a_{a.name})"
            for a in self.script.arguments
            if name_alignment(a.name) in self.sizes
        ]
        size_values = ", ".join(size_words) or "0"
        range_checks = "".join(
            f"\n  if (a_{size} > INT64_MAX) return td_beyond({format_c_string(size)});"
            for size in self.sizes
            if size in self.u64_names
        )
        device_and_sizes = f"int device{', ' + sizes if sizes else ''}"
        # A level leaves programs out: then a program's number is not its index in the C tables.
        if max(self.index_of) > 0x7FFFFFFF:
            raise NoDispatcherError(f"{self.script.label}: a program's number does not fit a C int")

        def write_call(function: str, kind: str, last: str, field: str) -> str:
            """Return the C function that calls a function of the chosen program, with the same
            arguments. The last one is `last`, of the type `kind`."""
            return f"""\
TD_EXPORT int {function}({arguments}{kind}{last}) {{
  const int64_t size[] = {{{size_values}}};
  td_functions *chosen = NULL;
  int source, program;
  td_message[0] = 0;
  td_last = NULL;{range_checks}
  program = td_choose(td_table_of(td_current_device()), size, &source);
  td_last = chosen = program < 0 ? NULL : td_open(program);
  return chosen ? ((int (*)({types}{kind}))chosen->{field})({argument_names}{last}) : -1;
}}
"""

        workspace = ""
        if self.script.workspaces:
            workspace = write_call(f"{name}_workspace", "int64_t *", "bytes", "workspace")
        return f"""\
static int td_number(int table, const int64_t *size) {{
  static const int numbers[] = {{{", ".join(map(str, self.index_of))}}};
  int source, program = td_choose(table, size, &source);
  return program < 0 ? program : numbers[program];
}}

TD_EXPORT int {name}_select_on({device_and_sizes}) {{
  const int64_t size[] = {{{values}}};
  return td_number(td_table_of(device), size);
}}

TD_EXPORT int {name}_select({sizes or "void"}) {{
  const int64_t size[] = {{{values}}};
  return td_number(td_table_of(td_current_device()), size);
}}

TD_EXPORT const char *{name}_source({sizes or "void"}) {{
  const int64_t size[] = {{{values}}};
  int source = 0;
  if (td_choose(td_table_of(td_current_device()), size, &source) < 0) return NULL;
  return td_sources[source];
}}

{write_call("launch", "void *", "stream", "plain")}
{workspace}\
TD_EXPORT const char *launch_error(void) {{
  const td_functions *last = td_last;
  return last ? last->error() : td_message;
}}

TD_EXPORT void {name}_on_nearest(void (*hook)(void)) {{
  __atomic_store_n(&td_hook, hook, __ATOMIC_RELEASE);
}}

TD_EXPORT int {name}_launch({arguments}void *stream) {{
  return launch({argument_names}stream);
}}

TD_EXPORT const char *{name}_error(void) {{ return launch_error(); }}
"""

    def _write_header(self) -> str:
        """Return the text of `dispatch.h`."""
        name = to_c_symbol(self.script)
        sizes = ", ".join(f"int64_t {size}" for size in self.given_sizes) or "void"
        further_parameters = f", {sizes}" if self.given_sizes else ""
        assumption = ""
        if len(self.given_sizes) < len(self.sizes):
            tensors = ", ".join(self.sizes[len(self.given_sizes) :])
            assumption = f"/* Where sizes alone are given, {tensors} is {MAX_ALIGNMENT}. */\n"
        arguments = "".join(f"{format_c_type(a)} {a.name}, " for a in self.script.arguments)
        workspace = ""
        if names := ", ".join(self.script.workspaces):
            workspace = (
                f"\n/* Store the bytes that a launch with these arguments needs of {names}."
                f" Pointers may be null. */\nint {name}_workspace({arguments}int64_t *bytes);"
            )
        guard = f"TILUSBUILD_{name.upper()}_H"
        return f"""\
/* Written by tilusbuild: the interface of lib{self.script.name}.so. */
#ifndef {guard}
#define {guard}
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

{assumption}/* The program that serves these sizes on the current device; -1: {name}_error(). */
int {name}_select({sizes});
int {name}_select_on(int device{further_parameters});

/* Where that choice comes from: "table", "measured", "fitted", "nearest", "model" or "default". */
const char *{name}_source({sizes});

/* Have a function called when sizes are served by the nearest that were measured, once a bucket. */
void {name}_on_nearest(void (*hook)(void));

/* Choose and launch. 0 is success; anything else: {name}_error(). */
int {name}_launch({arguments}void *stream);{workspace}
const char *{name}_error(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _can_compare(table: DeviceTable, script: Script) -> bool:
    """Return whether C code can decide if a device takes the table: it compares the device and the
    architecture. The script must be this one, and every further field `*`."""
    return all(
        value == "*" or name in ("device", "arch") or (name == "script" and value == script.hash)
        for name, value in table.fingerprint.items()
    )


_MODEL_HEAD = "static int td_by_model(const int64_t *size, const int64_t *call) {\n"


def _write_rule(
    rule: DispatchRule, names: Mapping[str, str], extra_condition: str, result: str
) -> str:
    """Return C statements that return `result` if a rule and `extra_condition` both hold."""
    text = CWriter(names).write_node(json_to_node(rule.tree))[0]
    # Only the functions of the prelude, `tb_…`, can fail.
    if "tb_" not in text:
        return f"  if (({text}) && {extra_condition}) return {result};"
    # The prelude sets `tb_expr_error` if an expression has no value, such as 1 // 0: then the rule
    # does not hold.
    condition = f"({text}) && !tb_expr_error && {extra_condition}"
    return f"  tb_expr_error = 0;\n  if ({condition}) return {result};"


def _format_column(name: str, values: Sequence[Any]) -> tuple[str, str, str]:
    """Return a column of a model or of `serves`: the type for `CWriter`, the C type, and the cells,
    of which C needs one at least. Raises `NoDispatcherError` for strings."""
    if any(isinstance(value, str) for value in values):
        raise NoDispatcherError(f"an expression reads {name}, which is a string")
    if any(isinstance(value, float) for value in values):
        return "float", "double", ", ".join(repr(float(v)) for v in values) or "0"
    return "int", "int64_t", ", ".join(f"INT64_C({int(v)})" for v in values) or "0"


@cache
def _read_part(name: str) -> str:
    """Return the text of a file in `c_parts/`."""
    directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "c_parts")
    return read_text(os.path.join(directory, name))
