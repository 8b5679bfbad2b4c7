"""A package that is what its list says verifies in every carrier."""

from __future__ import annotations

from pathlib import Path

from support.packages import Hand, by_hand
from support.project import Project
from tilusbuild.package.check import Verified, verify
from tilusbuild.package.extract import Limits
from tilusbuild.package.read import opened


def verified(path: Path, limits: Limits | None = None) -> Verified:
    with opened(str(path)) as reader:
        return verify(reader, limits or Limits())


def test_a_package_verifies_in_every_format(hand: Hand, carrier: str, tmp_path: Path) -> None:
    found = verified(hand.write(carrier, tmp_path))
    assert found.problems == ()
    assert found.listing == hand.listing


def test_a_package_with_sources_and_attestations_verifies(
    project: Project, carrier: str, tmp_path: Path
) -> None:
    hand = by_hand(project.cache, sources=True)
    hand.beside = {"attestations/signature.json": b"{}", "attestations/sbom.json": b"{}"}
    path = hand.write(carrier, tmp_path)
    assert verified(path).problems == ()
    with opened(str(path)) as reader:
        assert reader.attestations() == hand.beside
