"""`cache push` and `cache pull`, and what `explain` and `doctor` say of a remote."""

import time

import pytest

from support.http_cache import HttpCache
from support.project import NewProject
from support.trees import published
from tilusbuild.cli.main import main
from tilusbuild.remote.client import RemoteCache


def test_what_is_pushed_is_pulled(server: HttpCache, new_user: NewProject) -> None:
    first, second = new_user(server.address), new_user(server.address)
    assert first.build()["remote"]["sent"] == 0
    (pushed,) = first.run("cache", "push", "--json").events
    assert (pushed["programs"], pushed["left"]) == (2, 0)
    pulled = second.run("cache", "pull").out
    assert pulled.startswith(f"{server.address}: fetched 2 programs (")
    assert second.libraries == first.libraries
    assert second.build()["attempts"] == 0
    assert published(first.cache) == published(second.cache)


def test_a_push_that_fails_says_so(server: HttpCache, new_user: NewProject) -> None:
    user = new_user(server.address)
    user.build()
    server.status = 403
    assert "status 403" in user.run("cache", "push", status=1).err
    assert "there is no remote cache" in (
        user.run("cache", "pull", status=2, TILUSBUILD_REMOTE_CACHE="off").err
    )


def test_what_was_told_before_the_last_was_sent_is_said(
    server: HttpCache,
    new_user: NewProject,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    user = new_user(server.address)
    user.build()
    server.status = 403
    is_busy = RemoteCache.is_busy

    def never_seen_busy(client: RemoteCache) -> bool:
        """As for a thread that comes late: all has ended by then."""
        while is_busy(client):
            time.sleep(0.01)
        return False

    monkeypatch.setattr(RemoteCache, "is_busy", never_seen_busy)
    for name, value in user.environment.items():
        monkeypatch.setenv(name, value)
    assert main(["-C", str(user.directory), "cache", "push"]) == 1
    assert "status 403" in capsys.readouterr().err
