"""The error of packages, which ends a command with exit status 1.

The price of one class: a caller that acts on one kind of error compares `kind`. Only `verify`
prints it; everything else stops.
"""

from __future__ import annotations

from functools import partial

from tilusbuild.errors import TilusbuildError


class PackageError(TilusbuildError):
    """A package cannot be made, or does not pass its checks. The message names the file and the
    expectation. `verify` reports `kind` beside it."""

    def __init__(self, kind: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint
        self.named = False
        """Whether the message has the package's path."""

    def render(self) -> str:
        hint = "".join(f"\n  {line}" for line in (self.hint or "").splitlines())
        return f"error: {self}{hint}"


cannot_pack = partial(PackageError, "CannotPack")
"""Files of the package are missing in the cache, or the result is too large or has no place."""
no_package = partial(PackageError, "NoPackage")
"""A path holds no package, or none in a known format."""
malformed = partial(PackageError, "MalformedList")
"""No packer writes such a `tilus-package.json`: its form, size or content is wrong."""
unsafe_name = partial(PackageError, "UnsafeName")
"""A name that could lead out of the package, or that two files would share."""
unsafe_entry = partial(PackageError, "UnsafeEntry")
"""Something in a container that is not a plain file: a link, a device, a pipe."""
over_limit = partial(PackageError, "OverLimit")
"""More bytes, more files or a larger window than a package may ask for."""
damaged = partial(PackageError, "Truncated")
"""A container is truncated or corrupt."""
unreadable = partial(PackageError, "Unreadable")
"""This process may not read a file, or the disk fails."""
missing = partial(PackageError, "MissingFile")
"""A listed file is missing."""
unlisted = partial(PackageError, "UnlistedFile")
"""A file that the list does not name, or one that comes twice."""
changed = partial(PackageError, "ChangedFile")
"""A file has another size or digest than listed."""
inconsistent = partial(PackageError, "Inconsistent")
"""Files are as listed, and do not belong together or to their names."""
code_mismatch = partial(PackageError, "CodeMismatch")
"""A library holds other GPU code than listed."""
not_reproduced = partial(PackageError, "NotReproduced")
"""A program compiled again gave other bytes."""
cannot_install = partial(PackageError, "CannotInstall")
"""The directory of a foreign cache cannot be written."""
badly_signed = partial(PackageError, "PackageSignature")
"""A package without a signature, or one of an unknown form, of another signer or list."""
