"""The stand-in for nvcc, made once."""

from __future__ import annotations

import pytest

from support.nvcc_journal import make_toolkit
from support.project import needs_cxx


@pytest.fixture(scope="session")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> str:
    needs_cxx()
    return make_toolkit(str(tmp_path_factory.mktemp("toolkit")))
