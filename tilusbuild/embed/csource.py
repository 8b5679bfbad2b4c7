"""The C dispatcher of a script: `dispatch.c` and `dispatch.h`, written from what its directory
says.

It decides as `tilusbuild.runtime.choose` does, with the rules, the tables and the model written
into it, and forwards to the programs' libraries, which it finds relative to itself and opens when
they are first chosen. A program's bytes are checked against the digest that was built before it is
opened. Raises `NoDispatcherError` for what C cannot say.
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
from tilusbuild.expr import ExprError, c_prelude
from tilusbuild.expr.c import CWriter
from tilusbuild.expr.tree import Node
from tilusbuild.runtime import library
from tilusbuild.runtime.kernel import list_available_programs, locate_size
from tilusbuild.runtime.regular import read_bytes, read_text
from tilusbuild.runtime.script import FILE, Script
from tilusbuild.runtime.sealed import unseal_json
from tilusbuild.runtime.tables import SOURCES, DeviceTable

_KNOWN_FIELDS = frozenset(("script", "device", "arch"))


class NoDispatcherError(TilusbuildError):
    """There can be no dispatcher in C; the text says why."""


def symbol(script: Script) -> str:
    """Return the script's name as the names of C functions begin with it."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", script.name)
    return f"_{name}" if name[0].isdigit() else name


def sources(
    script: Script, tables: Sequence[DeviceTable], refused: Mapping[int, str] | None = None
) -> dict[str, str]:
    """Return the texts of `dispatch.c` and `dispatch.h`; `refused` are the programs that are chosen
    nowhere. Raises `NoDispatcherError` and `LoadError`."""
    try:
        return _Writer(script, tables, refused or {}).files()
    except ExprError as error:
        raise NoDispatcherError(f"{script.label}: {error.message}") from None


