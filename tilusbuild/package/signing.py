"""Signatures of packages: DSSE envelopes around the statements of `attest`, made and checked.

With a local key nothing is asked of a network, nor is when a signature is checked. Keyless signing
asks Sigstore for a certificate of the identity that runs it, and checking such a signature uses
the trusted root that was last fetched. A signature counts only when it is over this very list:
whoever checks compares the subject with the sha256 of the bytes that lie there.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.package import attest, names
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import SignatureRefused
from tilusbuild.state.hashing import sha256_bytes

_DSSE = "payloadType"
_INSTALL = "pip install 'tilusbuild[sign]'"
_MOST_KEY = 64 << 10

Sign = Callable[[bytes], bytes]
"""From a statement to the file that carries it, signed."""


class NotSigned(SignatureRefused):
    """There is no signature."""


class SignatureUnknown(SignatureRefused):
    """A signature of a form, or with an algorithm, that is not known here."""


class WrongSigner(SignatureRefused):
    """Somebody else signed, or what was signed is not what is there."""


class SignedOther(SignatureRefused):
    """The signature is good, and about another package: this one's list was changed since."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Whose signature is asked for: a public key's (a PEM file), or an identity's as `issuer`
    vouches for it."""

    key: str | None = None
    identity: str | None = None
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class Signed:
    """Who signed, and what of the attestations is signed too, as predicates by their names."""

    by: str
    digest: str
    predicates: Mapping[str, Mapping[str, Any]]


def attester(signer: str) -> Callable[[Contents], Mapping[str, bytes]]:
    """What attests a package: `signer` is the PEM file of a private key, or "keyless".

    Raises `InputError` for what is no key, `TilusbuildError` where a library is missing.
    """
    sign = _keyless() if signer == "keyless" else _with_key(signer)
    _library("cyclonedx", "attest")
    return lambda contents: {
        name: sign(statement) for name, statement in attest.statements(contents).items()
    }


def check_signature(list_bytes: bytes, attestations: Mapping[str, bytes], policy: Policy) -> Signed:
    """Check every attestation of a package against the list and the policy.

    Raises `NotSigned`, `SignatureUnknown`, `WrongSigner`, `SignedOther`; `InputError` for a policy
    that is none; `TilusbuildError` where a library is missing.
    """
    if names.SIGNATURE not in attestations:
        raise NotSigned("the package is not signed", hint="`package --sign` signs one")
    digest = sha256_bytes(list_bytes)
    verify = _by_key(policy.key) if policy.key is not None else _by_identity(policy)
    predicates = {}
    for name, data in sorted(attestations.items()):
        statement = _statement(name, verify(name, data))
        if statement["predicateType"] != attest.PREDICATES.get(name):
            raise SignatureUnknown(f"{name} attests {statement['predicateType']!r:.80}")
        if {"name": names.LIST, "digest": {"sha256": digest}} not in statement["subject"]:
            raise SignedOther(
                f"{name} is about another package: {names.LIST} here has sha256 {digest}"
            )
        predicates[name] = statement["predicate"]
    return Signed(policy.key or policy.identity or "", digest, predicates)


def _statement(name: str, payload: bytes) -> dict[str, Any]:
    try:
        statement = json.loads(payload)
        known = statement["_type"] == attest.STATEMENT and isinstance(statement["subject"], list)
        if not known or not isinstance(statement["predicate"], dict):
            raise ValueError("no in-toto statement")
        return {**statement, "predicateType": str(statement["predicateType"])}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise SignatureUnknown(f"{name} carries no in-toto statement v1: {error}") from None


# Local keys.


def _with_key(path: str) -> Sign:
    serialization = _library("cryptography.hazmat.primitives.serialization")
    signers = _library("securesystemslib.signer")
    try:
        private = serialization.load_pem_private_key(_pem(path), None)
        signer = signers.CryptoSigner(private)
    except Exception as error:
        raise input_error(
            f"{path}: no private key that can sign: {error}",
            hint="a PEM file without a password, of an Ed25519 or ECDSA key, as of"
            " `openssl genpkey -algorithm ed25519`",
        ) from None

    def sign(statement: bytes) -> bytes:
        envelope = _library("securesystemslib.dsse").Envelope(statement, attest.PAYLOAD, {})
        envelope.sign(signer)
        return _text(envelope.to_dict())

    return sign


def _by_key(path: str) -> Callable[[str, bytes], bytes]:
    serialization = _library("cryptography.hazmat.primitives.serialization")
    signers = _library("securesystemslib.signer")
    try:
        key = signers.SSlibKey.from_crypto(serialization.load_pem_public_key(_pem(path)))
    except Exception as error:
        raise input_error(f"{path}: no public key: {error}", hint="a PEM file") from None

    def verify(name: str, data: bytes) -> bytes:
        envelope = _envelope(name, data)
        try:
            envelope.verify([key], 1)
        except Exception:
            raise WrongSigner(f"{name} is not signed by {path}, or was changed since") from None
        payload: bytes = envelope.payload
        return payload

    return verify


def _envelope(name: str, data: bytes) -> Any:
    try:
        value = json.loads(data)
        if value[_DSSE] != attest.PAYLOAD:
            raise ValueError(f"a payload of type {value[_DSSE]!r:.80}")
        return _library("securesystemslib.dsse").Envelope.from_dict(value)
    except TilusbuildError:
        raise
    except Exception as error:
        raise SignatureUnknown(f"{name} is no DSSE envelope: {error!r:.200}") from None


def _pem(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_KEY)
    except OSError as error:
        raise input_error(f"{path}: {error.strerror}") from None


def _text(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# Keyless, through Sigstore.


def _keyless() -> Sign:
    oidc, signing = _library("sigstore.oidc"), _library("sigstore.sign")
    token = oidc.detect_credential()
    if token is None:
        raise input_error(
            "--sign keyless: no identity here",
            hint="it takes a workflow that may ask for one (`id-token: write`); or a key's file",
        )
    config = _library("sigstore.models").ClientTrustConfig.production()
    context = signing.SigningContext.from_trust_config(config)

    def sign(statement: bytes) -> bytes:
        made = _library("sigstore.dsse").Statement(statement)
        with context.signer(oidc.IdentityToken(token)) as signer:
            bundle: str = signer.sign_dsse(made).to_json()
        return bundle.encode()

    return sign


def _by_identity(policy: Policy) -> Callable[[str, bytes], bytes]:
    if policy.identity is None or policy.issuer is None:
        raise input_error(
            "whose signature is to be asked for?", hint="--key PEM, or --identity and --issuer"
        )
    models, checks = _library("sigstore.models"), _library("sigstore.verify")
    wanted = checks.policy.Identity(identity=policy.identity, issuer=policy.issuer)

    def verify(name: str, data: bytes) -> bytes:
        try:
            bundle = models.Bundle.from_json(data)
        except Exception as error:
            raise SignatureUnknown(f"{name} is no Sigstore bundle: {error!r:.200}") from None
        try:
            kind, payload = checks.Verifier.production(offline=True).verify_dsse(bundle, wanted)
        except Exception as error:
            raise WrongSigner(f"{name} is not signed by {policy.identity}: {error}") from None
        if kind != attest.PAYLOAD:
            raise SignatureUnknown(f"{name} holds a payload of type {kind!r:.80}")
        found: bytes = payload
        return found

    return verify


def _library(name: str, what: str = "signatures") -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TilusbuildError(f"{what} need {error.name}\n  {_INSTALL}") from None
