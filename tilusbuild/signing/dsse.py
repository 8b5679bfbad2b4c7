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
"""What each of the files attests."""
_INSTALL = "pip install 'tilusbuild[sign]'"
_MAX_KEY_SIZE = 64 << 10  # a path such as /dev/zero would be read without end

Sign = Callable[[bytes], bytes]
"""From a statement to the bytes of its file, signed."""


def attester(signer: str) -> Callable[[Contents], Mapping[str, bytes]]:
    """Return what attests a package: `signer` is the PEM file of a private key, or "keyless".

    Raises `InputError` for what is not a key, `TilusbuildError` where a library is missing.
    """
    sign = _keyless() if signer == "keyless" else _with_key(signer)
    return lambda contents: {
        name: sign(statement) for name, statement in statements(contents).items()
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
    digest = sha256_bytes(list_bytes)
    verify = _by_identity(identity, issuer) if key is None else _by_key(key)
    predicates = {}
    for name, data in sorted(attestations.items()):
        statement = _statement(name, verify(name, data))
        if statement["predicateType"] != PREDICATES.get(name):
            raise badly_signed(f"{name} attests {statement['predicateType']!r:.80}")
        if {"name": names.LIST, "digest": {"sha256": digest}} not in statement["subject"]:
            raise badly_signed(
                f"{name} is about another package: {names.LIST} here has sha256 {digest}"
            )
        predicates[name] = statement["predicate"]
    return predicates


def _statement(name: str, payload: bytes) -> dict[str, Any]:
    try:
        statement = json.loads(payload)
        known = statement["_type"] == signed.STATEMENT and isinstance(statement["subject"], list)
        if not known or not isinstance(statement["predicate"], dict):
            raise ValueError("not an in-toto statement")
        return {**statement, "predicateType": str(statement["predicateType"])}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise badly_signed(f"{name} is not an in-toto statement v1: {error}") from None


# Local keys.


def _with_key(path: str) -> Sign:
    serialization = _library("cryptography.hazmat.primitives.serialization")
    try:
        private = serialization.load_pem_private_key(_pem(path), None)
        scheme = signed.choose_scheme(private.public_key())
        private.sign(b"", *scheme)
    except Exception as error:
        raise input_error(
            f"{path}: not a private key that can sign: {error}",
            hint="a PEM file without a password, of an Ed25519 or ECDSA key, as of"
            " `openssl genpkey -algorithm ed25519`",
        ) from None

    def sign(statement: bytes) -> bytes:
        signature = private.sign(signed.encode_message(statement), *scheme)
        texts = [base64.b64encode(each).decode() for each in (statement, signature)]
        envelope = {
            "payload": texts[0],
            "payloadType": signed.PAYLOAD,
            "signatures": [{"keyid": "", "sig": texts[1]}],
        }
        return json.dumps(envelope, sort_keys=True, separators=(",", ":")).encode()

    return sign


def _by_key(path: str) -> Callable[[str, bytes], bytes]:
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


def _pem(path: str) -> bytes:
    try:
        return read_bytes(path, _MAX_KEY_SIZE)
    except OSError as error:
        raise input_error(f"{path}: {error.strerror}") from None


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
        in_toto = _library("sigstore.dsse").Statement(statement)
        with context.signer(oidc.IdentityToken(token)) as signer:
            bundle: str = signer.sign_dsse(in_toto).to_json()
        return bundle.encode()

    return sign


def _by_identity(identity: str | None, issuer: str | None) -> Callable[[str, bytes], bytes]:
    if identity is None or issuer is None:
        raise input_error("no signer is named", hint="--key PEM, or --identity and --issuer")
    models, checks = _library("sigstore.models"), _library("sigstore.verify")
    wanted = checks.policy.Identity(identity=identity, issuer=issuer)

    def verify(name: str, data: bytes) -> bytes:
        try:
            bundle = models.Bundle.from_json(data)
            kind, payload = checks.Verifier.production(offline=True).verify_dsse(bundle, wanted)
        except Exception as error:
            said = f"{name} is not signed by {identity}: {error!r:.200}"
            raise badly_signed(said) from None
        if kind != signed.PAYLOAD:
            raise badly_signed(f"{name} holds a payload of type {kind!r:.80}")
        return bytes(payload)

    return verify


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TilusbuildError(f"signatures need {error.name}\n  {_INSTALL}") from None


# What is attested of a package: that this is it, how it came to be, what is in it.


def statements(contents: Contents) -> dict[str, bytes]:
    """Return the statements' bytes, by the names of their files in a package."""
    listed, digest = contents.listed, contents.digest
    predicates = {
        names.SIGNATURE: {
            "purl": f"pkg:generic/{listed.title}@{listed.version}",
            "releaseId": digest,
        },
        names.PROVENANCE: _provenance(listed),
        names.SBOM: _materials(listed, digest),
    }
    return {
        name: _encoded(digest, PREDICATES[name], predicate)
        for name, predicate in predicates.items()
    }


def _encoded(digest: str, kind: str, predicate: Mapping[str, Any]) -> bytes:
    return rfc8785.dumps(
        {
            "_type": signed.STATEMENT,
            "subject": [{"name": names.LIST, "digest": {"sha256": digest}}],
            "predicateType": kind,
            "predicate": dict(predicate),
        }
    )


def _provenance(listed: FileList) -> dict[str, Any]:
    """Return what the build was asked for, and what it was made from."""
    toolkits = sorted({t.toolkit for t in listed.targets.values() if t.toolkit is not None})
    dependencies: list[dict[str, Any]] = [
        {"name": f"script {each.script} for {each.target}", "digest": {"sha256": each.hash}}
        for each in listed.scripts
    ]
    dependencies += [{"name": "cuda-toolkit", "annotations": {"version": v}} for v in toolkits]
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "command": ["tilusbuild", "package", listed.name],
                "targets": {name: list(t.archs) for name, t in listed.targets.items()},
            },
            "resolvedDependencies": dependencies,
        },
        "runDetails": {"builder": {"id": f"tilusbuild {listed.tool}"}},
    }


def _materials(listed: FileList, digest: str) -> dict[str, Any]:
    """Return the libraries as components, and what they need of a host."""

    def component(kind: str, name: str, ref: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "name": name, "bom-ref": ref, **more}

    def hashes(sha256: str) -> list[dict[str, str]]:
        return [{"alg": "SHA-256", "content": sha256}]

    parts = [
        component("file", path, path, hashes=hashes(file.sha256))
        for path, file in listed.files.items()
        if path.endswith(".so")
    ]
    parts += [component("library", each, f"host:{each}") for each in listed.needs.libraries]
    whole = {"version": listed.version, "hashes": hashes(digest)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{digest}").urn,
        "metadata": {"component": component("library", listed.title, digest, **whole)},
        "components": parts,
        "dependencies": [{"ref": digest, "dependsOn": [each["bom-ref"] for each in parts]}],
    }
