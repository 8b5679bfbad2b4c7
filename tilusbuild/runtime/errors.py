"""The errors of loading and choosing a kernel.

    LoadError                     no kernel can be had
      ScriptNotFoundError         no script of this name, or no instance with these constants
      UntrustedPlaceError         the place that was found belongs to another user
      AmbiguousScriptError        several instances or projects fit
      ProgramNotFoundError        nothing runs on the device
        RefusedProgramError       what is to be chosen computed wrong or crashed when it was tuned
      CorruptCacheError           a file is cut short, malformed or does not match its checksum
        LibraryChangedError       a library is not the one that was built
        CorruptTableError         the dispatch table cannot be read
          TableOutOfRangeError    the dispatch table names a program that does not exist
      WrongDeviceTableError       every dispatch table is of another device
      RuleError                   a rule or a model has no value
    DriverError                   the CUDA driver is missing, or a call of it failed

Each message says what would help. What a library reports about a call's arguments (`TypeError`,
`ValueError`) is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Iterable


class LoadError(RuntimeError):
    """No kernel can be had; the text says why."""


class ScriptNotFoundError(LoadError):
    """There is no script of this name, or none with these constants, in the places searched."""


class UntrustedPlaceError(LoadError):
    """The project or cache that was found by looking upwards belongs to another user."""


class AmbiguousScriptError(LoadError):
    """Several instances or projects fit: the text says what to add."""


class ProgramNotFoundError(LoadError):
    """Nothing runs on the device. `trace` has a reason for each candidate."""

    def __init__(self, message: str, trace: tuple[str, ...] = ()) -> None:
        super().__init__("\n  ".join([message, *trace]))
        self.trace = trace


class RefusedProgramError(ProgramNotFoundError):
    """A rule, a row by hand or the default means a program that computed wrong or crashed."""


class CorruptCacheError(LoadError):
    """A file of the tree is cut short, malformed, or not what its seal says."""


class CorruptTableError(CorruptCacheError):
    """The dispatch table is not a table: cut short, or of another form."""


class TableOutOfRangeError(CorruptTableError):
    """The dispatch table names a program that there is not, or that was not built."""


class WrongDeviceTableError(LoadError):
    """Every dispatch table of the script was measured on another device, or for another script."""


class LibraryChangedError(CorruptCacheError):
    """A library's bytes are not those that were built."""


class RuleError(LoadError):
    """A rule or a model of the manifest has no value at these sizes."""


class DriverError(RuntimeError):
    """The CUDA driver is missing or refused a call; the text names the function and the error."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return words to add to an error: the nearest known name, or all of them; "" without any."""
    import difflib

    words = sorted(set(known))
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{near[0]}"?'
    return f"there is {', '.join(words[:24])}" if words else ""
