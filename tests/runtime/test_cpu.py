"""Host code for a CPU that is not here: refused when it is loaded, and no SIGILL in a call."""

import platform
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import tilusbuild
from support.marks import MANIFEST, MARK, MODELLED, Marks
from tilusbuild.check import checking
from tilusbuild.cli.main import main
from tilusbuild.package.extract import Limits
from tilusbuild.package.read import select_script_files, unpack_package
from tilusbuild.preflight.prediction import DescribedHost, predict_run
from tilusbuild.runtime import device, library
from tilusbuild.runtime.errors import LoadError
from tilusbuild.toolchain.host import list_flag_features

OLD = frozenset(["fpu", "sse2", "pni", "ssse3", "sse41", "sse42", "popcnt", "avx"])


@pytest.fixture(scope="module")
def recent(tmp_path_factory: pytest.TempPathFactory) -> Marks:
    """The project, built for a named CPU."""
    flags = 'arch = "cpu"\nflags = ["-mavx512f"]'
    manifest = MANIFEST.replace('arch = "cpu"', flags) + '\n[toolchain]\nhost-march = "haswell"\n'
    files = {"tilus.toml": manifest, "mark.cu.j2": MARK, "modelled.cu.j2": MODELLED, ".git": ""}
    return Marks.built(tmp_path_factory.mktemp("recent"), files)


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has a CPU of 2011."""
    monkeypatch.setattr(device, "_list_cpu_features", lambda: OLD)


def test_what_a_build_needs_is_recorded(built: Marks, recent: Marks) -> None:
    isa = recent.script("mark").code.isa
    assert {"avx2", "avx512f", "bmi1", "bmi2", "abm", "movbe", "f16c", "fma"} <= isa
    # x86-64-v2
    assert built.script("mark").code.isa == {"pni", "popcnt", "sse41", "sse42", "ssse3"}


@pytest.mark.usefixtures("cpu")
def test_load_refuses_what_this_cpu_would_not_run(built: Marks, recent: Marks) -> None:
    for target in (None, "cpu"):
        with pytest.raises(
            LoadError, match=r"abm, avx2, avx512f, bmi1, .*, movbe, .*: build it with an older"
        ):
            tilusbuild.load("mark", where=recent.cache, target=target)
    with pytest.raises(LoadError, match="is made for a CPU with abm, avx2"):
        library.load_launcher(recent.script("mark"), 1, None)
    assert tilusbuild.load("mark", where=built.cache)(np.zeros(9, "f4"))[-1] == 1


@pytest.mark.usefixtures("cpu")
def test_preflight_compares_this_cpu_unless_one_is_named(recent: Marks, tmp_path: Path) -> None:
    recent.run("package", "-o", tmp_path)
    (path,) = tmp_path.glob("*.tar.*")
    host = DescribedHost(device.get_cpu(), platform.machine())
    with unpack_package(str(path), select_script_files, Limits()) as (listing, directory):
        mine = predict_run(listing, directory, host)
        named = predict_run(listing, directory, replace(host, isa="haswell"))
    (line,) = [line for line in mine.instances if line.script == "mark"]
    assert line.problems[0].startswith("mark cpu is made for a CPU with abm, avx2")
    assert named.ok


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("verb", ["run", "tune --unchecked"])
def test_a_measurement_calls_nothing_that_this_cpu_would_not_run(
    recent: Marks, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    status = main(["-C", str(recent.directory), *verb.split(), "mark", "--size", "n=4"])
    assert status == 2
    assert "mark cpu is made for a CPU with abm, avx2" in capsys.readouterr().err


@pytest.mark.usefixtures("cpu")
def test_check_serves_nothing_that_this_cpu_would_not_run(recent: Marks, built: Marks) -> None:
    for marks, served in ((recent, False), (built, True)):
        script, (why,) = checking._choose_instance([marks.script("mark")], device.get_cpu())
        assert (script is not None) is served
        assert ("is made for a CPU with abm" in why) is not served


def test_flags_for_a_cpu_ask_for_its_features() -> None:
    flags = ["-Xcompiler=-mavx512vl,-msse4.2", "-mamx-tile", "-mno-avx2", "-m64", "-mtune=intel"]
    assert list_flag_features(flags) == {"avx512vl", "sse42", "amxtile"}
    assert list_flag_features(["-mlzcnt,-mbmi", "-msse3"]) == {"abm", "bmi1", "pni"}
    assert not list_flag_features(["-mavx256-split-unaligned-load", "-mprefer-vector-width=256"])


def test_a_cpu_without_a_list_of_features_decides_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_list_cpu_features", frozenset)
    assert device.explain_cpu_refusal(frozenset(["sse42"])) is None


def test_this_cpus_own_features_are_spelt_as_the_compiler_spells_them() -> None:
    assert {"sse42", "popcnt"} <= device._list_cpu_features()
    assert device.explain_cpu_refusal(frozenset(["sse42"])) is None
