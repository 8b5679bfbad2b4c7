"""`tilusbuild schema`: the JSON schema of tilus.toml, for editors."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tilusbuild.cli.arguments import Common, Verb


@dataclass(frozen=True, kw_only=True)
class SchemaArgs(Common):
    """No options of its own."""


def run(arguments: SchemaArgs) -> int:
    """Print the schema to stdout."""
    from tilusbuild.manifest import schema

    print(json.dumps(schema(), indent=2, ensure_ascii=False))
    return 0


VERB = Verb(SchemaArgs, run)
