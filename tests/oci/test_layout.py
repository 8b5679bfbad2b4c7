"""A package as an OCI image layout, as registries check it, and a registry that takes it."""

import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import zstandard

from tilusbuild.package.listing import parse_list, split_layers
from tilusbuild.state.files import sha256_bytes, sha256_file

STEM = "Marks-1.2"


def blob(layout: Path, descriptor: Any) -> bytes:
    algorithm, _, digest = descriptor["digest"].partition(":")
    data = (layout / "blobs" / algorithm / digest).read_bytes()
    assert (len(data), sha256_bytes(data)) == (descriptor["size"], digest)
    return data


def manifest_of(layout: Path) -> Any:
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    (top,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    return json.loads(blob(layout, top))


def test_the_layouts_blobs_are_what_they_are_named_by(packed: Path) -> None:
    layout = packed / f"{STEM}.oci"
    manifest = manifest_of(layout)
    file_list = parse_list(blob(layout, manifest["config"]))
    assert manifest["artifactType"] == "application/vnd.tilusbuild.package.v1"
    assert manifest["config"]["digest"] == f"sha256:{file_list.digest}"
    for descriptor, paths in zip(manifest["layers"], split_layers(file_list).values(), strict=True):
        assert descriptor["mediaType"] == "application/vnd.oci.image.layer.v1.tar+zstd"
        data = zstandard.ZstdDecompressor().decompress(blob(layout, descriptor))
        with tarfile.open(fileobj=io.BytesIO(data)) as layer:
            assert tuple(layer.getnames()) == paths
    named = {descriptor["digest"] for descriptor in (manifest["config"], *manifest["layers"])}
    assert len(list((layout / "blobs/sha256").iterdir())) == len(named) + 1


def test_a_new_version_has_new_layers_only_where_something_changed(project, packed) -> None:
    template = project.directory / "double.cu.j2"
    template.write_text(template.read_text() + "// changed\n")
    project.run("build")
    before = manifest_of(packed / f"{STEM}.oci")
    after = manifest_of(project.package("--format", "oci") / f"{STEM}.oci")
    old = [layer["digest"] for layer in before["layers"]]
    new = [layer["digest"] for layer in after["layers"]]
    assert [a == b for a, b in zip(old, new, strict=True)] == [False, True, True]
    assert before["config"] != after["config"]


def test_a_registry_takes_it_and_gives_it_back(packed: Path, registry: str, tmp_path: Path) -> None:
    source, back = f"oci:{packed}/{STEM}.oci:1.2", f"oci:{tmp_path}/back:1.2"
    destination = f"docker://{registry}/marks:1.2"
    copy = ["skopeo", "copy", "-q", "--preserve-digests"]
    subprocess.run([*copy, "--dest-tls-verify=false", source, destination], check=True)
    subprocess.run([*copy, "--src-tls-verify=false", destination, back], check=True)
    sent = {path.name: sha256_file(path) for path in (packed / f"{STEM}.oci").rglob("sha256/*")}
    assert {path.name: sha256_file(path) for path in tmp_path.rglob("sha256/*")} == sent
