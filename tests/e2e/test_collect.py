"""Garbage collection under a process that has loaded a kernel and not called it yet."""

from __future__ import annotations

import numpy as np

from support.project import Project
from tilusbuild.runtime import load


def test_a_kernel_that_was_loaded_before_a_new_build_can_still_be_called(project: Project) -> None:
    """Given a loaded kernel, when its project is built anew and the cache collected, then its first
    call finds its library; when the kernel is gone, the library goes."""
    project.build()
    old = set(project.programs)
    kernel = load("scale", where=project.cache)
    project.edit("kernels/scale.cu.j2", "a * x", "a + x")
    project.build()
    project.run("cache", "gc")
    assert old <= set(project.programs)
    assert kernel(2.0, np.full(3, 5, np.float32)).tolist() == [10.0, 10.0, 10.0]
    del kernel
    project.run("cache", "gc")
    assert not old & set(project.programs)
    assert load("scale", where=project.cache)(2.0, np.ones(1, np.float32)).tolist() == [3.0]
