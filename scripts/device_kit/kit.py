"""Prove kernels on this machine: `sh run.sh`. It needs Python 3.10 to 3.13, and a GPU's driver.

Steps run in the order of what matters most, each in processes of its own with a share of the time.
After each step `results.json` has everything so far, so a run that is stopped keeps what it has.
What a machine is missing (torch, nvcc, a GPU) is said in place of its results. Nothing of the
card's settings is changed, and nothing is written outside of this directory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SITE = HERE / "site"
RESULTS = HERE / "results.json"
MOST_LINES = 60
TUNED = (
    *(("quickstart", "rms_norm"), ("gemm", "gemm[dtype=f16]"), ("gemm", "gemm_tma[dtype=f16]")),
    *(("attention", "decode[head_dim=128]"), ("marlin", "gemm[dtype=f16]")),
)
"""Packages and scripts to measure; on the cpu only the first."""
MODULES = ("numpy", "torch", "triton", "jax", "cupy", "pytest")


class Kit:
    """A run: its results, its end, and how its steps start processes."""

    def __init__(self, minutes: float, device: str | None) -> None:
        self.end = time.monotonic() + 60 * minutes
        self.device = device
        self.found: dict[str, Any] = {"schema": 1, "steps": {}}

    @property
    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def python(self, *words: str, most: float, cwd: Path = HERE) -> tuple[int | None, str, str]:
        """Run this Python with the kit's packages; the status (None: out of time), and what it
        printed. Its children end with it."""
        path = os.pathsep.join([str(SITE), str(HERE / "measure"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=cwd,
            env={**environment, "XDG_CACHE_HOME": str(HERE / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=max(1.0, min(most, self.left)))
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            status = None
        return status, out, err

    def step(self, name: str, most: float, do: Callable[[Kit, float], Any]) -> None:
        """Do a step if there is time for it, and write the results."""
        if self.left < 5:
            self.found["steps"][name] = {"left out": "no time was left"}
        else:
            began = time.monotonic()
            sys.stdout.write(f"{name} …\n")
            sys.stdout.flush()
            try:
                result = do(self, min(most, self.left))
            except Exception as error:  # what one step meets must not cost the others
                result = {"left out": f"{type(error).__name__}: {error}"}
            seconds = round(time.monotonic() - began, 1)
            self.found["steps"][name] = {"seconds": seconds, "result": result}
        temporary_path = RESULTS.with_suffix(".tmp")
        temporary_path.write_text(json.dumps(self.found, indent=1) + "\n")
        temporary_path.replace(RESULTS)


# Setting up.


def suits(wheel: str) -> bool:
    """Whether a wheel is for this Python, by its name."""
    *_, tag, abi, where = wheel.removesuffix(".whl").split("-")
    python_tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    if where != "any" and platform.machine() not in where:
        return False
    if abi == "abi3":
        return int(tag[3:]) <= sys.version_info[1]
    return tag.startswith("py") or tag == python_tag


def install() -> list[str]:
    """Unpack the wheels that are for this Python; nothing is installed on the machine."""
    shutil.rmtree(SITE, ignore_errors=True)
    SITE.mkdir()
    names = sorted(path.name for path in (HERE / "wheels").iterdir() if suits(path.name))
    for name in names:
        with zipfile.ZipFile(HERE / "wheels" / name) as wheel:
            wheel.extractall(SITE)
    return names


def machine(kit: Kit, most: float) -> dict[str, Any]:
    """What this machine is and has."""
    ask = (
        "import json, os\n"
        "from importlib import metadata\n"
        "from tilusbuild.runtime.device import find_first_gpu, get_cpu\n"
        "gpu = find_first_gpu()\n"
        "found = {'cpu': get_cpu().name, 'gpu': gpu and gpu._asdict(), 'packages': {}}\n"
        f"for name in {MODULES!r}:\n"
        "    for each in (name, name + '-cuda12x', name + '-cuda13x'):\n"
        "        try:\n"
        "            found['packages'][name] = metadata.version(each)\n"
        "        except metadata.PackageNotFoundError:\n"
        "            pass\n"
        "print(json.dumps(found))\n"
    )
    status, out, err = kit.python("-c", ask, most=most)
    if status:
        raise RuntimeError(err.strip().splitlines()[-1])
    facts: dict[str, Any] = json.loads(out)
    query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu"
    with suppress(OSError, subprocess.SubprocessError):
        facts["nvidia-smi"] = subprocess.run(
            [
                shutil.which("nvidia-smi") or "nvidia-smi",
                f"--query-gpu={query}",
                "--format=csv,noheader",
            ],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout.strip()
    tools = ("nvcc", "compute-sanitizer", "g++")
    return {
        **facts,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "tools": {name: path for name in tools if (path := shutil.which(name))},
    }


# The steps.


def packages() -> list[Path]:
    """The packages that have tests."""
    return sorted(
        package for package in (HERE / "packages").iterdir() if (package / "tests").is_dir()
    )


def check(kit: Kit, most: float) -> dict[str, Any]:
    """Every program of every package at every case."""
    row_by_package: dict[str, Any] = {}
    for number, package in enumerate(packages()):
        share = (most if number == 0 else min(most, kit.left)) / (len(packages()) - number)
        words = ["-m", "tilusbuild.check", f"packages/{package.name}", "--json"]
        words += ["--device", kit.device] if kit.device else []
        status, out, err = kit.python(*words, most=share)
        rows = parse_rows(out)
        calls = [row for row in rows if row["event"] == "checked"]
        row_by_package[package.name] = {
            "ended": "out of time" if status is None else status,
            "calls": len(calls),
            "right": sum(row["status"] == "ok" for row in calls),
            "served": [row for row in rows if row["event"] == "served"],
            "wrong": [row for row in calls if row["status"] != "ok"],
            "error": err.strip()[-2000:],
        }
        most -= share
    return row_by_package


def sanitize(kit: Kit, most: float) -> Any:
    """A sample of kernels under compute-sanitizer's memcheck and racecheck."""
    tool = shutil.which("compute-sanitizer")
    if tool is None or kit.device == "cpu" or not gpu(kit):
        return {"left out": "no compute-sanitizer" if tool is None else "no GPU"}
    row_by_way = {}
    for way in ("memcheck", "racecheck"):
        start = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        command = [tool, "--tool", way, "--error-exitcode", "9", sys.executable]
        status, out, err = kit.python(
            *("-c", start, *command, "measure/sample.py"), most=min(most / 2, kit.left)
        )
        summary_lines = [
            line for line in (out + err).splitlines() if "ERROR SUMMARY" in line or "called" in line
        ]
        row_by_way[way] = {"status": status, "said": summary_lines or (out + err)[-500:]}
    return row_by_way


