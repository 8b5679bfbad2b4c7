"""Accepting signed packages only: what is to be loaded was packed by the owner of this key.

The signature is over the package's list, and the list has the digest of every file. All files of
the scripts in question and of their programs are compared with it before any is used, so a package
in which anything was changed or added is refused. This holds for what lies there when it is
loaded: a directory that others may write while the process runs needs other protection.

Checking takes the `cryptography` library, which is imported here and nowhere else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import importlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.library import sha256_of
from tilusbuild.runtime.regular import read_bytes

LIST, SIGNATURE = "tilus-package.json", "attestations/signature.json"
_PAYLOAD = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_RELEASE = "https://in-toto.io/attestation/release/v0.1"
_LIMIT = 64 << 20
_READ = ("script.txt", "script.json", "dispatch_table.json", "dispatch")


class SignatureRefusedError(LoadError):
    """The place is not a package that the key signed, or a file is not what was signed."""


def check(scripts: Iterable[str], key: str) -> None:
    """Check the packages that these script directories are in, as far as they use them.

    `key` is the path of a public key in PEM. Raises `SignatureRefusedError`s, and `LoadError` for
    what is not a key or where the library is missing.
    """
    lists: dict[str, Mapping[str, str]] = {}
    for path in scripts:
        root = os.path.dirname(os.path.dirname(os.path.dirname(path)))
        if root not in lists:
            lists[root] = _listed(root, key)
        _check_script(root, os.path.relpath(path, root), lists[root])


def _listed(root: str, key: str) -> Mapping[str, str]:
    """Return the digests of a package's files, by their names, as they were signed."""
    encoded, envelope = _bytes(root, LIST), _bytes(root, SIGNATURE)
    try:
        value = json.loads(envelope)
        payload = base64.b64decode(value["payload"], validate=True)
        kind = value["payloadType"]
        signatures = [base64.b64decode(each["sig"], validate=True) for each in value["signatures"]]
    except (ValueError, LookupError, TypeError, RecursionError, binascii.Error) as error:
        raise SignatureRefusedError(
            f"{root}/{SIGNATURE} is not a signature: {error!r:.200}"
        ) from None
    message = b"DSSEv1 %d %b %d %b" % (len(_PAYLOAD), _PAYLOAD.encode(), len(payload), payload)
    if kind != _PAYLOAD or not any(_verifies(key, each, message) for each in signatures):
        raise SignatureRefusedError(f"{root} is not signed by {key}, or was changed since")
    digest = hashlib.sha256(encoded).hexdigest()
    try:
        statement = json.loads(payload)
        release = (statement["_type"], statement["predicateType"]) == (_STATEMENT, _RELEASE)
        subjects = list(statement["subject"])
        files = {str(n): str(f["sha256"]) for n, f in json.loads(encoded)["files"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SignatureRefusedError(
            f"{root}/{SIGNATURE} says nothing of a package: {error!r:.200}"
        ) from None
    if not release or {"name": LIST, "digest": {"sha256": digest}} not in subjects:
        raise SignatureRefusedError(
            f"{root}: the signature is of another list: {LIST} has sha256 {digest}"
        )
    return files


def _verifies(path: str, signature: bytes, message: bytes) -> bool:
    try:
        exceptions = importlib.import_module("cryptography.exceptions")
        hashes = importlib.import_module("cryptography.hazmat.primitives.hashes")
        keys = importlib.import_module("cryptography.hazmat.primitives.serialization")
        curves = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ec")
        rsa = importlib.import_module("cryptography.hazmat.primitives.asymmetric.rsa")
        paddings = importlib.import_module("cryptography.hazmat.primitives.asymmetric.padding")
    except ImportError:
        raise LoadError("checking signatures needs: pip install cryptography") from None
    try:
        key: Any = keys.load_pem_public_key(read_bytes(path, _LIMIT))
    except (OSError, ValueError, exceptions.UnsupportedAlgorithm) as error:
        raise LoadError(f"{path} is not a public key: {error}") from None
    try:
        if isinstance(key, curves.EllipticCurvePublicKey):
            sizes = {256: hashes.SHA256, 384: hashes.SHA384, 521: hashes.SHA512}
            key.verify(signature, message, curves.ECDSA(sizes[key.curve.key_size]()))
        elif isinstance(key, rsa.RSAPublicKey):
            hashed = hashes.SHA256()
            salted = paddings.PSS(paddings.MGF1(hashed), paddings.PSS.AUTO)
            key.verify(signature, message, salted, hashed)
        else:
            key.verify(signature, message)
    except (exceptions.InvalidSignature, LookupError, TypeError, AttributeError):
        return False
    return True


def _check_script(root: str, script: str, listed: Mapping[str, str]) -> None:
    present = [name for part in _READ for name in _files(root, f"{script}/{part}")]
    programs = {n.split("/")[1] for n in listed if n.startswith("programs/")}
    for program in _programs_of(root, script):
        names = _files(root, f"programs/{program}/meta.json")
        names += _files(root, f"programs/{program}/module/lib.so")
        if names or program in programs:
            present += [*names, *(n for n in listed if n.startswith(f"programs/{program}/"))]
    for name in dict.fromkeys(present):
        if name not in listed:
            raise SignatureRefusedError(f"{root}/{name} is not in the signed list")
        try:
            found = sha256_of(os.path.join(root, name))
        except OSError as error:
            raise SignatureRefusedError(f"{root}/{name} cannot be read: {error.strerror}") from None
        if found != listed[name]:
            raise SignatureRefusedError(f"{root}/{name} is not what was signed: sha256 {found}")


def _programs_of(root: str, script: str) -> list[str]:
    _, _, lines = _bytes(root, f"{script}/script.txt").partition(b"\n[programs]\n")
    words = [line.rpartition(b" ")[2].decode("ascii", "replace") for line in lines.splitlines()]
    return [word for word in words if len(word) == 64 and word.isalnum()]


def _files(root: str, name: str) -> list[str]:
    """Return the file of this name, or all below the directory of this name."""
    path = os.path.join(root, name)
    if not os.path.isdir(path):
        return [name] if os.path.lexists(path) else []
    return [
        os.path.relpath(os.path.join(where, each), root)
        for where, _, files in os.walk(path)
        for each in files
    ]


def _bytes(root: str, name: str) -> bytes:
    try:
        return read_bytes(os.path.join(root, name), _LIMIT)
    except OSError as error:
        raise SignatureRefusedError(f"{root}/{name}: {error.strerror}: no signed package") from None
