"""Every argument of the public functions with values of every wrong kind: the error names it."""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tilusbuild
from support.marks import Marks
from tilusbuild.runtime.errors import LoadError

WRONG = [
    *(None, True, 5, 0, 2.5, 1j, b"x", "", "no such", "a\0b", [], [1], {}, {"a": 1}, (), object),
    *(object(), os, len, np.zeros(3), np.int64(3), np.float32(2), Ellipsis, range(3)),
]
NAMES = {
    "load": ("script", "where", "target", "strict", "signed_by", "real"),
    "library_path": ("name", "where", "target", "signed_by"),
    "cached": (
        *("source_or_script", "out_idx", "target", "target_host", "execution_backend", "verbose"),
        *("pass_configs", "compile_flags", "real"),
    ),
}


def list_calls(built: Marks) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Each function with one argument replaced by each wrong value."""
    right: dict[str, Any] = {
        "where": built.cache,
        "script": "modelled",
        "name": "modelled",
        "source_or_script": f"{built.directory}:nothing",
    }
    functions: dict[str, Callable[..., Any]] = {
        "load": tilusbuild.load,
        "library_path": tilusbuild.library_path,
        "cached": tilusbuild.KernelCache().cached,
    }
    for function, names in NAMES.items():
        for name in names:
            for value in WRONG:
                if name == "where" and value is len:
                    continue  # a function is called: its own error is raised
                words = {n: right[n] for n in names if n in right} | {name: value}
                script = words.pop("script", words.pop("name", None))
                call = functions[function]
                if function != "cached":
                    call = functools.partial(call, script)
                yield function, name, functools.partial(call, **words)


def test_each_wrong_argument_is_named(built: Marks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(built.directory)
    count = 0
    for function, name, call in list_calls(built):
        count += 1
        message = None
        try:
            call()
        except (TypeError, ValueError) as error:
            message = str(error)
        except (LoadError, tilusbuild.InputError):
            pass
        label = {"source_or_script": "script"}.get(name, name)
        assert message is None or label in message, (function, name, call)
    assert count == len(WRONG) * sum(map(len, NAMES.values())) - 2


@pytest.mark.parametrize("script", [5, None, os, b"x", ["mark"]])
def test_a_script_is_a_name(built: Marks, script: Any) -> None:
    for function in (tilusbuild.load, tilusbuild.library_path):
        with pytest.raises(TypeError, match=r"(script|name) takes str, not"):
            function(script, where=built.cache)


def test_an_empty_key_or_target_is_not_none(built: Marks) -> None:
    with pytest.raises(LoadError, match="is not built for ''"):
        tilusbuild.load("mark", where=built.cache, target="")
    with pytest.raises(LoadError, match="no signed package"):
        tilusbuild.load("mark", where=built.cache, signed_by="")


def test_numbers_of_numpy_are_constants(built: Marks) -> None:
    real = np.str_("f64")
    assert tilusbuild.load("modelled", where=built.cache, real=real)._scripts[0].params == {
        "real": "f64"
    }
