"""Compiles beside each other by tokens of a jobserver: how many run, and that nothing is kept."""

import threading
from contextlib import nullcontext
from typing import Any

import pytest

from support.fake_engine import FakeCompiler, FakeJob, FakeStore, FakeTokens, Listener, built
from tilusbuild.engine.build import build_jobs
from tilusbuild.engine.events import Result
from tilusbuild.engine.running import BuildConfig, SharedTokens
from tilusbuild.process.base import CancelledError
from tilusbuild.status import Compiled


def jobs(count: int) -> list[FakeJob]:
    return [FakeJob(f"matmul {i}", index=i) for i in range(count)]


def run(count: int, compiler: FakeCompiler | None = None, **options: Any) -> Result:
    listener = options.pop("listener", Listener())
    config = BuildConfig(**options)
    return build_jobs(jobs(count), FakeStore(), compiler or FakeCompiler(), listener, config)


def together(most: int) -> tuple[FakeCompiler, list[int]]:
    """A compiler that goes on when `most` of it run at once, and how many those were."""
    running: set[str] = set()
    seen: list[int] = []
    gate = threading.Barrier(most)

    def script(job: Any) -> Compiled:
        running.add(job.text)
        gate.wait(timeout=60)
        seen.append(len(running))
        gate.wait(timeout=60)
        running.discard(job.text)
        return built()

    return FakeCompiler(script), seen


@pytest.mark.parametrize(
    ("tokens", "width", "most"), [(0, 4, 1), (1, 4, 2), (3, 4, 4), (9, 4, 4), (9, 1, 1)]
)
def test_the_first_needs_no_token_and_each_further_compile_holds_one(tokens, width, most) -> None:
    source = FakeTokens(tokens)
    compiler, seen = together(most)
    result = run(4 * most, compiler, jobs=width, tokens=source)
    assert result.summary.compiled == 4 * most
    assert set(seen) == {most}
    assert (source.most, source.held, source.tokens) == (most - 1, 0, tokens)


def test_a_token_that_comes_later_is_taken_then() -> None:
    source = FakeTokens(0)
    compiler, seen = together(2)
    listener = Listener()
    listener.react = lambda event: source.put(1) if event.event == "started" and not seen else None
    result = run(2, compiler, listener=listener, jobs=2, tokens=source)
    assert result.summary.compiled == 2
    assert seen == [2, 2]
    assert source.held == 0


def test_a_program_that_others_build_and_a_refusal_keep_no_token() -> None:
    source = FakeTokens(3)
    refuses = (lambda need, running: False,)
    result = run(6, jobs=4, admissions=refuses, tokens=source)
    assert result.summary.compiled == 6
    assert source.most == 0


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), CancelledError()])
def test_whatever_is_raised_the_tokens_go_back(error: BaseException) -> None:
    source = FakeTokens(3)
    gate = threading.Barrier(4)

    def script(job: Any) -> Compiled:
        gate.wait(timeout=60)
        raise error

    is_bug = isinstance(error, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError) if is_bug else nullcontext():
        run(4, FakeCompiler(script), jobs=4, tokens=source)
    assert (source.most, source.held, source.tokens) == (3, 0, 3)


def test_a_warning_is_given_once_and_only_when_there_is_something_to_share() -> None:
    for count, warning_count in ((0, 0), (1, 0), (2, 1)):
        listener = Listener()
        run(count, listener=listener, warnings=("begin with +",))
        assert [event.message for event in listener.named("warning")] == [
            "begin with +"
        ] * warning_count


def test_compiles_elsewhere_have_a_limit_of_their_own() -> None:
    source = FakeTokens(9)
    tokens = SharedTokens(source, local_limit=1, remote_limit=2)
    assert [tokens.try_acquire() for _ in range(4)] == [True, True, True, False]
    for _ in range(3):
        tokens.release()
    assert (tokens.local_tokens, source.held) == (0, 0)
    assert [tokens.try_acquire() for _ in range(4)] == [True, True, True, False]
