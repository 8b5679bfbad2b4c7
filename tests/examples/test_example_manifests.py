"""The examples' manifests say what their pages promise."""

import pytest

EVERY_SCRIPT = [
    ("quickstart", "saxpy"),
    ("quickstart", "rms_norm"),
    ("gemm", "gemm"),
    ("cutlass", "linear"),
    ("hopper", "rms_norm"),
]


@pytest.mark.parametrize(("example", "script"), EVERY_SCRIPT)
def test_each_target_has_a_default_in_its_space(example, script, request):
    project = request.getfixturevalue(example)
    for target in project.manifest.scripts[script].targets:
        default = project.default(script, target)
        assert default.values in [p.values for p in project.programs(script, target)]


def test_the_quickstart_is_a_few_dozen_programs(quickstart):
    scripts = quickstart.manifest.scripts
    count = sum(len(quickstart.programs(s, t)) for s in scripts for t in scripts[s].targets)
    assert 48 <= count <= 96


def test_the_gemm_space_is_far_larger_than_what_is_built(gemm):
    spaces = [space for t in ("ampere", "hopper") for _, space in gemm.spaces("gemm", t)]
    assert 200 <= sum(space.count for space in spaces) <= 400
    assert sum(space.cartesian for space in spaces) > 5000


@pytest.mark.parametrize(("example", "script"), EVERY_SCRIPT)
def test_every_rule_removes_something(example, script, request):
    """A rule that removes nothing on any target is noise in a page that people learn from."""
    project = request.getfixturevalue(example)
    manifest = project.manifest
    removed = dict.fromkeys(manifest.scripts[script].restrict, 0)
    for target in manifest.scripts[script].targets:
        for _, space in project.spaces(script, target):
            for effect in space.report().rules:
                removed[effect.name] += effect.alone or 0
    assert all(removed.values()), removed
