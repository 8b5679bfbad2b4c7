"""Which constants are an instance: rules over constants alone take instances away."""

from itertools import permutations, product
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tilusbuild.errors import InputError, Location
from tilusbuild.expr import parse_expression
from tilusbuild.manifest.loading import load_manifest
from tilusbuild.manifest.model import Manifest
from tilusbuild.plan import model
from tilusbuild.plan.model import Target, list_instances, make_targets
from tilusbuild.plan.planner import _find_named_values
from tilusbuild.plan.spaces import locate_space_error, make_space_spec, read_imported_space
from tilusbuild.plan.valued import Grouping
from tilusbuild.runtime.naming import parse_name
from tilusbuild.space.model import SpaceError
from tilusbuild.space.space import Space

MANIFEST = """\
edition = 1
[project]
name = "p"
version = "0.1.0"
[target.old]
arch = "sm_80"
[target.new]
arch = "sm_90"
[script.one]
template = "one.cu.j2"
kernel = "k"
launch = { grid = [1], block = [1] }
params = { a = [1, 2, 3], b = [0, 1] }
space.c = [1, 2]
"""
RULES = {
    "a < 3": lambda a, b, arch: a < 3,
    "a + b != 2": lambda a, b, arch: a + b != 2,
    "b == 0 or arch.number >= 90": lambda a, b, arch: b == 0 or arch >= 90,
    "a * b <= 2": lambda a, b, arch: a * b <= 2,
    "not b": lambda a, b, arch: not b,
}


def loaded(directory: Path, rules: list[str]):
    (directory / "one.cu.j2").write_text("")
    rows = "".join(f'r{number} = "{rule}"\n' for number, rule in enumerate(rules))
    (directory / "tilus.toml").write_text(f"{MANIFEST}[script.one.restrict]\n{rows}")
    return load_manifest(str(directory / "tilus.toml"))


def test_an_instance_looks_at_its_own_target_only(tmp_path, monkeypatch) -> None:
    manifest = loaded(tmp_path, [])
    looked: list[str] = []
    target_of = model.make_target

    def counted(manifest: Manifest, name: str) -> Target:
        looked.append(name)
        return target_of(manifest, name)

    monkeypatch.setattr(model, "make_target", counted)
    assert len(list(list_instances(manifest, "one", "new"))) == 6
    assert looked == ["new"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=st.lists(st.sampled_from([*RULES]), max_size=4, unique=True))
def test_rules_over_constants_take_instances_away(tmp_path: Path, rules: list[str]) -> None:
    manifest = loaded(tmp_path, rules)
    for target, arch in (("old", 80), ("new", 90)):
        pairs = [
            (instance["a"], instance["b"]) for instance in list_instances(manifest, "one", target)
        ]
        assert pairs == [
            (a, b)
            for a, b in product((1, 2, 3), (0, 1))
            if all(RULES[rule](a, b, arch) for rule in rules)
        ]


def test_a_space_file_that_is_not_utf_8_is_an_error_of_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "one.cu.j2").write_text("")
    (tmp_path / "s.json").write_bytes(b'{"a": "\xff"}')
    text = MANIFEST.replace("space.c = [1, 2]", 'space-file = "s.json"')
    (tmp_path / "tilus.toml").write_text(text)
    manifest = load_manifest(str(tmp_path / "tilus.toml"))
    with pytest.raises(InputError) as caught:
        read_imported_space(manifest, "one")
    first_line = caught.value.render().splitlines()[0]
    assert first_line.endswith("tilus.toml:14:14: error: s.json cannot be read: it is not UTF-8")


@pytest.mark.parametrize("rule", ["a + c < 2", "a > 3"])
def test_an_empty_space_is_an_error_where_rules_leave_no_instance(tmp_path, rule) -> None:
    manifest = loaded(tmp_path, [rule])
    instances = list(list_instances(manifest, "one", "old"))
    assert len(instances) == 6
    with pytest.raises(SpaceError, match="the space is empty"):
        Space(make_space_spec(manifest, "one", make_targets(manifest)["old"], instances[-1]))


def test_the_source_of_a_unit_has_the_values_that_its_kernels_share(tmp_path) -> None:
    manifest = loaded(tmp_path, [])
    params, *_ = list_instances(manifest, "one", "old")
    derived = tuple((name, parse_expression(text)) for name, text in [("e", "d + 1"), ("d", "2*c")])
    target = make_targets(manifest)["old"]
    spec = replace(make_space_spec(manifest, "one", target, params), derived=derived)
    values = {**params, "c": 1, "d": 2, "e": 3}
    for group, names in (("c", "abcde"), ("", "ab")):
        grouping = Grouping(group, spec, cast(Any, None), params, Location(""))
        assert "".join(grouping.select_shared_values(values)) == names


def test_a_rule_that_fails_is_shown_at_its_line(tmp_path) -> None:
    manifest = loaded(tmp_path, ["a < 9", "b + c / 0 > 1"])
    for rule, line in (("r1", 17), ("c", 14), ("a", 13), (None, 14)):
        error = locate_space_error(manifest, "one", "old", SpaceError("", rule=rule))
        location = error.diagnostics[0].location
        assert location is not None
        assert location.line == line


def test_the_order_of_architectures_is_not_an_input(tmp_path) -> None:
    target_archs = set()
    for archs in permutations(["sm_90", "sm_80", "sm_90a"]):
        (tmp_path / "one.cu.j2").write_text("")
        text = MANIFEST.replace('"sm_80"', str(list(archs)))
        (tmp_path / "tilus.toml").write_text(text)
        target_archs.add(make_targets(load_manifest(str(tmp_path / "tilus.toml")))["old"].arch)
    assert target_archs == {"sm_80+sm_90+sm_90a"}


def test_a_name_may_have_the_value_that_a_parameter_has_otherwise(tmp_path) -> None:
    (tmp_path / "one.cu.j2").write_text("")
    space = 'space.c = [1, 2]\nspace.d = { values = [3, 4], when = "c == 1", else = 0 }'
    (tmp_path / "tilus.toml").write_text(MANIFEST.replace("space.c = [1, 2]", space))
    manifest = load_manifest(str(tmp_path / "tilus.toml"))
    instance, *_ = list_instances(manifest, "one", "old")
    schedule_space = Space(
        make_space_spec(manifest, "one", make_targets(manifest)["old"], instance)
    )
    names = {
        text: parse_name(f"one[{text}]").split_schedule({"c", "d"}, instance)
        for text in ("c=2,d=0", "d=4", "d=5")
    }
    assert {text: _find_named_values(schedule_space, name) for text, name in names.items()} == {
        "c=2,d=0": {"c": 2, "d": 0},
        "d=4": {"d": 4},
        "d=5": {},
    }
