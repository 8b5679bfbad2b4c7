"""Which instance serves which device, a reason for each that does not; several GPUs at once."""

import platform
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from support.marks import Marks
from tilusbuild.runtime import choose, device
from tilusbuild.runtime.device import Device
from tilusbuild.runtime.errors import DriverError, LoadError
from tilusbuild.runtime.kernel import Kernel
from tilusbuild.runtime.script import Script

H100 = Device("cuda", 0, "NVIDIA H100", "sm_90", 13000)
A100 = Device("cuda", 1, "NVIDIA A100", "sm_80", 13000)
L40 = Device("cuda", 2, "NVIDIA L40", "sm_89", 13000)
FUTURE = Device("cuda", 3, "NVIDIA X", "sm_140", 15000)


@pytest.fixture
def cuda(built: Marks) -> Any:
    """cuda("sm_90a", ptx=False, …): the script as if it were built for GPUs."""

    def make(*archs: str, target: str = "", **changes: Any) -> Script:
        script = built.script("mark")
        code = script.code._replace(archs=archs, **{"toolkit": "13.0.88", **changes})
        return script._replace(target=target or "+".join(archs), kind="cuda", code=code)

    return make


def test_the_most_exact_code_is_taken(cuda: Any) -> None:
    plain, own, ptx = cuda("sm_90"), cuda("sm_90a"), cuda("sm_80", ptx=True)
    assert choose.choose_instance([plain, ptx, own], H100)[0] is own
    assert choose.choose_instance([plain, ptx], H100)[0] is plain
    assert choose.choose_instance([ptx, own], H100)[0] is own
    assert choose.choose_instance([ptx, own], A100)[0] is ptx
    assert choose.choose_instance([cuda("sm_80"), newer := cuda("sm_86")], L40)[0] is newer


def test_each_candidate_that_is_refused_has_its_reason(cuda: Any, built: Marks) -> None:
    refused = [
        (cuda("sm_90a"), "sm_90a code runs on sm_90 only, not sm_80"),
        (cuda("sm_89"), "needs minor version 9"),
        (cuda("sm_77"), 'unknown architecture "sm_77"'),
        (cuda("sm_80", machine="riscv64"), f"made for riscv64, not {platform.machine()}"),
        (cuda("sm_80", toolkit="14.1"), "CUDA 14.1, and the driver supports CUDA 13.0"),
        (cuda("sm_80", toolkit=None), "not known"),
        (built.script("mark"), "cpu code, and the device is cuda:1"),
    ]
    with pytest.raises(LoadError) as error:
        choose.choose_instance([script for script, _ in refused], A100)
    for line, (_, reason) in zip(str(error.value).splitlines()[1:], refused, strict=True):
        assert reason in line


def test_what_is_not_known_is_refused(cuda: Any) -> None:
    with pytest.raises(LoadError, match="is not known"):
        choose.choose_instance([cuda("sm_90"), cuda("sm_120")], FUTURE)
    assert choose.choose_instance([cuda("sm_90", ptx=True)], FUTURE)[0].code.ptx


def test_ptx_needs_a_driver_as_new_as_its_toolkit(cuda: Any) -> None:
    script = cuda("sm_80", ptx=True, toolkit="13.2.10")
    assert choose.choose_instance([script], A100._replace(driver=13000))[0] is script
    with pytest.raises(LoadError, match=r"its PTX is of CUDA 13\.2, and .* 13\.0"):
        choose.choose_instance([script], H100)
    assert choose.choose_instance([script], H100._replace(driver=13020))[0] is script


def test_two_that_suit_equally_well_are_not_guessed_between(cuda: Any) -> None:
    with pytest.raises(LoadError, match=r"mark big in .*\n +mark small in .*\n.*target="):
        choose.choose_instance([cuda("sm_80", target="big"), cuda("sm_80", target="small")], A100)


def test_no_gpu_means_the_cpu_or_an_error(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "may_have_cuda", lambda: False)
    with pytest.raises(LoadError, match="cuda code"):
        Kernel([cuda("sm_80")]).select(n=1)


class OnGpu:
    """What a kernel asks of a tensor."""

    def __init__(self, index: int, size: int) -> None:
        self.device = f"cuda:{index}"
        self.shape = (size,)
        self._index = index

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._index


@pytest.mark.parametrize("driver", [True, False], ids=["driver", "no-driver"])
def test_tensors_on_the_wrong_device_are_reported_as_such(built, cuda, monkeypatch, driver) -> None:
    error = None if driver else DriverError("no CUDA driver")
    monkeypatch.setattr(device, "get_gpu", Mock(return_value=H100, side_effect=error))
    text = r"mark is built for cpu \(cpu\), and the call's tensors are on cuda:1"
    with pytest.raises(LoadError, match=text):
        Kernel([built.script("mark")])(OnGpu(1, 8), OnGpu(1, 8))
    text = r"built for h100 \(sm_90a\), .* are on the cpu"
    with pytest.raises(LoadError, match=text):
        Kernel([cuda("sm_90a", target="h100")])(np.zeros(8, "f4"), np.zeros(8, "f4"))


def test_without_a_driver_there_is_no_device() -> None:
    with pytest.raises(DriverError):
        device.get_gpu(63)
    assert device.get_cpu().arch == "cpu"
    assert device.parse_dlpack_kind((1, 0)) == "cpu"
    assert device.parse_dlpack_kind((13, 0)) == "cuda"
    assert device.parse_dlpack_kind((7, 0)) is None
