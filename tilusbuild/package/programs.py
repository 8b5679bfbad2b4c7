"""The ordinary kind of package: programs of tilusbuild, for its own cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.package import install, preflight
from tilusbuild.package.arriving import Limits
from tilusbuild.package.install import Installed
from tilusbuild.package.kinds import Destination, Kind
from tilusbuild.package.listing import FileList
from tilusbuild.package.preflight import Answer, Host, Preflight
from tilusbuild.package.reader import Reader
from tilusbuild.package.unpack import of_scripts, unpacked
from tilusbuild.package.values import Field
from tilusbuild.runtime.errors import LoadError
from tilusbuild.table import table


class Programs:
    """The kind."""

    def path_problem(self, below: Sequence[str]) -> str | None:
        """Accept everything: `names` knows the directories of programs."""
        return None

    def read(self, field: Field) -> NoReturn:
        raise NotImplementedError("programs have no key of their own in the list")

    def checker(self, listing: FileList) -> NoReturn:
        raise NotImplementedError("`package.check` itself checks programs")

    def install(self, reader: Reader, to: Destination, limits: Limits) -> InstallReport:
        if to.directory is not None:
            raise input_error("--into is for foreign caches", hint="--cache-dir names tilusbuild's")
        return InstallReport(to.cache.root, install.install(reader, to.cache, limits))

    def preflight(self, path: str, hosts: Sequence[Host], limits: Limits) -> PreflightReport:
        with unpacked(path, of_scripts, limits) as found:
            try:
                return PreflightReport(
                    [preflight.preflight(found.listing, found.folder, host) for host in hosts]
                )
            except LoadError as error:
                # The directory is temporary: its name would tell nobody anything.
                raise TilusbuildError(str(error).replace(f"{found.folder}/", "")) from None


KIND: Kind = Programs()


@dataclass(frozen=True, slots=True)
class InstallReport:
    """What was installed, and where."""

    root: str
    done: Installed
    ok: bool = True
    warning: str = ""

    def text(self, *, verbose: bool) -> str:
        listing, done = self.done.listing, self.done
        return (
            f"{listing.title} {listing.version} is in {self.root}: {len(listing.programs)}"
            f" programs, {done.new} of them new ({done.size} bytes; {done.layers_read} of"
            f" {done.layers} layers read)\n"
        )

    def events(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        listing, done = self.done.listing, self.done
        yield (
            "installed",
            {
                "cache": self.root,
                "name": listing.title,
                "version": listing.version,
                "digest": listing.digest,
                "programs": len(listing.programs),
                "new": done.new,
                "size": done.size,
                "layers": done.layers,
                "layers_read": done.layers_read,
            },
        )


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What would be chosen on each machine."""

    results: Sequence[Preflight]
    warning: str = ""

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)

    def text(self, *, verbose: bool) -> str:
        rows = [
            (
                result.host.device.arch,
                answer.label,
                answer.chosen.target if answer.chosen else "nothing",
                answer.why,
                str(answer.coverage or ""),
            )
            for result in self.results
            for answer in result.answers
        ]
        heads = ("device", "script", "target", "why", "sizes")
        lines = [line for result in self.results for line in _lines(result, verbose=verbose)]
        return table(heads, rows) + "".join(f"{line}\n" for line in lines)

    def events(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for result in self.results:
            device = result.host.device.arch
            for answer in result.answers:
                yield "preflight", {"device": device, **_as_json(answer)}
            for problem in _problems(result):
                yield "problem", {"device": device, "what": problem}
        missing = sum(len(_problems(result)) for result in self.results)
        yield "summary", {"devices": len(self.results), "missing": missing}


def _lines(result: Preflight, *, verbose: bool) -> Iterator[str]:
    arch = result.host.device.arch
    for answer in result.answers:
        if answer.tables:
            yield f"{arch}: {answer.label}: tables measured on {', '.join(answer.tables)}"
        for judged in answer.judged if verbose or answer.chosen is None else ():
            yield f"{arch}: {judged}"
    for problem in _problems(result):
        yield f"{arch}: missing: {problem}"


def _problems(result: Preflight) -> list[str]:
    of_scripts = [f"{a.label}: {what}" for a in result.answers for what in a.problems]
    return [*result.problems, *of_scripts]


def _as_json(answer: Answer) -> dict[str, object]:
    coverage = answer.coverage
    return {
        "script": answer.label,
        "params": dict(answer.params),
        "target": answer.chosen.target if answer.chosen else None,
        "why": answer.why,
        "candidates": [
            {"target": j.script.target, "suits": j.suits is not None, "why": j.reason}
            for j in answer.judged
        ],
        "tables": list(answer.tables),
        "sizes": None
        if coverage is None
        else {
            "range": {key: sizes and list(sizes) for key, sizes in coverage.sizes.items()},
            "buckets": coverage.buckets,
            "judged": coverage.judged,
            "sources": dict(coverage.sources),
        },
        "problems": list(answer.problems),
    }
