"""The C dispatcher and the runtime decide alike, whatever buckets, rules, tables and sizes.

Three seeds; more with `TILUSBUILD_TEST_SEEDS=60`.
"""

import ctypes
import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.marks import Marks
from tilusbuild.dispatch.describe import node_to_json
from tilusbuild.dispatch.tables import format_json
from tilusbuild.embed.csource import write_dispatcher_sources
from tilusbuild.expr import parse_expression
from tilusbuild.runtime.choose import Chooser
from tilusbuild.runtime.device import get_cpu
from tilusbuild.runtime.errors import LoadError
from tilusbuild.runtime.kernel import list_available_programs
from tilusbuild.runtime.script import Script, parse_fitted_cost, read_script
from tilusbuild.runtime.sealed import seal_json, unseal_json
from tilusbuild.runtime.tables import DeviceTable, TableEntry, TableFile, read_dispatch_table

SEEDS = int(os.environ.get("TILUSBUILD_TEST_SEEDS", "3"))
KEYS = ("m", "n", "k")


def size(chance: random.Random) -> int:
    """Below 2^53: above, an integer that meets a float has no value in C."""
    return chance.choice(
        [
            chance.randrange(-3, 20),
            chance.randrange(1, 5000),
            (1 << chance.randrange(1, 50)) + chance.randrange(-2, 3),
            chance.choice([16, 100, 200, 256, 1000, 1024]),
        ]
    )


def bucket(chance: random.Random) -> Any:
    edges = sorted(chance.sample(range(1, 4000), chance.randrange(1, 6)))
    every = {"every": chance.choice([1, 3, 64, 100, 1 << 40])}
    return chance.choice(["tilus", "pow2", "exact", edges, every])


def rule(chance: random.Random) -> dict[str, Any]:
    a, b = (["name", chance.choice(KEYS)] for _ in range(2))
    small = ["compare", ["binary", "%", a, 7], "<", 3]
    when = chance.choice(
        [
            ["compare", a, "<=", chance.randrange(300)],
            ["and", ["compare", a, "==", b], small],
            ["or", ["in", a, [16, 32, b], False], ["unary", "not", small]],
            ["compare", ["binary", "%", a, b], "==", 0],
        ]
    )
    return {"source": "of the test", "program": chance.randrange(4), "when": when}


def cost(chance: random.Random) -> dict[str, Any]:
    """A fitted cost: some have no value at some sizes."""
    first, second = chance.choice(KEYS), chance.choice(KEYS)
    source = chance.choice(
        [
            f"{chance.random()} + ({chance.random()} * {first}) * cdiv({second}, 132)",
            f"{chance.randrange(9)} * {first} + {second}",
            f"{chance.random()} * {first} * {second}",
            f"{first} // {second}",
            "2.0",
        ]
    )
    return {"source": source, "cost": node_to_json(parse_expression(source).tree)}


def serves_rule(chance: random.Random) -> dict[str, Any]:
    size, width = ["name", chance.choice(KEYS)], ["name", "width"]
    when = chance.choice(
        [
            ["compare", ["binary", "%", size, width], "==", 0],
            ["compare", ["binary", "*", ["name", "share"], size], "<", 5000],
            ["or", ["compare", width, "==", 1], ["compare", ["binary", "//", 64, size], ">", 0]],
        ]
    )
    return {"name": "rule", "source": "of the test", "when": when}


def described(path: Path, chance: random.Random) -> Script:
    """The script with other buckets, rules and entries."""
    value = unseal_json((path / "script.json").read_bytes())
    value["dispatch"]["buckets"] = {key: bucket(chance) for key in KEYS}
    value["dispatch"]["rules"] = [rule(chance) for _ in range(chance.randrange(3))]
    if chance.random() < 0.7:
        value["dispatch"]["serves"] = {
            "rules": [serves_rule(chance) for _ in range(chance.randrange(1, 3))],
            "columns": {"width": [1, 2, 4, 16], "share": [0.5, 1.0, 1.5, 3.0]},
        }
    value["dispatch"]["model"] = chance.choice([None, *2 * [value["dispatch"]["model"]]])
    if value["dispatch"]["model"] and chance.random() < 0.5:
        quotient = ["binary", "//", ["binary", "*", ["name", "tile"], ["name", "m"]], ["name", "n"]]
        value["dispatch"]["model"]["cost"] = quotient
    (path / "script.json").write_bytes(seal_json(json.loads(json.dumps(value))))
    script = read_script(str(path))
    entries = {}
    for _ in range(chance.choice([0, 1, 3, 40, 300])):
        key = tuple(to_bucket(size(chance)) for to_bucket in script.buckets.values())
        best, *others = chance.sample(range(4), chance.randrange(1, 5))
        entries[key] = TableEntry(key, best, 1e-6, key, others=tuple(others))
    fitted = tuple(
        parse_fitted_cost({**cost(chance), "program": program}, KEYS, script.programs)
        for program in chance.sample(range(4), chance.choice([0, 0, 1, 4]))
    )
    fingerprint = get_cpu().make_fingerprint(script.hash)
    table = DeviceTable(fingerprint, tuple(entries.values()), fitted)
    data = format_json(script, TableFile((table,)))
    (path / "dispatch_table.json").write_bytes(data)
    return script


@pytest.mark.parametrize("seed", range(SEEDS))
def test_alike(copied: Marks, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    script = described(copied.paths("modelled")[0], chance)
    read = read_dispatch_table(script).tables
    programs = list_available_programs(script)
    refused = dict.fromkeys(chance.sample(range(4), chance.choice([0, 1, 2])), "wrong")
    for name, text in write_dispatcher_sources(script, read, refused).items():
        (tmp_path / name).write_text(text)
    command = ["gcc", "-O1", "-shared", "-fPIC", "dispatch.c", "-o", "dispatch.so", "-pthread"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "dispatch.so"))
    for function in (library.modelled_select, library.modelled_source):
        function.argtypes = [ctypes.c_int64] * 3
    library.modelled_source.restype = ctypes.c_char_p
    chooser = Chooser(script, read[0], programs, refused)
    for _ in range(1000):
        sizes = [size(chance) for _ in KEYS]
        c_choice = library.modelled_select(*sizes), library.modelled_source(*sizes)
        try:
            program, source, *_ = chooser.choose_program(dict(zip(KEYS, sizes, strict=True)))
        except LoadError:  # a rule names a refused program, or no program serves the sizes
            assert c_choice == (-1, None), sizes
            continue
        assert program not in refused
        assert c_choice == (program, source.encode()), sizes
