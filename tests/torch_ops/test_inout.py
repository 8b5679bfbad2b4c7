"""An argument that is read and written: an input that no call leaves out, and an output."""

import numpy as np
import pytest

import tilusbuild
from support.project import Project
from tilusbuild.signature.model import Argument
from tilusbuild.signature.parsing import parse_argument


def test_it_is_passed_and_written(small: Project) -> None:
    add = tilusbuild.load("add", where=small.directory)
    y = np.ones(3, "float32")
    add(2.0, np.arange(3, dtype="float32"), y)
    assert y.tolist() == [1, 3, 5]
    with pytest.raises(TypeError, match=r"add\(\) misses y"):
        add(2.0, y)


def test_a_program_is_named_by_it() -> None:
    declared = parse_argument(Argument("y", "f32*[n]", out=True, inout=True))
    assert declared.format_line() == "y: inout f32*[n]"
