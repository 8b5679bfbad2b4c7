"""JSON files that know whether they are whole. A deployment reads them too: the form is there."""

from __future__ import annotations

from tilusbuild.runtime.sealed import CorruptFileError, canonical, seal, unseal

__all__ = ["CorruptFileError", "canonical", "seal", "unseal"]
