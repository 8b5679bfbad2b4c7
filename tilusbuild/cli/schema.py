"""`tilusbuild schema`: the JSON schema of tilus.toml, for editors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tilusbuild.cli.arguments import Common, Verb
from tilusbuild.cli.options import emit_line
from tilusbuild.report.jsonl import declare_line

SchemaLine = declare_line("schema", schema=Mapping[str, Any])
"""The JSON schema of a manifest."""


def run(arguments: Common) -> int:
    """Print the schema to stdout."""
    from tilusbuild.manifest.shape import make_schema

    if arguments.json:
        emit_line(SchemaLine(make_schema()))
        return 0
    print(json.dumps(make_schema(), indent=2, ensure_ascii=False))
    return 0


VERB = Verb(Common, run, (SchemaLine,))
