"""Checks that scripts belong to a package that the owner of a key signed.

The signature is over the package's list, which has the digest of every file. All files of the
scripts and of their programs are compared with the list before any is used, so a package with a
changed or an added file is refused. A directory that others may write while the process runs needs
other protection.

Of the runtime only this module imports the `cryptography` library.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.regular import read_bytes, sha256_file, sha256_text
from tilusbuild.runtime.script import parse_listed_programs

LIST, SIGNATURE = "tilus-package.json", "attestations/signature.json"
PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
RELEASE = "https://in-toto.io/attestation/release/v0.1"
_LIMIT = 64 << 20
# The files of a script that Python and C callers read. `script.txt` names the programs.
_READ = ("script.txt", "script.json", "dispatch_table.json", "dispatch")


def check_signatures(scripts: Iterable[str], key: str) -> None:
    """Check the files of these script directories and of their programs against the packages around
    them. `key` is the path of a public key in PEM. Raises `LoadError`."""
    lists: dict[str, Mapping[str, str]] = {}
    for path in scripts:
        # A package's list is read once for all of its scripts.
        root = os.path.dirname(os.path.dirname(os.path.dirname(path)))
        if root not in lists:
            lists[root] = _read_signed_digests(root, key)
        _check_script(root, os.path.relpath(path, root), lists[root])


def _read_signed_digests(root: str, key: str) -> Mapping[str, str]:
    """Return the signed digests of a package's files, by file name. Raises `LoadError`."""
    encoded_list = _read_file(root, LIST)
    signature_path = f"{root}/{SIGNATURE}"
    payload = verify_envelope(signature_path, _read_file(root, SIGNATURE), key)
    # The digest is of the bytes that were read: the file may change afterwards.
    digest = sha256_text(encoded_list)
    try:
        statement = json.loads(payload)
        is_release = (statement["_type"], statement["predicateType"]) == (STATEMENT, RELEASE)
        subjects = list(statement["subject"])
        files = json.loads(encoded_list)["files"]
        digest_of_file = {str(name): str(facts["sha256"]) for name, facts in files.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise LoadError(f"{signature_path} is not about a package: {error!r:.200}") from None
    if not is_release or {"name": LIST, "digest": {"sha256": digest}} not in subjects:
        raise LoadError(f"{root}: the signature is for another list: {LIST} has sha256 {digest}")
    return digest_of_file


def verify_envelope(name: str, envelope: bytes, key: str) -> bytes:
    """Return the payload of a DSSE envelope that the owner of a key signed; `name` is for messages.
    Raises `LoadError`."""
    public = read_public_key(key)
    try:
        value = json.loads(envelope)
        payload = base64.b64decode(value["payload"], validate=True)
        kind = value["payloadType"]
        signatures = [base64.b64decode(s["sig"], validate=True) for s in value["signatures"]]
    except (ValueError, LookupError, TypeError, RecursionError, binascii.Error) as error:
        raise LoadError(f"{name} is not a signature: {error!r:.200}") from None
    message = encode_message(payload)
    is_signed = any(_is_valid_signature(public, signature, message) for signature in signatures)
    if kind != PAYLOAD or not is_signed:
        raise LoadError(f"{name} is not signed by {key}, or was changed since")
    return payload


def encode_message(payload: bytes) -> bytes:
    """Return the bytes that a DSSE signature is over (DSSE v1, "PAE")."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)


def read_public_key(path: str) -> Any:
    """Return the public key in a PEM file. Raises `LoadError`."""
    exceptions = _import_cryptography("exceptions")
    serialization = _import_cryptography("hazmat.primitives.serialization")
    try:
        return serialization.load_pem_public_key(read_bytes(path, _LIMIT))
    except (OSError, ValueError, exceptions.UnsupportedAlgorithm) as error:
        raise LoadError(f"{path} is not a public key: {error}") from None


def choose_scheme(public: Any) -> tuple[Any, ...]:
    """Return the arguments of a key's `sign` and `verify` besides signature and message. Raises
    `LookupError` for a curve without a scheme."""
    hashes = _import_cryptography("hazmat.primitives.hashes")
    curves = _import_cryptography("hazmat.primitives.asymmetric.ec")
    if isinstance(public, curves.EllipticCurvePublicKey):
        sizes = {256: hashes.SHA256, 384: hashes.SHA384, 521: hashes.SHA512}
        return (curves.ECDSA(sizes[public.curve.key_size]()),)
    if isinstance(public, _import_cryptography("hazmat.primitives.asymmetric.rsa").RSAPublicKey):
        padding = _import_cryptography("hazmat.primitives.asymmetric.padding")
        digest = hashes.SHA256()
        return padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH), digest
    return ()  # Ed25519, which has one scheme


def _is_valid_signature(public: Any, signature: bytes, message: bytes) -> bool:
    """Return whether the key's owner signed the message; False for a key that cannot verify."""
    invalid = _import_cryptography("exceptions").InvalidSignature
    try:
        public.verify(signature, message, *choose_scheme(public))
    except (invalid, LookupError, TypeError, AttributeError):
        return False  # a wrong signature, or a key that cannot verify, as one for key exchange
    return True


def _import_cryptography(name: str) -> Any:
    try:
        return importlib.import_module(f"cryptography.{name}")
    except ImportError:
        raise LoadError("checking signatures needs: pip install cryptography") from None


def _check_script(root: str, script: str, digests: Mapping[str, str]) -> None:
    """Compare the files of a script's directory and of its programs with the signed digests. Raise
    `LoadError` for a changed, missing, unreadable or added file."""
    names_to_check = [name for part in _READ for name in _list_files(root, f"{script}/{part}")]
    signed_programs = {name.split("/")[1] for name in digests if name.startswith("programs/")}
    for program in _read_program_hashes(root, script):
        names_on_disk = _list_files(root, f"programs/{program}/meta.json")
        names_on_disk += _list_files(root, f"programs/{program}/module/lib.so")
        # A package may leave a program out, on the disk and in its list: it is not checked then.
        if names_on_disk or program in signed_programs:
            # Signed files are checked, too: one that is missing on the disk is an error below.
            prefix = f"programs/{program}/"
            signed_names = [name for name in digests if name.startswith(prefix)]
            names_to_check += [*names_on_disk, *signed_names]
    for name in dict.fromkeys(names_to_check):
        if name not in digests:
            raise LoadError(f"{root}/{name} is not in the signed list")
        try:
            digest = sha256_file(os.path.join(root, name))
        except OSError as error:
            raise LoadError(f"{root}/{name} cannot be read: {error.strerror}") from None
        if digest != digests[name]:
            raise LoadError(f"{root}/{name} is not what was signed: sha256 {digest}")


def _read_program_hashes(root: str, script: str) -> list[str]:
    programs = parse_listed_programs(_read_file(root, f"{script}/script.txt"))
    # Names of directories, which must not lead out of the package.
    return [digest for digest in programs.values() if len(digest) == 64 and digest.isalnum()]


def _list_files(root: str, name: str) -> list[str]:
    """Return the names, relative to `root`, of a file or of all files below a directory; none if
    `name` does not exist."""
    path = os.path.join(root, name)
    if not os.path.isdir(path):
        return [name] if os.path.lexists(path) else []
    return [
        os.path.relpath(os.path.join(directory, file), root)
        for directory, _, files in os.walk(path)
        for file in files
    ]


def _read_file(root: str, name: str) -> bytes:
    try:
        return read_bytes(os.path.join(root, name), _LIMIT)
    except OSError as error:
        raise LoadError(f"{root}/{name}: {error.strerror}: no signed package") from None
