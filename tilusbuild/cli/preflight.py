"""`tilusbuild preflight PATH --device ARCH`: what a package would do on a machine elsewhere."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

from tilusbuild.cli import options

if TYPE_CHECKING:
    from tilusbuild.package.preflight import Host

_ARCH = re.compile(r"sm_\d{2,3}[af]?", re.ASCII)
_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){0,2}", re.ASCII)


def configure(parser: argparse.ArgumentParser) -> None:
    """The package, and what is known of the machine."""
    parser.add_argument("path", metavar="PATH", help="a folder, a .tar.zst, a wheel, an OCI layout")
    parser.add_argument(
        "-d",
        "--device",
        dest="devices",
        metavar="ARCH",
        action="append",
        required=True,
        help='a GPU\'s architecture, as in sm_103, or "cpu"; may be given several times',
    )
    for name, metavar, text in (
        ("--gpu-name", "NAME", "as the driver says it: only tables that were measured on it count"),
        ("--driver", "VERSION", "the CUDA version that the driver supports, as in 12.8"),
        ("--glibc", "VERSION", "the host's, as in 2.28"),
        ("--libstdcxx", "VERSION", "the newest GLIBCXX symbol of the host, as in 3.4.30"),
        ("--cpu", "LEVEL", "the host's instruction set, as in x86-64-v2"),
        ("--tvm-ffi", "VERSION", "the host's, as in 0.1.9"),
    ):
        parser.add_argument(name, metavar=metavar, help=text)
    parser.add_argument("--machine", help="as `uname -m` says it; this one's without it")
    options.package_limits(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what would be chosen for each device; 1 when something would be missing."""
    from tilusbuild.package.kinds import kind_of
    from tilusbuild.package.opening import opened

    hosts = [_host(arguments, device) for device in arguments.devices]
    with opened(arguments.path) as reader:
        kind = kind_of(reader.list_bytes())
    report = kind.preflight(arguments.path, hosts, options.limits(arguments))
    options.show(report, arguments)
    return 0 if report.ok else 1


def _host(arguments: argparse.Namespace, device: str) -> Host:
    from tilusbuild.errors import input_error
    from tilusbuild.package.preflight import ANY_GPU, NEWEST_DRIVER, Host
    from tilusbuild.runtime.device import Device

    if device != "cpu" and not _ARCH.fullmatch(device):
        raise input_error(
            f"--device {device}: no architecture is called so", hint='write "sm_103", or "cpu"'
        )
    for name in ("driver", "glibc", "libstdcxx", "tvm_ffi"):
        value = getattr(arguments, name)
        if value is not None and not _VERSION.fullmatch(value):
            option = name.replace("_", "-")
            raise input_error(f"--{option} {value}: no version", hint="write numbers, as in 12.8")
    kind = "cpu" if device == "cpu" else "cuda"
    driver = NEWEST_DRIVER
    if arguments.driver is not None:
        major, minor = (int(word) for word in f"{arguments.driver}.0".split(".")[:2])
        driver = 1000 * major + 10 * minor
    return Host(
        Device(kind, 0, arguments.gpu_name or ANY_GPU, device.rstrip("af"), driver),
        arguments.machine or os.uname().machine,
        arguments.glibc,
        arguments.libstdcxx,
        arguments.cpu,
        arguments.tvm_ffi,
    )
