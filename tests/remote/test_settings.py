"""Which remote a build uses: the environment ▸ the manifest ▸ the user's settings; no secret from a
manifest, and none to a server that the user did not name."""

from pathlib import Path
from typing import Any

import pytest

from tilusbuild.errors import InputError
from tilusbuild.manifest.remote_section import RemoteSection
from tilusbuild.manifest.settings import REMOTE_PREFIX, Settings, format_variable
from tilusbuild.manifest.table import check_table
from tilusbuild.remote.settings import RemoteSettings
from tilusbuild.remote.user_settings import choose_remote
from tilusbuild.runtime.option import VARIABLES


def decided(home: Path, manifest: dict[str, Any] | None = None, **variables: str) -> Any:
    section = None if manifest is None else check_table(RemoteSection, manifest)
    environment = {f"{REMOTE_PREFIX}{name}": value for name, value in variables.items()}
    return choose_remote(section, {"HOME": str(home), **environment})


def user(home: Path, text: str) -> None:
    path = home / ".config" / "tilusbuild" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_environment_before_the_manifest_before_the_user(tmp_path: Path) -> None:
    user(tmp_path, '[remote]\ncache = "https://user"\ntimeout = "1s"\nwrite = true\n')
    settings = decided(tmp_path)
    assert (settings.address, settings.timeout, settings.write) == ("https://user", 1.0, True)
    manifest = {"cache": "https://manifest/", "timeout": "2s"}
    settings = decided(tmp_path, manifest)
    assert (settings.address, settings.timeout, settings.source) == (
        "https://manifest",
        2.0,
        "tilus.toml",
    )
    settings = decided(tmp_path, manifest, CACHE="file:///env", WRITE="0")
    assert (settings.address, settings.write) == ("file:///env", False)
    assert settings.source == "TILUSBUILD_REMOTE_CACHE"


def test_without_an_address_there_is_none(tmp_path: Path) -> None:
    assert decided(tmp_path, {"write": True}) is None
    assert decided(tmp_path, {"cache": "https://manifest"}, CACHE="off") is None


def test_a_manifest_holds_no_secrets() -> None:
    for key in ("headers", "credential-helper", "tls-ca", "tls-certificate", "tls-key"):
        with pytest.raises(ValueError, match="Extra inputs"):
            check_table(RemoteSection, {key: "x"})


def test_secrets_are_for_the_server_that_the_user_named(tmp_path: Path) -> None:
    secret = 'cache = "https://ours/a"\nheaders = { A = "s3cret" }\ntls-key = "k"\n'
    user(tmp_path, f"[remote]\n{secret}")
    own_settings = decided(tmp_path, {"cache": "https://ours/b"})
    assert (own_settings.headers, own_settings.tls_key, own_settings.withheld) == (
        {"A": "s3cret"},
        "k",
        False,
    )
    for other in ("https://theirs/a", "http://ours/a", "https://ours:444/a"):
        other_settings = decided(tmp_path, {"cache": other})
        assert (other_settings.headers, other_settings.tls_key, other_settings.withheld) == (
            {},
            None,
            True,
        )
    assert "s3cret" not in repr(own_settings)


def test_an_own_directory_for_settings(tmp_path: Path) -> None:
    path = tmp_path / "xdg" / "tilusbuild" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('[remote]\ncache = "https://user"\n')
    settings = choose_remote(None, {"HOME": "/nowhere", "XDG_CONFIG_HOME": str(tmp_path / "xdg")})
    assert isinstance(settings, RemoteSettings)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[remote]\ncache = 3\n", "config.toml:2:9: error"),
        ('[remote]\ncahce = "x"\n', 'did you mean "cache"'),
        ("[build]\n", "there is only the table [remote]"),
        ("[remote\n", "config.toml:1"),
        ('[remote]\ncache = "ftp://x"\n', "must begin with one of file://"),
    ],
)
def test_mistakes_of_the_user_have_their_place(tmp_path: Path, text: str, words: str) -> None:
    user(tmp_path, text)
    with pytest.raises(InputError) as caught:
        decided(tmp_path)
    assert words in caught.value.render()


@pytest.mark.parametrize(
    "wrong",
    [
        {"CACHE": "cache.example"},
        {"CACHE": "http://user:password@host"},
        {"CACHE": "http://host/?q"},
        {"CACHE": "http://host:99999"},
        {"CACHE": "file://relative"},
        {"CACHE": "http://"},
        {"CACHE": "grpc://host"},
        {"CACHE": "grpc://host:1/instance"},
        {"WRITE": "perhaps"},
        {"TIMEOUT": "soon"},
        {"HEADERS": "s3cret"},
    ],
)
def test_mistakes_in_the_environment_name_the_variable(tmp_path, wrong) -> None:
    with pytest.raises(InputError) as caught:
        decided(tmp_path, None, **wrong)
    (name,) = wrong
    assert f"TILUSBUILD_REMOTE_{name}" in caught.value.render()
    assert "s3cret" not in caught.value.render()
    assert "password@" not in caught.value.render()


def test_every_key_has_its_variable() -> None:
    keys = {name.removeprefix(REMOTE_PREFIX).lower() for name in VARIABLES if "REMOTE" in name}
    assert keys == set(RemoteSettings.map_fields_by_key().values())
    assert {format_variable(name) for name in Settings.__struct_fields__} < VARIABLES
