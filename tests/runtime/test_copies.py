"""A kernel in what copies its members: it stays one object, with one lock, and is pickled."""

import copy
import dataclasses
import gc
import importlib
import multiprocessing
import os
import pickle
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tilusbuild
from support.marks import Marks
from tilusbuild.cache.locks import LockName, Locks
from tilusbuild.runtime.kernel import Kernel
from tilusbuild.runtime.reader_lock import ReaderLock


@dataclasses.dataclass
class Layer:
    kernel: Kernel
    size: int = 9


def call(kernel: Kernel) -> float:
    """The variant of `mark` that this kernel runs for nine elements."""
    return float(kernel(np.zeros(9, "float32"))[-1])


def test_a_copy_is_the_kernel_itself(built: Marks) -> None:
    layer = Layer(tilusbuild.load("mark", where=built.cache))
    for kernel_copy in (
        copy.copy(layer.kernel),
        copy.deepcopy(layer).kernel,
        copy.deepcopy({"a": [layer.kernel]})["a"][0],
        dataclasses.asdict(layer)["kernel"],
        dataclasses.replace(layer, size=3).kernel,
    ):
        assert kernel_copy is layer.kernel


def test_copies_of_a_torch_module_and_its_average(built: Marks) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model = torch.nn.Linear(2, 2)
    model.kernel = tilusbuild.load("mark", where=built.cache)
    averaged = torch.optim.swa_utils.AveragedModel(copy.deepcopy(model))
    assert averaged.module.kernel is model.kernel


def test_a_lock_is_closed_once_whatever_is_copied(built: Marks, tmp_path: Path) -> None:
    kernel = tilusbuild.load("mark", where=built.cache)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            attempt(cast(list[ReaderLock], kernel._hold)[0]._files[0])
    gc.collect()
    name = LockName("read", built.script("mark").hash)
    assert not Locks(str(built.cache)).is_lock_free(name)
    del kernel
    gc.collect()
    with (tmp_path / "of-the-user").open("w") as file:  # may get the number of the closed one
        gc.collect()
        file.write("kept")


def test_a_pickled_kernel_is_loaded_by_the_same_request(built: Marks, monkeypatch) -> None:
    cache = built.cache
    params: dict[str, Any] = {"real": "f64", "target": "cpu", "strict": True}
    monkeypatch.chdir(cache.parent)
    for where in (cache, str(cache), cache.name, built.directory, built.paths("modelled")[0]):
        data = pickle.dumps(tilusbuild.load("modelled", where=where, **params))
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir("/")
            kernel = pickle.loads(data)
            assert str(cache) in kernel.explain(m=1, n=1, k=1)
            assert (kernel._strict, kernel._scripts[0].params) == (True, {"real": "f64"})


def test_a_kernel_of_a_package_is_pickled_by_its_name(built, tmp_path, monkeypatch) -> None:
    package = tmp_path / "marks_by_name"
    (package / "_kernels").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name in ("scripts", "programs"):
        (package / "_kernels" / name).symlink_to(built.cache / name)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    for where in ("marks_by_name", importlib.import_module("marks_by_name")):
        data = pickle.dumps(tilusbuild.load("mark", where=where))
        assert str(tmp_path).encode() not in data
        assert call(pickle.loads(data)) == 1
    sys.modules.pop("marks_by_name")


def test_the_cache_that_the_program_chose_is_pickled(built: Marks, monkeypatch: Any) -> None:
    monkeypatch.chdir(built.directory)
    with tilusbuild.option.context():
        tilusbuild.option.cache_dir(built.cache)
        data = pickle.dumps(tilusbuild.load("mark"))
    assert call(pickle.loads(data)) == 1


def test_a_spawned_pool_calls_a_kernel(built: Marks, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    kernel = tilusbuild.load("mark", where=built.cache)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(call, [kernel]) == [1]


def test_a_kernel_that_was_not_loaded_says_that_it_is_not_pickled(built: Marks) -> None:
    with pytest.raises(TypeError, match="only a kernel that was loaded can"):
        pickle.dumps(Kernel([built.script("mark")]))
