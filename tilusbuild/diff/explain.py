"""Explain why a program is out of date: compare its texts with those of the last build.

These are the texts that the hash is made of, so that an explanation cannot differ from the build. A
program is compared with that of the last build which has the same constants and schedule, in the
same script and for the same target.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeAlias

from msgspec.structs import replace

from tilusbuild.cache.entries import lookup_entry
from tilusbuild.cache.index import read_index
from tilusbuild.cache.layout import TEXTS
from tilusbuild.cache.scripts import read_script_txt
from tilusbuild.cache.tree import Tree
from tilusbuild.compile.model import SOURCE
from tilusbuild.engine.attempt import locate_reason
from tilusbuild.manifest.denied_flags import suggest_key
from tilusbuild.plan.identity import parse_sections
from tilusbuild.plan.planner import Plan, ProgramJob, iterate_jobs
from tilusbuild.plan.roots import PROJECT
from tilusbuild.report.jsonl import JsonLine
from tilusbuild.runtime.regular import try_read_text
from tilusbuild.runtime.sealed import CorruptFileError
from tilusbuild.status import Status

_MATCHED_SECTIONS = ("params", "schedule")
# The digest in a path such as "/tilusbuild/0123456789abcdef/source.cu" of a command, which
# `ObjectNvcc.choose_source_name` derives from the source: it differs with every source, and that
# the source changed is said anyway.
_SOURCE_DIGEST = re.compile(r"/tilusbuild/[0-9a-f]{16}(?=/source\.cu)")

_SECTION_NAMES = {
    "": "",
    "params": "constant",
    "schedule": "parameter",
    "derived": "derived value",
    "args": "argument",
    "launch": "launch",
    "headers": "header",
    "commands": "command",
    "generated": "generated file",
    "toolchain": "tool",
}


def list_differences(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """Return the differences between the texts of two programs, in words and in their order."""
    differences: list[str] = []
    # Commands and generated files follow from the rest, and from the flags in the commands.
    consequences: list[str] = []
    for texts in zip(before, after, strict=True):
        old, new = (parse_sections(_SOURCE_DIGEST.sub("/tilusbuild", text)) for text in texts)
        # Dicts and not sets, which have no order: first what the new text has, then what it lost.
        for title in {**new, **old}:
            old_values, new_values = old.get(title, {}), new.get(title, {})
            if title == "commands" and (flags := _describe_flags(old_values, new_values)):
                differences.append(flags)
            follows = title in ("commands", "generated")
            (consequences if follows else differences).extend(
                _describe_difference(title, key, old_values.get(key), new_values.get(key))
                for key in {**new_values, **old_values}
                if old_values.get(key) != new_values.get(key)
            )
    return tuple(differences or consequences)


def _describe_flags(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return which of the manifest's flags differ between the commands that read the source; None
    if none does."""
    old_words, new_words = (
        [word for line in lines.values() if f" {SOURCE} " in line for word in line.split()]
        for lines in (before, after)
    )
    removed, added = _find_flags(old_words, new_words), _find_flags(new_words, old_words)
    if removed and added:
        return f"flags: {removed} → {added}"
    return f"flags: {added or f'no {removed}'}" if removed or added else None


def _find_flags(words: Sequence[str], other_words: Sequence[str]) -> str:
    """Return the flags among `words`, with their values, that `other_words` do not have."""
    flags: list[str] = []
    is_value = False
    for word in words:
        # No manifest has flags that tilusbuild sets; `-std=` and its like come from other keys.
        is_flag = word.startswith("-") and ("=" in word or suggest_key(word) is None)
        is_value = word not in other_words and (is_flag or (is_value and word[:1] not in "-/"))
        if is_value and word not in flags:
            flags.append(word)
    return " ".join(flags)


def _describe_difference(title: str, key: str, before: str | None, after: str | None) -> str:
    """Return one difference in words. `before` is None for an added line, `after` for a removed
    one. Of a command only the words that differ are named; of a file no value is."""
    if title == "" and key == "source":
        return "the rendered source changed"
    if title == "commands" and before is not None and after is not None:
        old_words, new_words = before.split(), after.split()
        removed = " ".join(word for word in old_words if word not in new_words)
        added = " ".join(word for word in new_words if word not in old_words)
        if removed or added:
            before, after = removed or "nothing", added or "nothing"
        else:
            before = "(another order)"
    # A header of the project has the name that its author knows.
    key = key.removeprefix(f"{PROJECT}/") if title == "headers" else key
    name = f"{_SECTION_NAMES.get(title, title)} {key}".strip()
    # The values of files are digests, which say nothing to a person.
    has_value = title not in ("headers", "generated")
    if before is None:
        return f"{name} is new" + (f": {after}" if has_value else "")
    if after is None:
        return f"{name} was removed"
    return f"{name} changed" + (f": {before} → {after}" if has_value else "")


