"""The remote cache without a build: `cache push` sends the programs of a plan, `cache pull` fetches
them. Nothing is compiled, and the directories of scripts are left to the next build."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tilusbuild.builder.project import Project
from tilusbuild.builder.resources import BuildStore
from tilusbuild.cache.entries import lookup_entry
from tilusbuild.engine import events
from tilusbuild.engine.history import History
from tilusbuild.engine.inbox import RemoteAnswered
from tilusbuild.errors import input_error
from tilusbuild.plan.planner import Plan, ProgramJob, iterate_jobs
from tilusbuild.remote.settings import choose_remote

if TYPE_CHECKING:
    from tilusbuild.remote.client import RemoteCache


def transfer_programs(
    project: Project, plan: Plan, warn: Callable[[str], None], *, push: bool
) -> events.RemoteSummary:
    """Send the programs of a plan that are in the cache, or fetch those that are not. Raises
    `InputError` without a usable remote cache."""
    settings = choose_remote(project.manifest.remote, project.environment)
    if settings is None:
        hint = 'set cache = "…" in [remote] of tilus.toml, or TILUSBUILD_REMOTE_CACHE'
        raise input_error("there is no remote cache", hint=hint)
    from tilusbuild.remote.backend import RemoteTroubleError
    from tilusbuild.remote.client import RemoteCache

    # Nothing else waits for the end, and no program is compiled.
    chosen = replace(settings, write=push, send_timeout=math.inf, verify=0.0)
    messages: SimpleQueue[Any] = SimpleQueue()
    programs = {job.hash: job for job in iterate_jobs(plan) if not job.kept_here}
    with BuildStore(project.cache) as store:
        try:
            client = RemoteCache(chosen, store, project.cache, messages.put)
        except RemoteTroubleError as error:
            raise input_error(str(error)) from None
        with closing(client):
            if push:
                _push_programs(project, client, programs, messages, warn)
            else:
                missing = [job for job in programs.values() if store.find_entry(job.hash) is None]
                _pull_programs(client, missing, messages, warn)
            # Warnings may have come after the last program ended.
            while not messages.empty():
                _wait_for_answer(messages, warn)
        return client.make_summary()


def _push_programs(
    project: Project,
    client: RemoteCache,
    programs: dict[str, ProgramJob],
    messages: SimpleQueue[Any],
    warn: Callable[[str], None],
) -> None:
    """Send the programs that are in the cache."""
    history = History(project.cache.state_path)
    for program, job in programs.items():
        if lookup_entry(project.cache, program) is not None:
            client.record_built(program, history.find_measurement(job).seconds or 0.0)
    while client.is_busy():
        _wait_for_answer(messages, warn)


def _pull_programs(
    client: RemoteCache,
    missing: list[ProgramJob],
    messages: SimpleQueue[Any],
    warn: Callable[[str], None],
) -> None:
    """Fetch the programs that are not in the cache."""
    waiting = (
        set(client.request_programs({job.hash: job.label for job in missing})) if missing else set()
    )
    while waiting:
        waiting.discard(_wait_for_answer(messages, warn))


def _wait_for_answer(messages: SimpleQueue[Any], warn: Callable[[str], None]) -> str:
    """Wait for a message and pass a warning on. Return the program that the message answers, or
    ""."""
    match messages.get():
        case RemoteAnswered(program):
            return program
        case events.Warned(message):
            warn(message)
    return ""