class _Writer:
    def __init__(
        self, script: Script, tables: Sequence[DeviceTable], refused: Mapping[int, str]
    ) -> None:
        self.script = script
        self.refused = refused
        self.place = {number: place for place, number in enumerate(script.programs)}
        """Where each program is in the table of C, by its number."""
        self.tables = [table for table in tables if self._holds(table)]
        by_hand = {e.program for t in tables for e in t.entries if e.source == "table"}
        for program in sorted(by_hand & refused.keys()):
            what = f"a row by hand chooses program {program}, which was {refused[program]}"
            raise NoDispatcherError(f"{script.label}: {what}")
        self.there = list_available_programs(script) - refused.keys()
        if not self.there:
            raise NoDispatcherError(f"{script.label}: no program is built")
        self.dispatch: Mapping[str, Any] = unseal_json(read_bytes(os.path.join(script.path, FILE)))[
            "dispatch"
        ]
        self.rules = [
            (json_to_node(rule["when"]), rule["program"], rule["source"])
            for rule in self.dispatch["rules"]
            if rule["program"] in self.there or rule["program"] in refused
        ]
        self.sizes = script.chosen_by
        self.wide = {a.name for a in script.arguments if a.dtype == "u64" and a.dims is None}
        """The u64 arguments: a choice takes only those of their values that an int64_t has."""
        self.names = {name: f"size[{i}]" for i, name in enumerate(self.sizes)}

    def _holds(self, table: DeviceTable) -> bool:
        """Return whether the device alone decides if the table holds."""
        own = table.fingerprint["script"] in ("*", self.script.hash)
        return own and all(
            field in _KNOWN_FIELDS or value == "*" for field, value in table.fingerprint.items()
        )

    def files(self) -> dict[str, str]:
        title = f"Written by tilusbuild: chooses a program of {self.script.label}, launches it."
        parts = [
            f"/* {title}\n   {self.script.hash} */\n#define _GNU_SOURCE\n{self._numbers()}",
            _part("head.c"),
            c_prelude(),
            self._tables(),
            _part("choose.c"),
            self._buckets(),
            self._rules(),
            self._model(),
            _part("sha256.c"),
            # It opens libcuda with RTLD_GLOBAL, a launcher (compile/launcher_parts/kernel.c) with
            # RTLD_LOCAL. Both look symbols up in their own handle, so either would do. The texts
            # stay as they are: a launcher's is part of its program's hash, and another text here
            # would make every dispatcher in every cache outdated.
            _part("open.c"),
            self._call(),
            self._functions(),
        ]
        return {"dispatch.c": "\n".join(parts), "dispatch.h": self._header()}

    def _numbers(self) -> str:
        passed = sum(not argument.dimension for argument in self.script.arguments)
        own = self.script.default
        default: object = self.place[
            own if own in self.there and own is not None else min(self.there)
        ]
        if own is not None and own in self.refused:
            default = self._refusal("the default schedule", own)
        numbers = {
            "KEYS": len(self.script.keys),
            "SIZES": len(self.sizes),
            "PROGRAMS": len(self.script.programs),
            "TABLES": len(self.tables),
            "PASSED": passed,
            "DEFAULT_PROGRAM": default,
            "MACHINE": format_c_string(self.script.code.machine),
        }
        lines = [f"#define TD_{name} {number}" for name, number in numbers.items()]
        if self.script.kind == "cuda":
            lines.append("#define TD_CUDA 1")
        return "\n".join(lines) + "\n"

    def _refusal(self, what: str, program: int) -> str:
        """Return the C expression that fails because a person's word means a refused program."""
        text = f"{what} chooses program {program}, which was {self.refused[program]}"
        return f'td_fail("%s", {format_c_string(f"{self.script.name}: {text}")})'

    def _call(self) -> str:
        """Return the packed call, for which what is copied to variables says nothing of the device.
        The text of a dispatcher without such arguments stays as it is."""
        text = _part("call.c")
        passed = [argument for argument in self.script.arguments if not argument.dimension]
        if not any(argument.constant for argument in passed):
            return text
        table = ", ".join(str(int(argument.constant)) for argument in passed)
        skipped = "if (!tensor) continue;"
        if text.count(skipped) != 1:
            raise NoDispatcherError("call.c looks for the device in another way")
        text = text.replace(skipped, "if (!tensor || td_is_constant[i]) continue;")
        return f"static const unsigned char td_is_constant[] = {{{table}}};\n{text}"

    def _tables(self) -> str:
        script = self.script
        lines = [f"static const char td_name[] = {format_c_string(script.name)};"]
        lines.append("static const td_program td_programs[TD_PROGRAMS] = {")
        for index, digest in script.programs.items():
            if index in self.there:
                meta = library.read_meta(script, index)
                sha256 = meta["files"][library.LIBRARY]["sha256"]
                lines.append(f"  {{{format_c_string(digest)}, {format_c_string(sha256)}}},")
            else:
                lines.append("  {0, 0},")
        lines.append("};")
        for number, table in enumerate(self.tables):
            lines.append(f"static const td_entry td_entries_{number}[] = {{")
            for row in sorted(e for e in table.entries if e.program in self.there):
                sizes = ", ".join(f"INT64_C({size})" for size in row.key) or "0"
                place, source = self.place[row.program], SOURCES.index(row.source)
                lines.append(f"  {{{{{sizes}}}, {place}, {source}}},")
            lines.append("  {{0}, 0, 4}\n};")
        lines.append("static const td_table td_tables[TD_TABLES + 1] = {")
        for number, table in enumerate(self.tables):
            count = sum(e.program in self.there for e in table.entries)
            device, arch = (format_c_string(table.fingerprint[f]) for f in ("device", "arch"))
            lines.append(f"  {{{device}, {arch}, td_entries_{number}, {count}}},")
        lines.append("  {0, 0, 0, 0}\n};")
        lines.append("static const td_read td_reads[] = {")
        for name in self.sizes:
            argument, axis = locate_size(script, name)
            u64 = format_c_string(name) if name in self.wide else 0
            lines.append(f"  {{{argument}, {-1 if axis is None else axis}, {u64}}},")
        return "\n".join([*lines, "  {0, -1, 0}\n};\n"])

    def _buckets(self) -> str:
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

    def _rules(self) -> str:
        """-2: no rule holds; -1: one has no value."""
        lines = []
        for when, program, source in self.rules:
            text = CWriter(self.names).write_node(when)[0]
            answer: object = self.place[program]
            if program in self.refused:
                answer = self._refusal(f"the dispatch rule {source!r}", program)
            if "tb_" not in text:  # nothing in it can fail
                lines.append(f"  if ({text}) return {answer};")
                continue
            what = format_c_string(f"{self.script.name}: dispatch rule {source!r} has no value")
            lines.append("  tb_expr_error = 0;")
            lines.append(f"  if ({text} && !tb_expr_error) return {answer};")
            lines.append(f'  if (tb_expr_error) return td_fail("%s", {what});')
        body = "\n".join(lines)
        return (
            f"static int td_rule(const int64_t *size) {{\n  (void)size;\n{body}\n  return -2;\n}}\n"
        )

    def _model(self) -> str:
        """-2: there is no model, or it knows no program."""
        model = self.dispatch["model"]
        if model is None:
            return "static int td_by_model(const int64_t *size) {\n  (void)size;\n  return -2;\n}\n"
        cost: Node = json_to_node(model["cost"])
        columns = self.script.model.columns if self.script.model else {}
        programs = [
            i for i in sorted(self.there) if all(c[i] is not None for c in columns.values())
        ]
        lines, types, names = [], {}, dict(self.names)
        for number, (name, column) in enumerate(sorted(columns.items())):
            values = [column[i] for i in programs]
            types[name], ctype, cells = _column(name, values)
            names[name] = f"column_{number}[i]"
            lines.append(f"  static const {ctype} column_{number}[] = {{{cells}}};")
        text, kind = CWriter(names, types).write_node(cost)
        number_type = "double" if kind == "float" else "int64_t"
        listed = ", ".join(str(self.place[i]) for i in programs) or "0"
        what = format_c_string(f"{self.script.name}: the model {model['source']!r} has no value")
        body = "\n".join(lines)
        return f"""\
static int td_by_model(const int64_t *size) {{
  static const int programs[] = {{{listed}}};
{body}
  int best = -2;
  {number_type} least = 0;
  (void)size;
  tb_expr_error = 0;
  for (int i = 0; i < {len(programs)}; i++) {{
    {number_type} cost = {text};
    if (tb_expr_error) return td_fail("%s", {what});
    if (best < 0 || cost < least) best = programs[i], least = cost;
  }}
  return best;
}}
"""

    def _number(self, numbers: Sequence[int]) -> str:
        """Return what gives a program's number, where that is not its place."""
        if numbers[-1] > 0x7FFFFFFF:
            raise NoDispatcherError(f"{self.script.label}: a program's number does not fit a C int")
        return f"""\
static int td_number(int table, const int64_t *size, int *source) {{
  static const int numbers[] = {{{", ".join(map(str, numbers))}}};
  int program = td_choose(table, size, source);
  return program < 0 ? program : numbers[program];
}}

"""

    def _functions(self) -> str:
        name = symbol(self.script)
        sizes = ", ".join(f"int64_t {size}" for size in self.sizes)
        values = ", ".join(self.sizes) or "0"
        arguments = ", ".join([*(format_c_type(a) + " a_" + a.name for a in self.script.arguments)])
        given = "".join(f"{'a_' + a.name}, " for a in self.script.arguments)
        types = "".join(f"{format_c_type(a)}, " for a in self.script.arguments)
        arguments = f"{arguments}, void *stream" if arguments else "void *stream"
        read = ", ".join(f"(int64_t)a_{size}" for size in self.sizes) or "0"
        beyond = "".join(
            f"\n  if (a_{size} > INT64_MAX) return td_beyond({format_c_string(size)});"
            for size in self.sizes
            if size in self.wide
        )
        own = f"int device{', ' + sizes if sizes else ''}"
        choose, numbers = "td_choose", [*self.place]
        if numbers != [*self.place.values()]:
            choose = "td_number"
        return f"""\
{"" if choose == "td_choose" else self._number(numbers)}\
TD_EXPORT int {name}_select_on({own}) {{
  const int64_t size[] = {{{values}}};
  int source;
  return {choose}(td_table_of(device), size, &source);
}}

TD_EXPORT int {name}_select({sizes or "void"}) {{
  const int64_t size[] = {{{values}}};
  int source;
  return {choose}(td_table_of(td_current_device()), size, &source);
}}

TD_EXPORT const char *{name}_source({sizes or "void"}) {{
  const int64_t size[] = {{{values}}};
  int source = 0;
  if (td_choose(td_table_of(td_current_device()), size, &source) < 0) return NULL;
  return td_sources[source];
}}

TD_EXPORT int launch({arguments}) {{
  const int64_t size[] = {{{read}}};
  td_functions *chosen = NULL;
  int source, program;
  td_message[0] = 0;
  td_last = NULL;{beyond}
  program = td_choose(td_table_of(td_current_device()), size, &source);
  td_last = chosen = program < 0 ? NULL : td_open(program);
  return chosen ? ((int (*)({types}void *))chosen->plain)({given}stream) : -1;
}}

TD_EXPORT const char *launch_error(void) {{
  const td_functions *last = td_last;
  return last ? last->error() : td_message;
}}

TD_EXPORT void {name}_on_nearest(void (*hook)(void)) {{
  __atomic_store_n(&td_hook, hook, __ATOMIC_RELEASE);
}}

TD_EXPORT int {name}_launch({arguments}) {{
  return launch({given}stream);
}}

TD_EXPORT const char *{name}_error(void) {{ return launch_error(); }}
"""

    def _header(self) -> str:
        name = symbol(self.script)
        sizes = ", ".join(f"int64_t {size}" for size in self.sizes) or "void"
        more = f", {sizes}" if self.sizes else ""
        arguments = "".join(f"{format_c_type(a)} {a.name}, " for a in self.script.arguments)
        guard = f"TILUSBUILD_{name.upper()}_H"
        return f"""\
/* Written by tilusbuild: the interface of lib{self.script.name}.so. */
#ifndef {guard}
#define {guard}
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

/* The number of the program that serves these sizes on the current device; -1: {name}_error(). */
int {name}_select({sizes});
int {name}_select_on(int device{more});

/* Where that choice comes from: "table", "measured", "nearest", "model" or "default". */
const char *{name}_source({sizes});

/* Have a function called when sizes are served by the nearest that were measured, once a bucket. */
void {name}_on_nearest(void (*hook)(void));

/* Choose and launch. 0 is success; anything else: {name}_error(). */
int {name}_launch({arguments}void *stream);
const char *{name}_error(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _column(name: str, values: Sequence[Any]) -> tuple[str, str, str]:
    """Type for the writer, C type, and the cells."""
    if any(isinstance(value, str) for value in values):
        raise NoDispatcherError(f"the model reads {name}, which is a string")
    if any(isinstance(value, float) for value in values):
        return "float", "double", ", ".join(repr(float(v)) for v in values) or "0"
    return "int", "int64_t", ", ".join(f"INT64_C({int(v)})" for v in values) or "0"


@cache
def _part(name: str) -> str:
    directory = os.path.join(os.path.dirname(os.path.abspath(__file__)), "c_parts")
    return read_text(os.path.join(directory, name))
