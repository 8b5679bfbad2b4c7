"""What can be wrong with a package, each as a type of its own. All end a command with status 1.

The types say what was refused; the text names the file in question and says what would be right.
"""

from __future__ import annotations

from typing import ClassVar

from tilusbuild.errors import TilusbuildError


class PackageError(TilusbuildError):
    """A package cannot be made, or what is there is not a package that can be trusted."""

    kind: ClassVar[str] = "PackageError"
    """The name that `verify` reports, in text and in JSON. It outlives the names of the classes."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def render(self) -> str:
        hint = "".join(f"\n  {line}" for line in (self.hint or "").splitlines())
        return f"error: {self}{hint}"


class CannotPackError(PackageError):
    """The cache does not hold what the package should, or the result cannot be put there."""

    kind = "CannotPack"


class TooLargeError(PackageError):
    """A format of the package exceeds `max-size`."""

    kind = "TooLarge"


class NoPackageError(PackageError):
    """There is no package here, or it is in no format that is known."""

    kind = "NoPackage"


class MalformedListError(PackageError):
    """`tilus-package.json` is not what a packer writes: its form, its limits, or what it says."""

    kind = "ListMalformed"


class UnsafeNameError(PackageError):
    """A name that could lead out of the package, or that two files would share."""

    kind = "UnsafeName"


class UnsafeEntryError(PackageError):
    """Something in a container that is not a plain file: a link, a device, a pipe."""

    kind = "UnsafeEntry"


class OverLimitError(PackageError):
    """More bytes, more files or a larger window than a package may ask for."""

    kind = "OverLimit"


class TruncatedError(PackageError):
    """A container ends before all of it was there, or is damaged."""

    kind = "Truncated"


class MissingFileError(PackageError):
    """A listed file is missing."""

    kind = "FileMissing"


class UnlistedFileError(PackageError):
    """A file is there that the list does not name, or one is there twice."""

    kind = "FileUnlisted"


class ChangedFileError(PackageError):
    """A file has not the size or the digest that the list gives."""

    kind = "FileChanged"


class InconsistentError(PackageError):
    """Files that are what the list says, and do not belong together or to their names."""

    kind = "Incoherent"


class CodeMismatchError(PackageError):
    """A library holds other GPU code than the list says."""

    kind = "CodeMismatch"


class NotReproducedError(PackageError):
    """A program compiled again gave other bytes."""

    kind = "NotReproduced"


class CannotInstallError(PackageError):
    """The place that a foreign cache belongs to cannot be written."""

    kind = "CannotInstall"


class PackageSignatureError(PackageError):
    """No signature, a damaged one, or one of somebody else."""

    kind = "SignatureRefused"


class UnsignedPackageError(PackageSignatureError):
    """There is no signature."""

    kind = "NotSigned"


class UnknownSignatureError(PackageSignatureError):
    """A signature of a form, or with an algorithm, that is not known here."""

    kind = "SignatureUnknown"


class OtherSignerError(PackageSignatureError):
    """Somebody else signed, or what was signed is not what is there."""

    kind = "WrongSigner"


class OtherListSignedError(PackageSignatureError):
    """The signature is good, and about another package: this one's list was changed since."""

    kind = "SignedOther"
