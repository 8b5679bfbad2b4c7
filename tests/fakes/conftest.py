import importlib.util
import os
import shutil
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module `nvcc_journal`: tests are no packages, so it is loaded by its place."""
    path = os.path.join(os.path.dirname(__file__), "nvcc_journal.py")
    spec = importlib.util.spec_from_file_location("nvcc_journal", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def nvcc(fake: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("g++") is None:
        pytest.skip("the stand-in for nvcc is compiled by g++, which is not installed")
    return str(fake.make_toolkit(str(tmp_path_factory.mktemp("toolkit"))))
