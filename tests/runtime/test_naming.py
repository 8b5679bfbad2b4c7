"""Names of programs: what is printed reads back as the same, and means it and nothing else."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilusbuild.runtime.naming import (
    NamePattern,
    format_hint_lines,
    format_instance_name,
    format_program_name,
    format_value,
    join_targets,
    matches_value,
    parse_name,
    quote_name,
)

scripts = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", fullmatch=True)
identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
values = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.sampled_from(["1", "true", "1e3", "inf", "f16", "a b", "]", '"', "/0 x", "a,b=c", "", "-"]),
)
constants = st.dictionaries(identifiers, values, max_size=4)


@given(scripts, constants, st.none() | st.integers(0, 10**6), scripts | st.just(""))
def test_what_is_printed_reads_back(script, params, index, target) -> None:
    printed = format_program_name(script, params, index, target)
    name = parse_name(printed)
    texts = tuple((key, format_value(value)) for key, value in params.items())
    assert name == NamePattern(script, texts, index, target or None)
    assert str(name) == printed
    assert name.matches_instance(script, params, target or "any")
    assert parse_name(" ".join(shlex.split(quote_name(printed)))) == name


@given(constants, constants)
def test_equal_names_are_of_equal_instances(one, other) -> None:
    same = format_instance_name("k", one) == format_instance_name("k", other)
    assert same == (list(map(repr, one.items())) == list(map(repr, other.items())))


@given(values, values)
def test_a_value_that_is_printed_means_only_itself(one, other) -> None:
    if repr(one) != repr(other) and not isinstance(other, str):
        assert not matches_value(format_value(one), other)
    assert matches_value(format_value(one), one)


def test_parts_may_be_left_out() -> None:
    params = {"dtype": "f16", "bias": True}
    for typed_name in (
        "gemm",
        "gemm[dtype=f16]",
        "gemm[f16]",
        "gemm[ bias = true ] h100",
        "gemm/3",
    ):
        assert parse_name(typed_name).matches_instance("gemm", params, "h100"), typed_name
    for other in ("gemm[dtype=f32]", "gemm[f32]", "gemm h200", "gem", "gemm[bits=1]"):
        assert not parse_name(other).matches_instance("gemm", params, "h100"), other
    assert parse_name("vec_add/1").matches_instance("VecAdd", {}, "cpu")


@pytest.mark.parametrize(
    "text", ["", "a/", "a/b", "a[", "a[]", "a[b=]", "a[b=1", "a/1/2", 'a[b="]']
)
def test_what_is_not_a_name_is_refused(text) -> None:
    with pytest.raises(ValueError, match=r"name|NAME|quotes"):
        parse_name(text)


def test_a_target_of_its_own_word_belongs_to_the_name_before() -> None:
    targets = {"cpu", "h100"}
    assert join_targets(["a/1", "h100", "b", "c", "cpu"], targets) == ["a/1 h100", "b", "c cpu"]
    assert join_targets(["cpu", "cpu"], targets) == ["cpu", "cpu"]


def test_a_hint_lists_a_dozen_and_counts_the_rest() -> None:
    lines = [f"script{number}" for number in range(14)]
    assert format_hint_lines([*lines, *lines]).splitlines() == [*lines[:12], "and 2 more"]
    assert format_hint_lines(lines[:12]).splitlines() == lines[:12]
