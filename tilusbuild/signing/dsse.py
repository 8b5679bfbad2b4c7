"""Signatures of packages: DSSE envelopes around in-toto statements, made and checked.

Three statements (v1) have one subject, the sha256 of `tilus-package.json`: a release, SLSA
provenance (v1), and a CycloneDX bill of materials. They follow from the list alone, so the same
package has the same statements whoever packs it: no host, no user, no time.

With a local key the network is never used, nor is it when a signature is checked. Keyless signing
asks Sigstore for a certificate of the identity that runs it, and checking such a signature uses
the trusted root that was last fetched. A signature counts only when it is over this very list: its
subject is compared with the sha256 of the list's bytes.
"""

from __future__ import annotations

import base64
import importlib
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import rfc8785

from tilusbuild.errors import TilusbuildError, input_error
from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.errors import badly_signed
from tilusbuild.package.listing import FileList
from tilusbuild.runtime import signed
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.regular import read_bytes
from tilusbuild.state.files import sha256_bytes

SLSA = "https://slsa.dev/provenance/v1"
CYCLONEDX = "https://cyclonedx.org/bom"
BUILD_TYPE = "https://github.com/tilusbuild/tilusbuild/docs/packages.md"
PREDICATES = {names.SIGNATURE: signed.RELEASE, names.PROVENANCE: SLSA, names.SBOM: CYCLONEDX}
"""The type of the statement in each file."""
_INSTALL = "pip install 'tilusbuild[sign]'"
# A path such as /dev/zero would be read without end.
_MAX_KEY_SIZE = 64 << 10

SignStatement = Callable[[bytes], bytes]
"""A function from a statement to the bytes of its file, signed."""


def make_attester(signer: str) -> Callable[[Contents], Mapping[str, bytes]]:
    """Return a function from a package to its signed attestations, by file name. `signer` is the
    PEM file of a private key, or "keyless".

    Raises `InputError` for a file that is not a private key, and `TilusbuildError` when a library
    is not installed.
    """
    sign = _make_keyless_signer() if signer == "keyless" else _make_key_signer(signer)
    return lambda contents: {
        name: sign(statement) for name, statement in make_statements(contents).items()
    }


def check_signature(
    list_bytes: bytes,
    attestations: Mapping[str, bytes],
    *,
    key: str | None = None,
    identity: str | None = None,
    issuer: str | None = None,
) -> Mapping[str, Mapping[str, Any]]:
    """Check every attestation of a package against the list and the accepted signer: a public key
    (a PEM file), or an identity that `issuer` vouches for. Return the predicates, by the names of
    the attestations.

    Raises `PackageError`; `InputError` unless one signer is named; `TilusbuildError` when a library
    is not installed.
    """
    if key is not None and (identity or issuer):
        raise input_error(
            "--key and --identity exclude each other: name one signer",
            hint="--key PEM, or --identity WHO with --issuer URL",
        )
    if names.SIGNATURE not in attestations:
        raise badly_signed("the package is not signed", hint="`package --sign` signs one")
    # The digest of the bytes themselves: a parsed list could be encoded to other bytes.
    digest = sha256_bytes(list_bytes)
    verify = _make_identity_verifier(identity, issuer) if key is None else _make_key_verifier(key)
    predicates = {}
    for name, data in sorted(attestations.items()):
        statement = _parse_statement(name, verify(name, data))
        if statement["predicateType"] != PREDICATES.get(name):
            raise badly_signed(f"{name} attests {statement['predicateType']!r:.80}")
        if {"name": names.LIST, "digest": {"sha256": digest}} not in statement["subject"]:
            raise badly_signed(
                f"{name} is about another package: {names.LIST} here has sha256 {digest}"
            )
        predicates[name] = statement["predicate"]
    return predicates


