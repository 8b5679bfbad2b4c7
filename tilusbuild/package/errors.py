"""The errors of packages. Each ends a command with exit status 1.

The type says what was refused; the message names the file and what is expected.
"""

from __future__ import annotations

from typing import ClassVar

from tilusbuild.errors import TilusbuildError


class PackageError(TilusbuildError):
    """A package cannot be made, or does not pass its checks."""

    kind: ClassVar[str] = "Package"
    """The name that `verify` reports, in text and in JSON: the class's, without `Error`."""

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.removesuffix("Error")

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.named = False
        """Whether the message has the package's path."""

    def render(self) -> str:
        hint = "".join(f"\n  {line}" for line in (self.hint or "").splitlines())
        return f"error: {self}{hint}"


class CannotPackError(PackageError):
    """The cache does not hold what the package should, or the result is too large or cannot be put
    there."""


class NoPackageError(PackageError):
    """There is no package here, or none in a known format."""


class MalformedListError(PackageError):
    """`tilus-package.json` is not what a packer writes: in form, size or content."""


class UnsafeNameError(PackageError):
    """A name that could lead out of the package, or that two files would share."""


class UnsafeEntryError(PackageError):
    """Something in a container that is not a plain file: a link, a device, a pipe."""


class OverLimitError(PackageError):
    """More bytes, more files or a larger window than a package may ask for."""


class TruncatedError(PackageError):
    """A container is truncated or corrupt."""


class MissingFileError(PackageError):
    """A listed file is missing."""


class UnlistedFileError(PackageError):
    """A file that the list does not name, or one that comes twice."""


class ChangedFileError(PackageError):
    """A file has another size or digest than listed."""


class InconsistentError(PackageError):
    """Files are as listed, and do not belong together or to their names."""


class CodeMismatchError(PackageError):
    """A library holds other GPU code than listed."""


class NotReproducedError(PackageError):
    """A program compiled again gave other bytes."""


class CannotInstallError(PackageError):
    """The place that a foreign cache belongs to cannot be written."""


class PackageSignatureError(PackageError):
    """The package is not signed, or not in a form that is known, or by another signer, or the
    signature is about another list."""
