"""What all tests share: a HOME of their own, and the reasons for which some are skipped."""

import glob
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from tilusbuild.process.local import LocalRunner

# Before a test imports it: then a failed assertion there says its values, as in a test.
pytest.register_assert_rewrite("support")

# Who runs the tests in the background, or under nohup, ignores these signals, and children inherit
# that: tests that send them would wait for ever.
for _name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_name) == signal.SIG_IGN:
        usual = signal.default_int_handler if _name == signal.SIGINT else signal.SIG_DFL
        signal.signal(_name, usual)


def _nvcc() -> str | None:
    """An nvcc: on PATH, of a toolkit in its usual place, or of NVIDIA's wheels."""
    places = ["/usr/local/cuda*"]
    with suppress(ImportError):
        import nvidia

        places += [os.path.join(root, "cu*") for root in nvidia.__path__]
    paths = [path for pattern in places for path in sorted(glob.glob(f"{pattern}/bin/nvcc"))]
    return shutil.which("nvcc") or next(iter(paths), None)


# As tilusbuild.remote says before it imports grpc: some tests import it first, and then each
# rendering's fork would abort in gRPC's own hooks.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

NVCC = _nvcc()
if NVCC is not None and shutil.which("nvcc") is None:
    # Tests that ask nvcc itself, and compile.sh, look for it on PATH.
    os.environ["PATH"] += os.pathsep + os.path.dirname(NVCC)


_PYTHONPATH = os.environ.get("PYTHONPATH")


def pytest_configure(config: pytest.Config) -> None:
    """Hide torch from the processes of tests: tvm_ffi imports it, and few tests are about that."""
    if config.getoption("dist", "no") == "no":  # else tests run in workers, which may import torch
        hiding = str(Path(__file__).parent / "support/without_torch")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (hiding, _PYTHONPATH)))
        sys.path.append(hiding)  # some tests hand it to their processes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    nvcc = NVCC is not None
    gpu = bool(glob.glob("/dev/nvidia[0-9]*"))
    for item in items:
        if not nvcc and item.get_closest_marker("nvcc"):
            item.add_marker(pytest.mark.skip(reason="no nvcc: pip install 'tilusbuild[cuda]'"))
        if not gpu and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


# How long an example takes says how busy the machine is.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directories for the tests: to make them by the factory takes a look at all that there are."""
    top = tmp_path_factory.mktemp("homes")
    return (top / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_home(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's own cache or settings, nor asks where it runs."""
    home = next(_homes)
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    # A CI system's own variables change what is printed: the tests say themselves what there is.
    for name in [name for name in os.environ if name.startswith(("TILUSBUILD_", "GITHUB_"))]:
        monkeypatch.delenv(name)
    for name in ("CI", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of the test find torch, if it is installed."""
    monkeypatch.delenv("PYTHONPATH")
    if _PYTHONPATH is not None:
        monkeypatch.setenv("PYTHONPATH", _PYTHONPATH)


@pytest.fixture
def runner() -> Iterator[LocalRunner]:
    with LocalRunner() as local_runner:
        yield local_runner
