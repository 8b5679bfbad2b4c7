"""Each rule of the examples' spaces removes something."""

import pytest

from tilusbuild.space.model import build_model
from tilusbuild.space.report import report_space

EVERY_SCRIPT = [
    ("quickstart", "saxpy"),
    ("quickstart", "rms_norm"),
    ("gemm", "gemm"),
    ("gemm", "gemm_tma"),
    ("cutlass", "linear"),
    ("hopper", "rms_norm"),
]


@pytest.mark.parametrize(("example", "script"), EVERY_SCRIPT)
def test_every_rule_removes_something(example, script, request):
    """A rule that removes nothing on any target is noise in a page that people learn from."""
    project = request.getfixturevalue(example)
    manifest = project.manifest
    removed = dict.fromkeys(manifest.scripts[script].restrict, 0)
    for target in manifest.scripts[script].targets:
        for _, space in project.spaces(script, target):
            for effect in report_space(build_model(space.spec)).rules:
                removed[effect.name] += effect.alone or 0
    assert all(removed.values()), removed
