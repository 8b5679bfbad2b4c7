"""A project of two scripts in every carrier, a small list by hand, and keys."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from support.packed import _built, listed, packed

__all__ = ["_built", "listed", "packed"]

KEYS: dict[str, Callable[[], Any]] = {
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "other": ed25519.Ed25519PrivateKey.generate,
    "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
}


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with NAME.pem and NAME.pub of each key."""
    directory = tmp_path_factory.mktemp("keys")
    pem = serialization.Encoding.PEM
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    for name, generate in KEYS.items():
        key = generate()
        (directory / f"{name}.pem").write_bytes(key.private_bytes(pem, pkcs8, plain))
        (directory / f"{name}.pub").write_bytes(key.public_key().public_bytes(pem, spki))
    return directory
