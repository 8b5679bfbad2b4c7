"""The remote cache without a build: `cache push` sends the programs of a plan, `cache pull` fetches
them. Nothing is compiled, and the directories of scripts are left to the next build."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from queue import SimpleQueue
from typing import Any

from msgspec.structs import replace

from tilusbuild.builder.project import Project
from tilusbuild.builder.resources import BuildStore
from tilusbuild.engine import events
from tilusbuild.engine.history import History
from tilusbuild.engine.inbox import RemoteAnswered
from tilusbuild.errors import input_error
from tilusbuild.plan.planner import Plan, iterate_jobs
from tilusbuild.remote.user_settings import choose_remote


def transfer_programs(
    project: Project, plan: Plan, warn: Callable[[str], None], *, push: bool
) -> events.RemoteSummary:
    """With `push`, send the plan's programs that are in the cache; else fetch the missing ones.

    Return the sums, when all is done; `warn` gets each warning meanwhile. A program that must stay
    on its machine is passed over. Raises `InputError` without a usable remote cache.
    """
    settings = choose_remote(project.manifest.remote, project.environment)
    if settings is None:
        hint = 'set cache = "…" in [remote] of tilus.toml, or TILUSBUILD_REMOTE_CACHE'
        raise input_error("there is no remote cache", hint=hint)
    from tilusbuild.remote.backend import RemoteTroubleError
    from tilusbuild.remote.client import RemoteCache

    # The transfer may take as long as it needs, since no build waits for it. No program is
    # verified, since none is compiled.
    chosen = replace(settings, write=push, send_timeout=math.inf, verify=0.0)
    messages: SimpleQueue[Any] = SimpleQueue()
    programs = {job.hash: job for job in iterate_jobs(plan) if not job.kept_here}
    with BuildStore(project.cache) as store:
        try:
            client = RemoteCache(chosen, store, project.cache, messages.put)
        except RemoteTroubleError as error:
            raise input_error(str(error)) from None
        history = History(project.cache.state_path)
        with closing(client):
            missing: dict[str, str] = {}
            for program, job in programs.items():
                is_cached = store.find_entry(program) is not None
                if push and is_cached:
                    client.record_built(program, history.find_measurement(job).seconds or 0.0)
                elif not push and not is_cached:
                    missing[program] = job.label
            requested = set(client.request_programs(missing)) if missing else set()
            # When all programs are transferred, warnings may still be in the queue.
            while requested or client.is_busy() or not messages.empty():
                match messages.get():
                    case RemoteAnswered(program):
                        requested.discard(program)
                    case events.Warned(message):
                        warn(message)
        return client.make_summary()
