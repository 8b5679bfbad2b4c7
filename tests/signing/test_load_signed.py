"""`load` that accepts only what a key signed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilusbuild.cli.main import main
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import PackageError
from tilusbuild.package.listing import parse_list
from tilusbuild.runtime import signed
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.loading import load
from tilusbuild.signing import dsse as signing
from tilusbuild.signing.dsse import make_attester


@pytest.fixture
def key(request: pytest.FixtureRequest, keys: Path) -> Path:
    return keys / f"{getattr(request, 'param', 'ed25519')}.pub"


@pytest.fixture
def package(packed: Path, tmp_path: Path, key: Path) -> Path:
    """A package as a directory, signed."""
    (packed_directory,) = [path.parent for path in packed.glob("*/tilus-package.json")][:1]
    directory = Path(shutil.copytree(packed_directory, tmp_path / "package"))
    sign(directory, key)
    return directory


def sign(directory: Path, key: Path) -> None:
    encoded = (directory / "tilus-package.json").read_bytes()
    contents = Contents(parse_list(encoded), encoded, {}, {})
    for name, data in make_attester(str(key.with_suffix(".pem")))(contents).items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(data)


def script_of(directory: Path) -> str:
    return min(path.name for path in (directory / "scripts").iterdir())


def loaded(directory: Path, key: Path) -> Any:
    (script,) = sorted(directory.glob(f"scripts/{script_of(directory)}/*"))[:1]
    signed.check_signatures([str(script)], str(key))
    return script


@pytest.mark.parametrize("key", ["ed25519", "p384", "rsa"], indirect=True)
def test_load_asks_for_the_signature(package, key, monkeypatch) -> None:
    loaded(package, key)
    with pytest.raises(LoadError, match="is not signed by"):
        load(script_of(package), where=package, signed_by=str(key.with_name("other.pub")))
    monkeypatch.setenv("TILUSBUILD_REQUIRE_SIGNED", str(key.with_name("other.pub")))
    with pytest.raises(LoadError, match="is not signed by"):
        load(script_of(package), where=package)


def flip(name: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (path,) = sorted(directory.glob(name))[:1]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return change


def add_table(directory: Path) -> None:
    for script in directory.glob("scripts/*/*"):
        (script / "dispatch").mkdir(exist_ok=True)
        (script / "dispatch/more.so").write_text("")


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {**s, "_type": "https://in-toto.io/Statement/v0.1"},
        lambda s: {**s, "subject": [{**s["subject"][0], "name": "other.json"}]},
        lambda s: {**s, "subject": [{"digest": s["subject"][0]["digest"]}]},
        lambda s: {**s, "predicateType": "https://slsa.dev/provenance/v1"},
    ],
)
def test_a_statement_of_another_kind_or_subject_is_refused(
    package: Path, key: Path, change: Callable[[dict[str, Any]], Any], monkeypatch: Any
) -> None:
    real = signing.make_statements
    edited = lambda contents: {  # noqa: E731
        name: json.dumps(change(json.loads(data))).encode() for name, data in real(contents).items()
    }
    monkeypatch.setattr(signing, "make_statements", edited)
    sign(package, key)
    with pytest.raises(LoadError):
        loaded(package, key)


def test_two_signers_at_once_are_a_mistake(package, key, capsys) -> None:
    for more in (["--identity", "a@b.c", "--issuer", "https://i"], ["--issuer", "https://i"]):
        for verb in ("verify", "install"):
            assert main([verb, str(package), "--key", str(key), *more]) == 2
            assert "name one signer" in capsys.readouterr().err


SIGNATURE = "attestations/signature.json"


def edit_envelope(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        envelope = json.loads((directory / SIGNATURE).read_bytes())
        change(envelope)
        (directory / SIGNATURE).write_text(json.dumps(envelope))

    return edit


def append_to_list(directory: Path) -> None:
    path = directory / "tilus-package.json"
    path.write_bytes(path.read_bytes() + b"\n")


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no signature": (lambda directory: (directory / SIGNATURE).unlink(), "no signed package"),
    "not JSON": (lambda directory: (directory / SIGNATURE).write_text("x"), "is not a signature"),
    "no signatures": (edit_envelope(lambda e: e["signatures"].clear()), "is not signed by"),
    "not base64": (edit_envelope(lambda e: e.update(payload="!")), "is not a signature"),
    "another payload": (edit_envelope(lambda e: e.update(payload="e30=")), "is not signed by"),
    "another type": (edit_envelope(lambda e: e.update(payloadType="text")), "is not signed by"),
    "another signature": (
        edit_envelope(lambda e: e["signatures"][0].update(sig="AAAA")),
        "is not signed by",
    ),
    "another attestation": (
        lambda directory: shutil.copy(
            directory / "attestations/provenance.json", directory / SIGNATURE
        ),
        "is for another list",
    ),
    "another list": (append_to_list, "is for another list"),
    "another description": (flip("scripts/*/*/script.json"), "is not what was signed"),
    "another library": (flip("programs/*/module/lib.so"), "is not what was signed"),
    "one file more": (add_table, "is not in the signed list"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_changed_is_refused(package: Path, key: Path, case: str) -> None:
    """By the deployment's check; the builder's is the same for all that is in the envelope."""
    loaded(package, key)
    change, why = CASES[case]
    change(package)
    with pytest.raises(LoadError, match=why):
        signed.check_signatures(map(str, package.glob("scripts/*/*")), str(key))
    content_by_name = {
        n: (package / n).read_bytes() for n in (SIGNATURE,) if (package / n).exists()
    }
    data = (package / "tilus-package.json").read_bytes()
    if why in ("is not a signature", "is not signed by"):
        with pytest.raises(PackageError, match=why):
            signing.check_signature(data, content_by_name, key=str(key))


def test_install_brings_in_what_the_key_signed_and_nothing_else(
    package: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["install", str(package), "--cache-dir", str(tmp_path / "cache"), "--key"]
    assert main([*words, str(key.with_name("other.pub"))]) == 1
    assert "is not signed by" in capsys.readouterr().err
    assert not list((tmp_path / "cache").glob("programs/*"))
    assert main([*words, str(key)]) == 0
    assert list((tmp_path / "cache").glob("programs/*"))
