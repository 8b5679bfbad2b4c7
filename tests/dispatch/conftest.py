"""The built project of the runtime's tests, for what the builder does with it."""

import os
from typing import Any

import pytest

from support.marks import Marks, built, copied
from tilusbuild.cache.tree import Tree
from tilusbuild.embed import dispatcher
from tilusbuild.process.local import LocalRunner
from tilusbuild.toolchain import DigestMemory, ToolchainRequest, discover_toolchain

__all__ = ["built", "copied"]


@pytest.fixture
def refreshed(copied: Marks) -> Any:
    """refreshed(name, **params): the path of a script's dispatcher, made current."""

    def make(name: str = "mark", **params: object) -> str | None:
        with LocalRunner() as runner:
            request = ToolchainRequest(needs_cuda=False)
            toolchain = discover_toolchain(request, dict(os.environ), runner, DigestMemory())
            script = copied.script(name, **params)
            return dispatcher.build_if_outdated(
                Tree(str(copied.cache)), script, lambda: toolchain, runner
            )

    return make
