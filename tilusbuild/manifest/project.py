"""`[project]` and `[build]`: what the project is, and what holds for all of its programs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tilusbuild.manifest.table import (
    AnyValue,
    Duration,
    Entries,
    Table,
    Text,
    entries,
    fault,
    kind_of,
    not_boolean,
    shorthand,
)

Level = Annotated[Literal[0, 1, 2], BeforeValidator(not_boolean)]


class ProjectSection(Table):
    """What the project is. Nothing of it enters a program's hash."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")] = Field(
        description="The project's name: letters, digits, `.`, `_` and `-`.",
        examples=["attention-kernels"],
    )
    version: Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.+_-]*$")] = Field(
        description="The project's version, which packages carry.", examples=["0.1.0"]
    )
    description: str | None = Field(
        None, description="One line for people.", examples=["Attention for small batches"]
    )


class IncludeDir(Table):
    """A folder that `#include` searches: of the project, or of an installed Python package.

    Written as a path, or as `{ package = …, path = … }`. A folder of the project is named relative
    to the manifest; it may lie outside the project, and `~` is the home folder. A package's folder
    is found without importing the package, when a build needs it.
    """

    path: Text = Field(
        description="The folder: relative to the manifest, or to the package's own folder.",
        examples=["include"],
    )
    package: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")] | None = Field(
        None,
        description="An installed Python package (its import name) that holds the folder.",
        examples=["cutlass_library"],
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> object:
        if not isinstance(value, (str, dict)):
            raise fault(
                f"must be a path or a table, not {kind_of(value)}",
                'as in "include" or { package = "cutlass_library", path = "source/include" }',
            )
        return shorthand("path", str)(value)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return or_shorthand(cls, core, handler, {"type": "string", "minLength": 1})


class BuildSection(Table):
    """What holds for every program of the project."""

    cache_dir: Text | None = Field(
        None,
        description="The cache tree's folder, relative to the manifest; `~` is the home folder. "
        "Without it: `.cache` at the root of the git repository that holds the manifest, else "
        "`~/.cache/tilus`. `--cache-dir` and `TILUSBUILD_CACHE_DIR` go before it.",
        examples=[".cache"],
    )
    jobs: int | None = Field(
        None,
        ge=1,
        description="How many compilers run at once. Without it: one for each core that this "
        "process may use. `-j` and `TILUSBUILD_JOBS` go before it.",
        examples=[8],
    )
    load_average: Annotated[float, BeforeValidator(not_boolean), Field(gt=0)] | None = Field(
        None,
        description="While the load average is so high, no compiler is started beside one that "
        "runs. Without it: no limit. `-l` and `TILUSBUILD_LOAD_AVERAGE` go before it.",
        examples=[16.0],
    )
    nice: Annotated[int, BeforeValidator(not_boolean), Field(ge=0, le=19)] | None = Field(
        None,
        description="How much less urgent than other processes the compilers are, as `nice -n`. "
        "Without it: 0. `--nice` and `TILUSBUILD_NICE` go before it.",
        examples=[10],
    )
    level: Level | None = Field(
        None,
        description="How much of each tuning space is built: 0 the default schedule only, 1 a "
        "sample, 2 all. Without it: 2. `--level` and `TILUSBUILD_LEVEL` go before it.",
        examples=[1],
    )
    include_dirs: tuple[IncludeDir, ...] = Field(
        (),
        description="Folders that `#include` searches, in order, after the script's own.",
        examples=[["include", {"package": "cutlass_library", "path": "source/include"}]],
    )
    headers: tuple[Text, ...] = Field(
        (),
        description="Patterns of headers, relative to the include folders, that programs may "
        "include by a computed name (`#include MACRO`), which cannot be read off the source.",
        examples=[["generated/*.cuh"]],
    )
    flags: tuple[Text, ...] = Field(
        (),
        description="Arguments for the device compiler, one an item. The `cpu` target, which has "
        "another compiler, takes those of its own `[target.NAME]` only.",
        examples=[["-O3", "-lineinfo"]],
    )
    defines: Entries[AnyValue] = Field(
        default_factory=entries,
        description="Preprocessor macros, for every target. `true` defines a macro as 1; `false` "
        "leaves out one that would be inherited.",
        examples=[{"NDEBUG": 1}],
    )
    line_directives: bool = Field(
        False,
        description="Compile with `#line` directives, so that debuggers and profilers show the "
        "template. Then an edit that moves lines compiles again, also where it changes no code.",
    )
    timeout: Duration = Field(
        600.0,
        description="How long one compile may take before it is stopped.",
        examples=["10m"],
    )


def or_shorthand(
    cls: type[Table], core: CoreSchema, handler: GetJsonSchemaHandler, *short: dict[str, Any]
) -> JsonSchemaValue:
    """The schema of a table that also has shorter spellings."""
    table = handler.resolve_ref_schema(handler(core))
    described: JsonSchemaValue = {"description": table.pop("description", "")}
    return {**described, "anyOf": [*short, table]}
