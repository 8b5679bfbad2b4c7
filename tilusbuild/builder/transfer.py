"""The remote cache without a build: `cache push` and `cache pull` bring a plan's programs there and
here. Nothing is compiled, and scripts' directories are the next build's affair."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from queue import SimpleQueue
from typing import Any

from msgspec.structs import replace

from tilusbuild.builder.project import Project
from tilusbuild.builder.resources import BuildStore
from tilusbuild.cache.entries import lookup
from tilusbuild.engine import events
from tilusbuild.engine.history import History
from tilusbuild.engine.inbox import RemoteAnswered
from tilusbuild.errors import input_error
from tilusbuild.plan.planner import Plan, ProgramJob, jobs
from tilusbuild.remote.settings import RemoteSettings, decide


def transfer(
    project: Project, plan: Plan, warn: Callable[[str], None], *, push: bool
) -> events.RemoteSummary:
    """Send the programs of a plan that are here, or fetch those that are not. Raises `InputError`
    without a remote cache, or when it cannot be used."""
    settings = _needed(project)
    from tilusbuild.remote.backend import RemoteTroubleError
    from tilusbuild.remote.client import RemoteCache

    # Nothing else waits for it, and no sample is compiled.
    chosen = replace(settings, write=push, send_timeout=math.inf, verify=0.0)
    told: SimpleQueue[Any] = SimpleQueue()
    every = {job.hash: job for job in jobs(plan) if not job.kept_here}
    with BuildStore(project.cache) as store:
        try:
            client = RemoteCache(chosen, store, project.cache, told.put)
        except RemoteTroubleError as error:
            raise input_error(str(error)) from None
        with closing(client):
            if push:
                _push(project, client, every, told, warn)
            else:
                missing = [job for job in every.values() if store.lookup(job.hash) is None]
                _pull(client, missing, told, warn)
            # Its threads may have ended before anybody looked whether they had.
            while not told.empty():
                _hear(told, warn)
        return client.summary()


def _needed(project: Project) -> RemoteSettings:
    settings = decide(project.manifest.remote, project.environment)
    if settings is None:
        hint = 'set cache = "…" in [remote] of tilus.toml, or TILUSBUILD_REMOTE_CACHE'
        raise input_error("there is no remote cache", hint=hint)
    return settings


def _push(
    project: Project,
    client: Any,
    every: dict[str, ProgramJob],
    told: SimpleQueue[Any],
    warn: Callable[[str], None],
) -> None:
    history = History(project.cache.state_path)
    for program, job in every.items():
        if lookup(project.cache, program) is not None:
            client.built(program, history.measured(job).seconds or 0.0)
    while client.busy():
        _hear(told, warn)


def _pull(
    client: Any,
    missing: list[ProgramJob],
    told: SimpleQueue[Any],
    warn: Callable[[str], None],
) -> None:
    waiting = set(client.ask({job.hash: job.label for job in missing})) if missing else set()
    while waiting:
        waiting.discard(_hear(told, warn))


def _hear(told: SimpleQueue[Any], warn: Callable[[str], None]) -> str:
    """Wait for a message; return the program that it answers, or ""."""
    match told.get():
        case RemoteAnswered(program):
            return program
        case events.Warned(message):
            warn(message)
    return ""