def make_match_key(program_txt: str) -> tuple[tuple[str, str], ...]:
    """Return the key that programs of two builds are matched by: constants and schedule."""
    sections = parse_sections(program_txt)
    items: list[tuple[str, str]] = []
    for title in _MATCHED_SECTIONS:
        items += sections.get(title, {}).items()
    return tuple(sorted(items))


ProgramsByKey: TypeAlias = Mapping[tuple[tuple[str, str], ...], str]
"""Hashes of programs by what they are matched by."""


def find_last_programs(cache: Tree, manifest: str, directory: str, target: str) -> ProgramsByKey:
    """Return the programs of one script and target in the last build of a project. `directory` is
    the script's. Files that are missing or damaged are passed over."""
    programs: dict[tuple[tuple[str, str], ...], str] = {}
    try:
        project = read_index(cache).get(manifest)
    except CorruptFileError:
        project = None
    for name, digest in project.scripts if project else ():
        if name != directory:
            continue
        try:
            script = read_script_txt(cache.script_path(directory, digest), digest)
        except (FileNotFoundError, CorruptFileError):
            continue
        if script.head.get("target") != target:
            continue
        for program in script.programs:
            texts = _read_texts(cache, program)
            if texts is not None:
                program_txt, _ = texts
                programs[make_match_key(program_txt)] = program
    return programs


def _read_texts(cache: Tree, program: str) -> tuple[str, str] | None:
    """Return program.txt and options.txt of an entry; None if one of them cannot be read."""
    directory = cache.program_path(program)
    program_txt, options_txt = (
        try_read_text(os.path.join(directory, name), "surrogateescape") for name in TEXTS
    )
    return None if program_txt is None or options_txt is None else (program_txt, options_txt)


class ExplanationLine(JsonLine, frozen=True):
    """Why a program is in its state. Also a line of `explain --json`."""

    event: ClassVar[str] = "explanation"
    program: str
    """Its label."""
    hash: str
    state: Status
    """As recorded; `MISSING` is to be compiled."""
    reasons: tuple[str, ...]

    @property
    def up_to_date(self) -> bool:
        return self.state != Status.MISSING


def explain_program(
    job: ProgramJob, texts: tuple[str, str], cache: Tree, last: ProgramsByKey
) -> ExplanationLine:
    """Return why a program is in its state: the recorded reason of an entry, else how the program
    differs from that of the `last` build. `texts` are its program.txt and options.txt."""
    label, program = job.label, job.hash
    reasons: tuple[str, ...] = ()
    if (entry := lookup_entry(cache, program)) is not None:
        if entry.status != Status.BUILT:
            reasons = (locate_reason(job, entry.reason),)
        return ExplanationLine(label, program, entry.status, reasons)
    last_program = last.get(make_match_key(texts[0]))
    if not last:
        reasons = ("the cache has no earlier build of it",)
    elif last_program is None:
        reasons = ("the last build had no such program",)
    elif last_program == program:
        reasons = ("its entry is missing or damaged",)
    elif (last_texts := _read_texts(cache, last_program)) is None:
        reasons = ("the last build's entry is missing",)
    else:
        reasons = list_differences(last_texts, texts)
    return ExplanationLine(label, program, Status.MISSING, reasons)


def explain_plan(
    plan: Plan, manifest: str, cache: Tree, *, remote: bool = False, elsewhere: bool = False
) -> list[ExplanationLine]:
    """Explain the programs of a plan. With `remote`, add why a program is not in the remote cache;
    with `elsewhere`, why a program is not compiled on other machines."""
    last_programs: dict[tuple[str, str], ProgramsByKey] = {}
    lines = []
    for job in iterate_jobs(plan):
        directory, target = job.planned.directory, job.planned.target.name
        if (directory, target) not in last_programs:
            last_programs[directory, target] = find_last_programs(
                cache, manifest, directory, target
            )
        work = job.render()
        texts = (work.program_txt, work.options_txt)
        line = explain_program(job, texts, cache, last_programs[directory, target])
        if not line.up_to_date:
            reasons = [*line.reasons]
            local_reason = work.recipe.pipeline.explain_local_only(work.recipe, work.closure.notes)
            if elsewhere and local_reason is not None:
                reasons.append(f"compiled on this machine: {local_reason}")
            if remote and job.kept_here:
                reasons.append(f"not in the remote cache: {job.kept_here}")
            line = replace(line, reasons=tuple(reasons))
        lines.append(line)
    return lines
