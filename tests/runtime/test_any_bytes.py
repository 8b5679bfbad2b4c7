"""Whatever stands in `script.json` or a dispatch table: a selection, or one of the typed errors."""

import copy
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilusbuild
from support.marks import Marks
from tilusbuild.runtime.device import get_cpu
from tilusbuild.runtime.errors import CorruptCacheError, LoadError
from tilusbuild.runtime.sealed import seal_json, unseal_json

bounded = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

TREES: list[Any] = [["name", "n"], ["name", "zz"], ["binary", "//", 1, 0], ["call", "max"]]
ODD = st.sampled_from(
    [None, True, 0, -1, 1, 99, 2**63, 10**400, 1.5, float("nan"), "", "n", "zz", "*", "f32", "cpu"]
) | st.sampled_from([[], {}, [[]], [1, 2], [2, 1], {"every": 0}, *TREES])  # fmt: skip


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every way into a document, the document itself left out."""
    inside = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else inside:
        yield (*above, key)
        yield from places(part, (*above, key))


@st.composite
def spoilt(draw: st.DrawFn, document: Any) -> Any:
    """The document with up to three parts replaced, left out, or said twice."""
    value = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.sampled_from(list(places(value)) or [()]))
        if not where:
            break
        inside = value
        for key in where[:-1]:
            inside = inside[key]
        match draw(st.sampled_from(["replace", "leave out", "twice"])):
            case "leave out":
                del inside[where[-1]]
            case "twice" if isinstance(inside, list):
                inside.insert(where[-1], inside[where[-1]])
            case _:
                inside[where[-1]] = copy.deepcopy(draw(ODD))
    return value


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def use(cache: Path, name: str, **sizes: int) -> str:
    """The name of the error that using the kernel ends in; "" for none."""
    try:
        params: dict[str, Any] = {"real": "f32"} if len(sizes) > 1 else {}
        kernel = tilusbuild.load(name, where=cache, **params)
        kernel.select(**sizes)
        kernel.explain(**sizes)
        assert kernel.programs
    except LoadError as error:
        return type(error).__name__
    return ""


@given(data=st.data())
@bounded
def test_any_table(copied: Marks, data: st.DataObject) -> None:
    script = copied.script("modelled", real="f32")
    rows = [[[2**i, 16, 100], i, 1e-6, [2**i, 16, 100], None, False, []] for i in range(4)]
    tables = [
        {"fingerprint": get_cpu().make_fingerprint(script.hash), "entries": rows[:2]},
        {"fingerprint": {"script": "s", "device": "d", "arch": "a"}, "entries": rows[2:]},
    ]
    table = data.draw(spoilt({"schema": 2, "keys": ["m", "n", "k"], "tables": tables}))
    Path(script.path, "dispatch_table.json").write_text(json.dumps(table))
    error_name = use(copied.cache, "modelled", m=2, n=10, k=5)
    assert error_name in ("", "CorruptCacheError")


@given(data=st.data())
@bounded
def test_any_description(copied: Marks, data: st.DataObject) -> None:
    """Sealed anew, as no accident would leave it."""
    path = Path(copied.script("modelled", real="f32").path, "script.json")
    content = path.read_bytes()
    value = data.draw(spoilt(unseal_json(content)))
    try:
        path.write_bytes(seal_json({k: v for k, v in value.items() if k != "digest"}))
        use(copied.cache, "modelled", m=2, n=10, k=5)
    except TypeError as error:
        assert "has no size" in str(error) or "too: give all keys" in str(error)  # noqa: PT017
    except ValueError as error:
        assert "JSON" in str(error) or "not empty" in str(error)  # noqa: PT017
    finally:
        path.write_bytes(content)


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@bounded
def test_any_bit_of_a_description(copied: Marks, position: float, bit: int) -> None:
    path = Path(copied.script("mark").path, "script.json")
    content = path.read_bytes()
    data = bytearray(content)
    data[int(position * len(data))] ^= 1 << bit
    try:
        path.write_bytes(data)
        with pytest.raises(CorruptCacheError):
            tilusbuild.load("mark", where=copied.cache)
    finally:
        path.write_bytes(content)


def test_untouched_it_works(built: Marks) -> None:
    """What the tests above spoil is right to begin with."""
    assert use(built.cache, "modelled", m=2, n=10, k=5) == ""
    assert round(float(tilusbuild.load("mark", where=built.cache)(np.zeros(9, "f4"))[0])) == 1
