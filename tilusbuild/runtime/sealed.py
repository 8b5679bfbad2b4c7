"""Writes and reads sealed JSON files, which hold a digest of their own content.

The form is canonical (sorted keys, one space of indentation, UTF-8), so equal values have equal
bytes. The last key, `digest`, is the sha256 of the text without it. A file that is cut short or
changed in a single bit does not open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tilusbuild.runtime.regular import sha256_text

_END = b"\n}\n"
_SEAL = b',\n "digest": "'
_SEAL_END = b'"' + _END
_LIMIT = 64 << 20


class CorruptFileError(ValueError):
    """The bytes are not those of a sealed file."""


def encode_canonical(value: Mapping[str, Any]) -> bytes:
    """Return the canonical text of a value. Raises `ValueError` for NaN and infinity."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def seal_json(value: Mapping[str, Any]) -> bytes:
    """Return the file's bytes for a value, which is not empty and has no key `digest`."""
    text = encode_canonical(value)
    if "digest" in value or not text.endswith(_END):
        raise ValueError("only an object that is not empty and has no key `digest` can be sealed")
    return text.removesuffix(_END) + _SEAL + _digest_text(text) + _SEAL_END


def unseal_json(data: bytes) -> dict[str, Any]:
    """Return the value of any bytes, or raise `CorruptFileError`."""
    # The seal stands where the value's text had `_END`, and is looked for from the right: a string
    # of the value may have the same bytes.
    start, seal, digest_and_end = data.rpartition(_SEAL)
    if not seal or not digest_and_end.endswith(_SEAL_END) or len(data) > _LIMIT:
        raise CorruptFileError("no seal")
    if _digest_text(start + _END) + _SEAL_END != digest_and_end:
        raise CorruptFileError("the content is not what was sealed")
    try:
        value = json.loads(start + _END)
    except (ValueError, RecursionError) as error:
        # Sealed, and yet not JSON: a seal is not a signature, and everyone can make one.
        raise CorruptFileError(str(error)) from None
    if not isinstance(value, dict):
        raise CorruptFileError("not an object")
    return value


def _digest_text(text: bytes) -> bytes:
    return sha256_text(text).encode()
