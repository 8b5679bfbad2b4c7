"""A package that is what its list says verifies in every carrier."""

from __future__ import annotations

from pathlib import Path

from support.packages import by_hand
from support.project import Project
from tilusbuild.package.check import verify
from tilusbuild.package.extract import Limits
from tilusbuild.package.read import opened


def test_a_package_with_sources_and_attestations_verifies(
    project: Project, carrier: str, tmp_path: Path
) -> None:
    hand = by_hand(project.cache, sources=True)
    hand.beside = {"attestations/signature.json": b"{}", "attestations/sbom.json": b"{}"}
    with opened(str(hand.write(carrier, tmp_path))) as reader:
        found = verify(reader, Limits())
        assert (found.problems, found.listing) == ((), hand.listing)
        assert reader.attestations() == hand.beside