def tune(kit: Kit, most: float) -> Any:
    """Measure scripts, each in an equal part of the time; their logs are for `tune --import`."""
    on_gpu = kit.device != "cpu" and gpu(kit)
    candidates = [(p, s) for p, s in TUNED if (HERE / "packages" / p / "tests").is_dir()]
    chosen = candidates if on_gpu else candidates[:1]
    row_by_name = {}
    for number, (package, script) in enumerate(chosen):
        share = min(most, kit.left) / (len(chosen) - number)
        name = f"{package}-{script.partition('[')[0]}.{'cuda' if on_gpu else 'cpu'}"
        log = HERE / f"{name}.jsonl"
        words = ["-m", "tilusbuild.check", f"packages/{package}", script, "--json"]
        words += ["--measure", str(log), "--budget", f"{max(1, int(share * 0.8))}s"]
        words += ["--device", kit.device] if kit.device else []
        status, out, err = kit.python(*words, most=share)
        row_by_name[name] = {
            "ended": status,
            "said": list(choices(parse_rows(out))),
            "error": err[-500:],
            "log": log.read_text().splitlines() if log.exists() else [],
        }
        most -= share
    return row_by_name or {"left out": "no package with tests"}


def choices(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the fastest program of each size."""
    sizes: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["event"] == "checked":
            label = ", ".join(f"{name}={value}" for name, value in row["sizes"].items())
            sizes.setdefault(label, []).append(row)
    for label, calls in sizes.items():
        right = [row for row in calls if row["status"] == "ok" and row["seconds"] is not None]
        best = min(right, key=lambda row: row["seconds"], default=None)
        what = f"program {best['program']}, {best['seconds'] * 1e3:.4f} ms" if best else None
        yield f"{label}: {what or 'no program is usable'}"
    if sizes:
        yield f"done: {len(sizes)} sizes"


def parse_rows(out: str) -> list[dict[str, Any]]:
    """Return the whole lines of JSON among what a command printed."""
    return [json.loads(line) for line in out.splitlines() if line.endswith("}")]


def measure(name: str) -> Callable[[Kit, float], Any]:
    """A step of `measure/on_device.py`, which prints a line of JSON for each result."""

    def do(kit: Kit, most: float) -> Any:
        if kit.device == "cpu" or not gpu(kit):
            return {"left out": "no GPU"}
        status, out, err = kit.python("measure/on_device.py", name, most=most)
        rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        ended = "out of time" if status is None else err.strip().splitlines()[-1:] if status else 0
        return {"rows": rows, "ended": ended}

    return do


def device_tests(kit: Kit, most: float) -> Any:
    """The repository's tests on a device, as far as this machine has what they need."""
    facts = kit.found["steps"]["machine"].get("result", {})
    missing = [name for name in ("torch", "numpy") if name not in facts.get("packages", {})]
    missing += [] if "nvcc" in facts.get("tools", {}) else ["nvcc"]
    missing += [] if kit.device != "cpu" and gpu(kit) else ["a GPU"]
    if missing:
        return {"left out": "needs " + ", ".join(missing)}
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "tests/gpu"]
    status, out, err = kit.python(*words, most=most, cwd=HERE / "source")
    return {"status": status, "said": out.splitlines()[-25:], "error": err[-500:]}


