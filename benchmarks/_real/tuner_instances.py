"""Run in an environment with Kernel Tuner: what it would compile of a script, without a device.

Prints how many configurations its own search space has and each of them, a line of JSON for all;
writes of each that is asked for (its number in that order) the source that it gives its compiler.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    script, count, into = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    import kernel_tuner
    from kernel_tuner import util
    from kernel_tuner.searchspace import Searchspace

    calls: list[dict[str, Any]] = []

    def tune_kernel(name: str, source: Any, size: Any, _: Any, params: Any, **more: Any) -> Any:
        calls.append({"name": name, "source": source, "size": size, "params": params, **more})
        return [], {}

    kernel_tuner.tune_kernel = tune_kernel
    runpy.run_path(script, run_name="__main__")
    (call,) = calls
    space = Searchspace(call["params"], call.get("restrictions"), 1024)
    schedules = [dict(zip(space.param_names, each, strict=True)) for each in space.list]
    schedules.sort(key=lambda schedule: [str(value) for value in schedule.values()])
    chosen = schedules[:: max(1, len(schedules) // count)][:count]
    names = util.default_block_size_names
    divisors = tuple(call.get(f"grid_div_{axis}") for axis in "xyz")
    for number, params in enumerate(chosen):
        size = util.get_problem_size(call["size"], params)
        grid = util.get_grid_dimensions(size, params, divisors, names)
        threads = util.get_thread_block_dimensions(params, names)
        _, text = util.prepare_kernel_string(
            call["name"], call["source"], params, grid, threads, names, "CUDA", None
        )
        directory = into / f"{number}"
        directory.mkdir(parents=True, exist_ok=True)
        # As PyCUDA, its back end for CUDA, declares it.
        (directory / "kernel.cu").write_text('extern "C" {\n' + text + "\n}\n")
    print(json.dumps({"all": schedules, "chosen": chosen}, default=int))


if __name__ == "__main__":
    main()