def _parse_statement(name: str, payload: bytes) -> dict[str, Any]:
    """Return an in-toto statement, of which `predicateType` is made a string. Raises
    `PackageError`; `name` is for its message."""
    try:
        statement = json.loads(payload)
        has_subjects = isinstance(statement["subject"], list)
        has_predicate = isinstance(statement["predicate"], dict)
        if statement["_type"] != signed.STATEMENT or not has_subjects or not has_predicate:
            raise ValueError("not an in-toto statement")
        return {**statement, "predicateType": str(statement["predicateType"])}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise badly_signed(f"{name} is not an in-toto statement v1: {error}") from None


# Local keys.


def _make_key_signer(path: str) -> SignStatement:
    """Return a function that signs a statement with the private key in a PEM file, and returns the
    DSSE envelope. Raises `InputError`, `TilusbuildError`."""
    serialization = _import_library("cryptography.hazmat.primitives.serialization")
    try:
        pem = read_bytes(path, _MAX_KEY_SIZE)
    except OSError as error:
        raise input_error(f"{path}: {error.strerror}") from None
    try:
        private_key = serialization.load_pem_private_key(pem, password=None)
        scheme = signed.choose_scheme(private_key.public_key())
        # Called for its error: some kinds of keys cannot sign.
        private_key.sign(b"", *scheme)
    # The library has no common class for its errors.
    except Exception as error:
        raise input_error(
            f"{path}: not a private key that can sign: {error}",
            hint="a PEM file without a password, of an Ed25519 or ECDSA key, as of"
            " `openssl genpkey -algorithm ed25519`",
        ) from None

    def sign(statement: bytes) -> bytes:
        """Return a DSSE envelope with the statement and its signature, as JSON."""
        signature = private_key.sign(signed.encode_message(statement), *scheme)
        envelope = {
            "payload": base64.b64encode(statement).decode(),
            "payloadType": signed.PAYLOAD,
            "signatures": [{"keyid": "", "sig": base64.b64encode(signature).decode()}],
        }
        return json.dumps(envelope, sort_keys=True, separators=(",", ":")).encode()

    return sign


def _make_key_verifier(path: str) -> Callable[[str, bytes], bytes]:
    """Return a function from the name and bytes of an attestation to its payload. The function
    raises `PackageError` if the key did not sign it. Raises `InputError` for a file that is not a
    public key."""
    # Called for its error, before any attestation is read: a wrong key is the caller's mistake, and
    # not a wrong signature.
    try:
        signed.read_public_key(path)
    except LoadError as error:
        raise input_error(str(error), hint="a PEM file") from None

    def verify(name: str, data: bytes) -> bytes:
        try:
            return signed.verify_envelope(name, data, path)
        except LoadError as error:
            raise badly_signed(str(error)) from None

    return verify


# Keyless, through Sigstore.


def _make_keyless_signer() -> SignStatement:
    """Return a function that signs a statement through Sigstore, with the identity of the running
    workflow. Raises `InputError` without an identity."""
    oidc, signing = _import_library("sigstore.oidc"), _import_library("sigstore.sign")
    token = oidc.detect_credential()
    if token is None:
        raise input_error(
            "--sign keyless: no identity here",
            hint="it takes a workflow that may ask for one (`id-token: write`); or a key's file",
        )
    config = _import_library("sigstore.models").ClientTrustConfig.production()
    context = signing.SigningContext.from_trust_config(config)

    def sign(statement: bytes) -> bytes:
        in_toto = _import_library("sigstore.dsse").Statement(statement)
        with context.signer(oidc.IdentityToken(token)) as signer:
            bundle: str = signer.sign_dsse(in_toto).to_json()
        return bundle.encode()

    return sign


