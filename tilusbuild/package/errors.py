"""What can be wrong with a package, each as a type of its own. All end a command with status 1.

The types tell what was refused; the text names the file in question and says what would be right.
"""

from __future__ import annotations

from tilusbuild.errors import TilusbuildError


class PackageError(TilusbuildError):
    """A package cannot be made, or what is there is no package that can be trusted."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def render(self) -> str:
        hint = "".join(f"\n  {line}" for line in (self.hint or "").splitlines())
        return f"error: {self}{hint}"


class CannotPack(PackageError):  # noqa: N818 - named for what is the case
    """The cache does not hold what the package should, or the result cannot be put there."""


class TooLarge(PackageError):  # noqa: N818 - named for what is the case
    """A carrier exceeds `max-size`."""


class NoPackage(PackageError):  # noqa: N818 - named for what is the case
    """There is no package here, or it is of no kind that is known."""


class ListMalformed(PackageError):  # noqa: N818 - named for what is the case
    """`tilus-package.json` is not what a packer writes: its form, its limits, or what it says."""


class UnsafeName(PackageError):  # noqa: N818 - named for what is the case
    """A name that could lead out of the package, or that two files would share."""


class UnsafeEntry(PackageError):  # noqa: N818 - named for what is the case
    """Something in a carrier that is no plain file: a link, a device, a pipe."""


class OverLimit(PackageError):  # noqa: N818 - named for what is the case
    """More bytes, more files or a larger window than a package may ask for."""


class Truncated(PackageError):  # noqa: N818 - named for what is the case
    """A carrier ends before all of it was there, or its container is damaged."""


class FileMissing(PackageError):  # noqa: N818 - named for what is the case
    """A listed file is not there."""


class FileUnlisted(PackageError):  # noqa: N818 - named for what is the case
    """A file is there that the list does not name, or one is there twice."""


class FileChanged(PackageError):  # noqa: N818 - named for what is the case
    """A file has not the size or the digest that the list gives."""


class Incoherent(PackageError):  # noqa: N818 - named for what is the case
    """Files that are what the list says, and do not belong together or to their names."""


class CodeMismatch(PackageError):  # noqa: N818 - named for what is the case
    """A library holds other GPU code than the list says."""


class NotReproduced(PackageError):  # noqa: N818 - named for what is the case
    """A program compiled again gave other bytes."""


class CannotInstall(PackageError):  # noqa: N818 - named for what is the case
    """The place that a cache of another system belongs to cannot be written."""


class SignatureRefused(PackageError):  # noqa: N818 - named for what is the case
    """No signature, a damaged one, or one of somebody else."""
