"""Checks of toolchains with a name: what asks for one names one that is declared."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tilusbuild.errors import did_you_mean
from tilusbuild.manifest.checks import Checks
from tilusbuild.manifest.names import TABLE_NAME
from tilusbuild.manifest.scanner import Path

NAMED = ("toolchain", "named")


def check_toolchains(checks: Checks) -> None:
    """Check the names of toolchains, where they are declared and where they are asked for."""
    known = checks.keys_in(*NAMED)
    for name in known:
        if not TABLE_NAME.fullmatch(name):
            checks.error(
                f'"{name}" cannot name a toolchain',
                partial(checks.document.key, *NAMED, name),
                "a name is made of letters, digits, _, - and ., and starts with a letter, a digit "
                "or _",
            )
    for path, name in _asked_for(checks):
        if name not in known:
            hint = did_you_mean(name, known)
            checks.error(
                f'unknown toolchain "{name}"',
                partial(checks.document.value, *path, "toolchain"),
                hint or f"a toolchain is declared as [toolchain.named.{name}]",
            )


def _asked_for(checks: Checks) -> Iterator[tuple[Path, str]]:
    """Yield each table that names a toolchain, and the name."""
    manifest = checks.manifest
    tables = (
        *((path, script.toolchain) for path, _, script in checks.scripts()),
        *((("library", name), each.toolchain) for name, each in manifest.libraries.items()),
        *((("target", name), each.toolchain) for name, each in manifest.targets.items()),
    )
    yield from ((path, name) for path, name in tables if name is not None)