def _make_identity_verifier(
    identity: str | None, issuer: str | None
) -> Callable[[str, bytes], bytes]:
    """Return a function from the name and bytes of an attestation to its payload. The function
    raises `PackageError` if the identity did not sign it. Raises `InputError` unless identity and
    issuer are given."""
    if identity is None or issuer is None:
        raise input_error("no signer is named", hint="--key PEM, or --identity and --issuer")
    models, checks = _import_library("sigstore.models"), _import_library("sigstore.verify")
    identity_policy = checks.policy.Identity(identity=identity, issuer=issuer)

    def verify(name: str, data: bytes) -> bytes:
        """Return the payload of a Sigstore bundle. `name` is for messages."""
        try:
            bundle = models.Bundle.from_json(data)
            kind, payload = checks.Verifier.production(offline=True).verify_dsse(
                bundle, identity_policy
            )
        except Exception as error:
            message = f"{name} is not signed by {identity}: {error!r:.200}"
            raise badly_signed(message) from None
        if kind != signed.PAYLOAD:
            raise badly_signed(f"{name} holds a payload of type {kind!r:.80}")
        return bytes(payload)

    return verify


def _import_library(name: str) -> Any:
    """Import an optional module. Raises `TilusbuildError` with the command to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TilusbuildError(f"signatures need {error.name}\n  {_INSTALL}") from None


# The statements on a package: its release, its provenance, its bill of materials.


def make_statements(contents: Contents) -> dict[str, bytes]:
    """Return the in-toto statements of a package, encoded, by the names of their files."""
    listing, digest = contents.listed, contents.digest
    predicates = {
        names.SIGNATURE: {
            "purl": f"pkg:generic/{listing.title}@{listing.version}",
            "releaseId": digest,
        },
        names.PROVENANCE: _describe_provenance(listing),
        names.SBOM: _describe_materials(listing, digest),
    }
    return {
        name: _encode_statement(digest, PREDICATES[name], predicate)
        for name, predicate in predicates.items()
    }


def _encode_statement(digest: str, kind: str, predicate: Mapping[str, Any]) -> bytes:
    """Return an in-toto statement about the list with this sha256, as canonical JSON (RFC 8785)."""
    return rfc8785.dumps(
        {
            "_type": signed.STATEMENT,
            "subject": [{"name": names.LIST, "digest": {"sha256": digest}}],
            "predicateType": kind,
            "predicate": dict(predicate),
        }
    )


def _describe_provenance(listing: FileList) -> dict[str, Any]:
    """Return the SLSA predicate: command, targets, and digests of scripts and toolkits."""
    toolkits = sorted({t.toolkit for t in listing.targets.values() if t.toolkit is not None})
    dependencies: list[dict[str, Any]] = [
        {"name": f"script {entry.script} for {entry.target}", "digest": {"sha256": entry.hash}}
        for entry in listing.scripts
    ]
    dependencies += [{"name": "cuda-toolkit", "annotations": {"version": v}} for v in toolkits]
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "command": ["tilusbuild", "package", listing.name],
                "targets": {name: list(t.archs) for name, t in listing.targets.items()},
            },
            "resolvedDependencies": dependencies,
        },
        "runDetails": {"builder": {"id": f"tilusbuild {listing.tool}"}},
    }


def _describe_materials(listing: FileList, digest: str) -> dict[str, Any]:
    """Return the CycloneDX predicate: the libraries of the package, and those of the host.
    `digest` is the sha256 of the list."""

    def make_component(kind: str, name: str, ref: str, sha256: str | None) -> dict[str, Any]:
        hashes = {"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}
        return {"type": kind, "name": name, "bom-ref": ref, **hashes}

    components = [
        make_component("file", path, path, file.sha256)
        for path, file in listing.files.items()
        if path.endswith(".so")
    ]
    # Libraries of the host have no digest, because another host may have other files.
    components += [
        make_component("library", name, f"host:{name}", None) for name in listing.needs.libraries
    ]
    package = make_component("library", listing.title, digest, digest)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        # Derived from the digest and not random, so that the same package has the same statements.
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{digest}").urn,
        "metadata": {"component": {**package, "version": listing.version}},
        "components": components,
        "dependencies": [
            {"ref": digest, "dependsOn": [component["bom-ref"] for component in components]}
        ],
    }
