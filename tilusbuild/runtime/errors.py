"""Why a kernel could not be loaded or chosen, each as a type of its own.

All are `LoadError`s, and say what would help. What a library says of a call's arguments
(`TypeError`, `ValueError`) is passed on as it is.
"""

from __future__ import annotations


class LoadError(RuntimeError):
    """No kernel can be had; the text says why."""


class ScriptNotFoundError(LoadError):
    """There is no script of this name, or none with these constants, in the places looked in."""


class AmbiguousScriptError(LoadError):
    """Several instances or projects fit: the text says what to add."""


class ProgramNotFoundError(LoadError):
    """Nothing runs on the device. `trace` has a reason for each candidate."""

    def __init__(self, message: str, trace: tuple[str, ...] = ()) -> None:
        super().__init__("\n  ".join([message, *trace]))
        self.trace = trace


class CorruptCacheError(LoadError):
    """A file of the tree is cut short, malformed, or not what its seal says."""


class CorruptTableError(CorruptCacheError):
    """The dispatch table is no table: cut short, or of another form."""


class TableOutOfRangeError(CorruptTableError):
    """The dispatch table names a program that there is not, or that was not built."""


class WrongDeviceTableError(LoadError):
    """Every dispatch table of the script was measured on another device, or for another script."""


class LibraryChangedError(CorruptCacheError):
    """A library's bytes are not those that were built."""


class RuleError(LoadError):
    """A rule or a model of the manifest has no value at these sizes."""