def gpu(kit: Kit) -> bool:
    return bool(kit.found["steps"]["machine"].get("result", {}).get("gpu"))


STEPS: Sequence[tuple[str, float, Callable[[Kit, float], Any]]] = (
    ("machine", 30, machine),
    ("check", 100, check),
    ("calls", 60, measure("calls")),
    ("kernels", 80, measure("kernels")),
    ("dispatch", 40, measure("dispatch")),
    ("tune", 80, tune),
    ("sanitizer", 40, sanitize),
    ("tests/gpu", 120, device_tests),
)
"""With the most seconds that each may take."""


# The table.


def lines(report: dict[str, Any]) -> list[str]:
    """What was found, in at most `MOST_LINES` lines."""
    texts: list[str] = []
    for name, step in report["steps"].items():
        result = step.get("result", step)
        if "left out" in result:
            texts.append(f"{name}: left out: {result['left out']}")
            continue
        texts.append(f"{name} ({step['seconds']} s)")
        if name == "machine":
            texts += [f"  {key}: {value}" for key, value in result.items()]
        elif name == "check":
            for package, row in result.items():
                texts.append(f"  {package}: {row['right']} of {row['calls']} calls right")
                texts += [f"    {wrong['again']}: {wrong['status']}" for wrong in row["wrong"][:3]]
                texts += [f"    {row['error'].splitlines()[-1]}"] if row["error"] else []
                texts += [f"    {why}" for why in dict.fromkeys(why for _, why in unserved(row))]
        elif "rows" in result:
            texts += ["  " + shown(row) for row in result["rows"][:12]]
            texts += [f"  ended: {result['ended']}"] if result["ended"] else []
        elif name == "tune":
            texts += [
                f"  {label}: {(row['said'] or ['nothing'])[-1]}" for label, row in result.items()
            ]
        else:
            texts += [f"  {key}: {value}" for key, value in result.items()]
    short = [re.sub(r"\s+", " ", line)[:160] if len(line) > 160 else line for line in texts]
    return [*short[: MOST_LINES - 1], f"all of it is in {RESULTS}"]


def unserved(checked: dict[str, Any]) -> list[tuple[str, str]]:
    """The scripts of a package that nothing serves on the machine, each with the reason."""
    return [(row["script"], row["why"][0]) for row in checked["served"] if not row["target"]]


def shown(row: dict[str, Any], between: str = "  ") -> str:
    return between.join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in row.items()
    )


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="run.sh", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--device", default=os.environ.get("DEVICE"), help="a GPU's number, or cpu")
    parser.add_argument("--only", help="these steps alone, with commas; `machine` always runs")
    options = parser.parse_args(words)
    kit = Kit(options.minutes, options.device or None)
    kit.found["wheels"] = install()
    only = options.only.split(",") if options.only else [name for name, _, _ in STEPS]
    for name, most, do in STEPS:
        if name == "machine" or name in only:
            kit.step(name, most, do)
    print("\n".join(["", *lines(kit.found)]))
    wrong = kit.found["steps"].get("check", {}).get("result", {})
    return 1 if any(row["wrong"] or row["ended"] for row in wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
