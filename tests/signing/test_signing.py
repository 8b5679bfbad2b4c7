"""Signatures: by the key that is asked for, over this very list; anything else is refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.errors import InputError
from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import PackageError
from tilusbuild.package.listing import FileList
from tilusbuild.signing import dsse as signing
from tilusbuild.signing.dsse import check_signature, make_attester


@pytest.fixture
def contents(listed: FileList) -> Contents:
    return Contents(listed, listed.encode(), {}, {})


@pytest.fixture
def signed(keys: Path, contents: Contents) -> dict[str, bytes]:
    return dict(make_attester(str(keys / "ed25519.pem"))(contents))


@pytest.mark.parametrize("key", ["ed25519", "p256"])
def test_what_a_key_signed_its_public_key_accepts(keys: Path, contents: Contents, key: str) -> None:
    attestations = make_attester(str(keys / f"{key}.pem"))(contents)
    assert set(attestations) == set(names.BESIDE)
    statement_by_name = check_signature(
        contents.encoded, attestations, key=str(keys / f"{key}.pub")
    )
    assert statement_by_name[names.SIGNATURE]["releaseId"] == contents.digest
    assert statement_by_name[names.SBOM]["bomFormat"] == "CycloneDX"


def test_the_same_package_has_the_same_statements_and_ed25519_signatures(
    keys: Path, contents: Contents, signed: dict[str, bytes]
) -> None:
    assert signing.make_statements(contents) == signing.make_statements(contents)
    assert make_attester(str(keys / "ed25519.pem"))(contents) == signed


@given(st.binary() | st.recursive(st.none() | st.text(), st.lists).map(lambda v: str(v).encode()))
def test_an_invalid_envelope_is_refused(keys: Path, data: bytes) -> None:
    with pytest.raises(PackageError):
        check_signature(b"", {names.SIGNATURE: data}, key=str(keys / "ed25519.pub"))


def test_an_invalid_key_is_reported(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "key").write_text("no key")
    for path in (str(tmp_path / "key"), str(tmp_path / "none"), str(keys / "ed25519.pub")):
        with pytest.raises(InputError):
            make_attester(path)
    with pytest.raises(InputError, match="not a public key"):
        check_signature(b"", {names.SIGNATURE: b""}, key=str(tmp_path / "key"))
    with pytest.raises(InputError, match="no signer is named"):
        check_signature(b"", {names.SIGNATURE: b""}, identity="somebody")


def test_the_statements_name_no_host_no_user_and_no_time(contents: Contents) -> None:
    for statement in signing.make_statements(contents).values():
        document = json.loads(statement)
        assert document["subject"] == [{"name": names.LIST, "digest": {"sha256": contents.digest}}]
        assert "timestamp" not in statement.decode().lower()
        assert "startedon" not in statement.decode().lower()
