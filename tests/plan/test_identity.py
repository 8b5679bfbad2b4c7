"""The texts of identity: their words, and what each difference is called."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.builder.explain import differences
from tilusbuild.plan import identity

VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)


def text(**changes: object) -> str:
    parts: dict[str, object] = {
        "script": "matmul",
        "entry": ("kernel", "matmul"),
        "params": {"dtype": "f16"},
        "schedule": {"block_m": 64, "persistent": False},
        "derived": {"threads": 128},
        "signature": ["a: f16*[m, k]", "m: i32 dimension"],
        "launch": ["grid = cdiv(m, block_m)", "block = threads", "smem = 0"],
        "source": "int x;\n",
        "headers": [("ab" * 32, "project/include/a.cuh")],
    }
    return identity.program_text(**{**parts, **changes})  # type: ignore[arg-type]


def test_a_program_reads_like_a_manifest() -> None:
    assert text() == (
        "tilusbuild program 1\n"
        'script = "matmul"\n'
        'kernel = "matmul"\n'
        f"source = sha256:{hashlib.sha256(b'int x;' + bytes([10])).hexdigest()}\n"
        '\n[params]\ndtype = "f16"\n'
        "\n[schedule]\nblock_m = 64\npersistent = false\n"
        "\n[derived]\nthreads = 128\n"
        "\n[args]\na: f16*[m, k]\nm: i32 dimension\n"
        "\n[launch]\ngrid = cdiv(m, block_m)\nblock = threads\nsmem = 0\n"
        f"\n[headers]\n{'ab' * 32}  project/include/a.cuh\n"
    )


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), VALUES, max_size=4))
def test_different_schedules_have_different_texts(schedule: dict[str, object]) -> None:
    changed = {**schedule, "block_m": 65}
    assert (text(schedule=schedule) == text(schedule=changed)) == (schedule == changed)


@given(VALUES, VALUES)
def test_a_value_tells_its_type(first: object, second: object) -> None:
    same = type(first) is type(second) and repr(first) == repr(second)
    texts = [identity.value_text(value) for value in (first, second)]  # type: ignore[arg-type]
    assert (texts[0] == texts[1]) == same


def reasons(before: str, after: str) -> list[str]:
    return list(differences(before, after))


def test_a_changed_header_is_named() -> None:
    after = text(headers=[("cd" * 32, "project/include/a.cuh"), ("ef" * 32, "project/b.cuh")])
    assert reasons(text(), after) == [
        "header project/include/a.cuh changed",
        "header project/b.cuh is new",
    ]


def test_a_changed_constant_shows_both_values() -> None:
    assert reasons(text(), text(params={"dtype": "bf16"})) == [
        'constant dtype changed: "f16" → "bf16"'
    ]


def test_a_changed_source_is_said_once() -> None:
    assert reasons(text(), text(source="int y;\n")) == ["the rendered source changed"]


def test_a_changed_flag_is_shown_without_the_rest_of_the_command() -> None:
    before = "[commands]\n{nvcc} -cubin -O3 source.cu -o program.cubin\n"
    after = "[commands]\n{nvcc} -cubin -O2 source.cu -o program.cubin\n"
    assert reasons(before, after) == ["command {nvcc} … program.cubin changed: -O3 → -O2"]
