"""`tilusbuild schema`: the JSON schema of tilus.toml, for editors."""

from __future__ import annotations

import argparse
import json


def configure(parser: argparse.ArgumentParser) -> None:
    """`schema` has no options of its own."""


def run(arguments: argparse.Namespace) -> int:
    """Print the schema to stdout."""
    from tilusbuild.manifest import schema

    print(json.dumps(schema(), indent=2, ensure_ascii=False))
    return 0
