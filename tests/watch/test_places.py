"""Which directories are watched, and where events are not to be had."""

from collections.abc import Iterable

import pytest

from tilusbuild.watch.observer import file_system_of, gives_no_events, polling_reason, watch_roots

DIRECTORIES = {
    "/",
    "/p",
    "/p/kernels",
    "/p/kernels/deep",
    "/p/src",
    "/p/src/.cache",
    "/usr/bin",
    "/x",
}


def found(paths: Iterable[str], cache: str = "/c") -> dict[str, bool]:
    return watch_roots(paths, "/p", cache, DIRECTORIES.__contains__, lambda path: path)


def test_a_directory_at_the_top_of_the_project_is_watched_with_all_below() -> None:
    assert found({"/p/kernels/deep/a.j2", "/p/tilus.toml"}) == {"/p": False, "/p/kernels": True}


def test_a_missing_path_is_watched_through_its_nearest_existing_parent() -> None:
    assert found({"/p/kernels/gone/more/a.h"}) == {"/p": False, "/p/kernels": True}
    assert found({"/p/gone/a.h"}) == {"/p": False}


def test_the_cache_is_not_watched_nor_what_holds_it() -> None:
    watched = found({"/p/src/a.j2", "/p/src/.cache/x"}, cache="/p/src/.cache")
    assert watched == {"/p": False, "/p/src": False}


def test_outside_of_the_project_only_the_directory_itself() -> None:
    assert found({"/usr/bin/g++", "/x/a.h"}) == {"/p": False, "/usr/bin": False, "/x": False}


MOUNTS = """\
overlay / overlay rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/me/fast\\040disk tmpfs rw 0 0
me@host: /mnt/ssh fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/work", "overlay"),
        ("/home/me/p", "nfs4"),
        ("/homes/p", "overlay"),
        ("/home/me/fast disk/p", "tmpfs"),
        ("/mnt/ssh", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert file_system_of(path, MOUNTS) == kind


def test_network_file_systems_give_no_events_and_overlays_do() -> None:
    assert [gives_no_events(kind) for kind in ("nfs4", "fuse.sshfs", "cifs", "9p")] == [True] * 4
    assert [gives_no_events(kind) for kind in ("overlay", "ext4", "tmpfs", "")] == [False] * 4
    assert polling_reason(["/work", "/home/me"], MOUNTS) == (
        "/home/me is on nfs4, where changes give no events"
    )
    assert polling_reason(["/work"], MOUNTS) is None
    assert polling_reason(["/work"], "") is None
