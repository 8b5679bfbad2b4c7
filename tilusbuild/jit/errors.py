"""What a `KernelCache` raises besides `InputError`."""

from __future__ import annotations

from tilusbuild.errors import TilusbuildError


class KernelNotBuilt(TilusbuildError):  # noqa: N818 - named for what is the case
    """The compiler refused the kernel; the text has its messages, in the template's lines."""
