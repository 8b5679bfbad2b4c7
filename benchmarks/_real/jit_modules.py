"""Run in FlashInfer's environment: its JIT writes sources and ninja files, and compiles nothing.

Prints a line for each module: its name, its ninja file, its sources. `flashinfer/__init__.py` is
left out, since it imports what only a machine with a GPU has.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types

MODULES = ("single_decode", "batch_decode", "single_prefill")


def main() -> None:
    spec = importlib.util.find_spec("flashinfer")
    assert spec is not None
    package = types.ModuleType("flashinfer")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["flashinfer"] = package
    torch = importlib.import_module("torch")
    jit = importlib.import_module("flashinfer.jit.attention.modules")
    half, index = torch.float16, torch.int32
    modules = {
        "single_decode": jit.gen_single_decode_module(half, half, half, 128, 128, 0, False, False),
        "batch_decode": jit.gen_batch_decode_module(
            half, half, half, index, 128, 128, 0, False, False
        ),
        "single_prefill": jit.gen_single_prefill_module(
            "fa2", half, half, half, 128, 128, 0, False, False, False
        ),
    }
    for name in MODULES:
        module = modules[name]
        module.write_ninja()
        print(
            json.dumps([name, str(module.ninja_path), [str(source) for source in module.sources]])
        )


if __name__ == "__main__":
    main()
