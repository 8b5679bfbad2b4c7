"""The errors of packages. Each ends a command with exit status 1.

The type says what was refused; the message names the file and what is expected.
"""

from __future__ import annotations

from typing import ClassVar

from tilusbuild.errors import TilusbuildError


class PackageError(TilusbuildError):
    """A package cannot be made, or does not pass its checks."""

    kind: ClassVar[str] = "PackageError"
    """The name that `verify` reports, in text and in JSON. It outlives the names of the classes."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.named = False
        """Whether the message has the package's path."""

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
    """There is no package here, or none in a known format."""

    kind = "NoPackage"


class MalformedListError(PackageError):
    """`tilus-package.json` is not what a packer writes: in form, size or content."""

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
    """A container is truncated or corrupt."""

    kind = "Truncated"


class MissingFileError(PackageError):
    """A listed file is missing."""

    kind = "FileMissing"


class UnlistedFileError(PackageError):
    """A file that the list does not name, or one that comes twice."""

    kind = "FileUnlisted"


class ChangedFileError(PackageError):
    """A file has another size or digest than listed."""

    kind = "FileChanged"


class InconsistentError(PackageError):
    """Files are as listed, and do not belong together or to their names."""

    kind = "Incoherent"


class CodeMismatchError(PackageError):
    """A library holds other GPU code than listed."""

    kind = "CodeMismatch"


class NotReproducedError(PackageError):
    """A program compiled again gave other bytes."""

    kind = "NotReproduced"


class CannotInstallError(PackageError):
    """The place that a foreign cache belongs to cannot be written."""

    kind = "CannotInstall"


class PackageSignatureError(PackageError):
    """The signature is missing, corrupt, or by another signer."""

    kind = "SignatureRefused"


class UnsignedPackageError(PackageSignatureError):
    """There is no signature."""

    kind = "NotSigned"


class UnknownSignatureError(PackageSignatureError):
    """A signature of a form, or with an algorithm, that is not known here."""

    kind = "SignatureUnknown"


class OtherSignerError(PackageSignatureError):
    """The signature is by another signer, or the signed text was changed."""

    kind = "WrongSigner"


class OtherListSignedError(PackageSignatureError):
    """The signature is valid for another list: this one was changed since it was signed."""

    kind = "SignedOther"
