"""T1 files: what is read, and that nothing in them is run."""

import json
from typing import Any

import pytest

from tilusbuild.space.model import SpaceError, SpaceSpec
from tilusbuild.space.space import Space
from tilusbuild.space.t1 import read_t1


def t1(parameters: list[dict[str, Any]], conditions: list[str] | None = None) -> str:
    """The text of a T1 file; a parameter of which only Name and Values matter is an int."""
    return json.dumps(
        {
            "ConfigurationSpace": {
                "TuningParameters": [{"Type": "int", **entry} for entry in parameters],
                "Conditions": [{"Expression": c, "Parameters": []} for c in conditions or []],
            },
            "KernelSpecification": {"Language": "CUDA", "KernelName": "calculate_temp"},
        }
    )


def values_of(text: Any, kind: str = "int") -> list[Any]:
    (only,) = read_t1(t1([{"Name": "p", "Type": kind, "Values": text}])).parameters
    return [row[0] for row in only.values]


def test_a_file_of_the_benchmark_hub() -> None:
    text = t1(
        [
            {"Name": "grid_width", "Values": "[4096]", "Default": [4096]},
            {"Name": "block_size_x", "Values": "[1, 2, 4] + list(range(32, 1024+1, 32))",
             "Default": 256},
            {"Name": "block_size_y", "Values": "[2**i for i in range(0, 6)]", "Default": 7},
        ],
        ["block_size_x*block_size_y>= 32", "block_size_x <= 64 && (block_size_y < 4 || True)"],
    )  # fmt: skip
    read = read_t1(text)
    assert [p.names for p in read.parameters] == [
        ("grid_width",), ("block_size_x",), ("block_size_y",)
    ]  # fmt: skip
    assert read.default == {"grid_width": 4096, "block_size_x": 256}  # 7 is not among the values
    assert [name for name, _ in read.restrict] == ["condition_1", "condition_2"]
    space = Space(SpaceSpec(read.parameters, restrict=read.restrict))
    assert {s.values["block_size_x"] for s in space} == {1, 2, 4, 32, 64}


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("[1, 2, 4]", "int", [1, 2, 4]),
        ("(1, -2)", "int", [1, -2]),
        ([1, 2], "int", [1, 2]),
        ("range(3)", "int", [0, 1, 2]),
        ("list(range(8, 0, -4))", "int", [8, 4]),
        ("[16*i for i in range(1, 9) if i % 2 == 0]", "int", [32, 64, 96, 128]),
        ("[2**i for i in [0, 5]] + [48]", "uint", [1, 32, 48]),
        ("[0.5, 1]", "float", [0.5, 1.0]),
        ("[True, False]", "bool", [True, False]),
        ([True], "bool", [True]),
        ("['float', 'half']", "string", ["float", "half"]),
        ("[1, 1, 2]", "int", [1, 2]),
    ],
)
def test_values(text: Any, kind: str, values: list[Any]) -> None:
    read = values_of(text, kind)
    assert read == values
    assert [type(v) for v in read] == [type(v) for v in values]


@pytest.mark.parametrize(
    "text",
    [
        "[__import__('os') for i in (1,)]",
        "open('x')",
        "[i for i in range(10**9)]",
        "[2**i**i for i in range(9)]",
        "[10**62]",
        "[1] * 10**9",
        "['a' * 10**9]",
        "['%1000000d' % 3]",
        "[i * j for i in range(3) for j in range(2)]",
        "[x.y for x in (1,)]",
        "[x for i in range(3)]",
        "[1 // 0]",
        "[" * 900,
        "-" * 5000 + "1",
        "1" + "+1" * 9000,
        "range('x')",
        "range(1, 2, 0)",
        "",
        "{1: 2}",
        "+".join(["range(99999)"] * 200),
        "+".join(["[i for i in range(99999) if 0]"] * 20),
        "[" + "+".join("1" * 800) + " for i in range(99999)]",
        "[1e999]",
        [float("nan")],
        [2**63],
        None,
        7,
    ],
)
def test_other_values_are_refused(text: Any) -> None:
    with pytest.raises(SpaceError, match='"p"'):
        values_of(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "ConfigurationSpace"),
        ('{"ConfigurationSpace": {}}', "TuningParameters"),
        (t1([{"Values": "[1]"}]), 'tuning parameter 1 has no "Name"'),
        (t1([{"Name": "a b", "Values": "[1]"}]), '"a b" is not a name'),
        (t1([{"Name": "p", "Type": "matrix", "Values": "[1]"}]), 'unknown type "matrix"'),
        (t1([{"Name": "p", "Values": "['x']"}]), "'x' is not of the type int"),
        (t1([{"Name": "p", "Type": "uint", "Values": "[-1]"}]), "-1 is not of the type uint"),
        (t1([{"Name": "p", "Type": "bool", "Values": "[1]"}]), "1 is not of the type bool"),
        (t1([{"Name": "p", "Values": "[1]"}], ["open('x')"]), "condition 1, \"open('x')\""),
        (t1([{"Name": "p", "Values": "[1]"}], ["p > 0", "!p"]), "condition 2"),
    ],
)
def test_wrong_files(text: str, words: str) -> None:
    with pytest.raises(SpaceError) as caught:
        read_t1(text)
    assert words in caught.value.message


def test_the_values_of_a_file_have_one_bound() -> None:
    """Each list is within its own, and nothing of the rest is made."""
    names = [f"p{number}" for number in range(11)]
    with pytest.raises(SpaceError, match=r"more than 1,000,000 steps") as caught:
        read_t1(t1([{"Name": name, "Values": "range(99999)"} for name in names]))
    assert caught.value.rule == "p10"


def test_a_default_of_another_number_type_is_the_value_that_it_equals() -> None:
    read = read_t1(t1([{"Name": "p", "Values": "[1, 2]", "Default": 2.0}]))
    assert repr(read.default) == "{'p': 2}"
    assert Space(SpaceSpec(read.parameters)).complete_point(read.default).values == {"p": 2}


def test_what_kernel_tuner_takes_of_odd_files() -> None:
    """Of a name that appears twice the last values, at the first one's place; 0.5 of an int."""
    read = read_t1(
        t1(
            [
                {"Name": "a", "Values": "[1, 2]"},
                {"Name": "b", "Values": "[0.5, 1, 2.0]"},
                {"Name": "a", "Values": "[4, 8]", "Default": 8},
            ]
        )
    )
    assert [(p.names, p.values) for p in read.parameters] == [
        (("a",), ((4,), (8,))),
        (("b",), ((0.5,), (1,), (2.0,))),
    ]
    assert read.default == {"a": 8}
    assert Space(SpaceSpec(read.parameters)).count == 6
