"""What is attested of a package: that this is it, how it came to be, what is in it.

Three in-toto statements (v1) about one subject, the sha256 of `tilus-package.json`: a release, SLSA
provenance (v1), and a CycloneDX bill of materials. They follow from the list alone, so the same
package has the same statements whoever packs it: no host, no user, no time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import rfc8785

from tilusbuild.package import names
from tilusbuild.package.contents import Contents
from tilusbuild.package.listing import FileList

STATEMENT = "https://in-toto.io/Statement/v1"
PAYLOAD = "application/vnd.in-toto+json"
RELEASE = "https://in-toto.io/attestation/release/v0.1"
SLSA = "https://slsa.dev/provenance/v1"
CYCLONEDX = "https://cyclonedx.org/bom"
BUILD_TYPE = "https://github.com/tilusbuild/tilusbuild/docs/packages.md"
PREDICATES = {names.SIGNATURE: RELEASE, names.PROVENANCE: SLSA, names.SBOM: CYCLONEDX}
"""What each of the files attests."""


def statements(contents: Contents) -> dict[str, bytes]:
    """The statements' bytes, by the names of the files that carry them."""
    listed, digest = contents.listed, contents.digest
    predicates = {
        names.SIGNATURE: {"purl": _purl(listed), "releaseId": digest},
        names.PROVENANCE: _provenance(listed),
        names.SBOM: _materials(listed, digest),
    }
    return {name: _statement(digest, PREDICATES[name], said) for name, said in predicates.items()}


def _statement(digest: str, kind: str, predicate: Mapping[str, Any]) -> bytes:
    return rfc8785.dumps(
        {
            "_type": STATEMENT,
            "subject": [{"name": names.LIST, "digest": {"sha256": digest}}],
            "predicateType": kind,
            "predicate": dict(predicate),
        }
    )


def _purl(listed: FileList) -> str:
    return f"pkg:generic/{listed.title}@{listed.version}"


def _provenance(listed: FileList) -> dict[str, Any]:
    """What the build was asked for, and what it was made from."""
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
            "internalParameters": {"inputs": listed.inputs},
            "resolvedDependencies": dependencies,
        },
        "runDetails": {"builder": {"id": f"tilusbuild {listed.tool}"}},
    }


def _materials(listed: FileList, digest: str) -> dict[str, Any]:
    """The libraries as components, and what they ask a host for."""
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    def hashed(text: str) -> HashType:
        return HashType(alg=HashAlgorithm.SHA_256, content=text)

    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{digest}"))
    bom.metadata.component = Component(
        type=ComponentType.LIBRARY,
        name=listed.title,
        version=listed.version,
        bom_ref=digest,
        hashes=[hashed(digest)],
    )
    for path, file in listed.files.items():
        if path.endswith(".so"):
            bom.components.add(
                Component(
                    type=ComponentType.FILE, name=path, bom_ref=path, hashes=[hashed(file.sha256)]
                )
            )
    for library in listed.needs.libraries:
        bom.components.add(
            Component(type=ComponentType.LIBRARY, name=library, bom_ref=f"host:{library}")
        )
    bom.register_dependency(bom.metadata.component, bom.components)
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    made: dict[str, Any] = json.loads(outputter.output_as_string())
    made["metadata"].pop("timestamp", None)  # of the packing: the same package is the same bytes
    return made
