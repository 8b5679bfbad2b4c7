"""A rendering under limits: whatever the template does, it ends, and the message has its place."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from support.processes import wait_until
from tilusbuild.errors import Diagnostic, InputError
from tilusbuild.process.stopping import STOPPING, stoppable
from tilusbuild.render.renderer import Renderer
from tilusbuild.render.worker import RenderLimits

SMALL = RenderLimits(seconds=1.0, memory=200 << 20, characters=1 << 20)


def _doubling(step: str) -> str:
    loop = "{% for i in range(60) %}{% set ns.s = STEP %}{% endfor %}"
    return "{% set ns = namespace(s='aaaa') %}\n" + loop.replace("STEP", step)


MEMORY = {
    "concatenation": _doubling("ns.s ~ ns.s"),
    "join": _doubling("[ns.s, ns.s]|join"),
    "replace": _doubling("ns.s|replace('a', 'aa')"),
    "list": _doubling("[ns.s, ns.s]|list * 2 ~ ''"),
    "set block": "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}{% set x %}"
    "{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
    "width of a format": "{{ '%*d' % (10 ** 10, 1) }}",
    "width of format()": "{{ '{:>{w}}'.format(1, w=10 ** 10) }}",
    "tabs": "{{ '\\t'.expandtabs(2000000000) }}",
    "joined": "{{ ('b' * 1000000).join(['a'] * 100000)|length }}",
}
TIME = {
    "slices": "{{ [1]|slice(10 ** 12)|list }}",
    "sums in C": "{{ ([[1] * 100] * 100000)|sum(start=[])|length }}",
    "searches in C": "{% set r = 'a' * 16000000 %}{% for i in range(100000) %}{{ r.find('b') }}"
    "{% endfor %}",
}


def refused(root: Path, template: str) -> Diagnostic:
    (root / "k.cu").write_text(template)
    renderer = Renderer(str(root), limits=SMALL)
    try:
        with pytest.raises(InputError) as caught:
            renderer.render("k.cu", {})
    finally:
        renderer.close()
    (found,) = caught.value.diagnostics
    assert found.place is not None
    assert found.place.path == "k.cu"
    return found


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_limited(name: str, tmp_path: Path) -> None:
    found = refused(tmp_path, MEMORY[name])
    words = ("memory", "too long", "too many", "takes more than 1 s")
    assert any(word in found.message for word in words), found


@pytest.mark.parametrize("name", TIME)
def test_time_is_limited(name: str, tmp_path: Path) -> None:
    found = refused(tmp_path, TIME[name])
    assert any(word in found.message for word in ("takes more than 1 s", "memory")), found


def test_the_result_is_limited(tmp_path: Path) -> None:
    found = refused(tmp_path, "{% for i in range(2000) %}{{ 'x' * 1000 }}{% endfor %}")
    assert "1,048,576 characters" in found.message


def test_a_killed_child_is_an_error_and_the_next_rendering_has_another(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("{{ x }}")
    renderer = Renderer(str(tmp_path), limits=SMALL)
    assert renderer.render("k.cu", {"x": 1}).text == "1"
    assert renderer._worker is not None
    assert renderer._worker._child is not None
    child = renderer._worker._child._pid
    os.kill(child, 9)
    with pytest.raises(InputError, match="killed"):
        renderer.render("k.cu", {"x": 2})
    assert renderer.render("k.cu", {"x": 3}).text == "3"
    child = renderer._worker._child._pid
    renderer.close()
    wait_until(lambda: not os.path.exists(f"/proc/{child}"))


def test_several_together_are_as_many_alone(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("{% include 'a' ignore missing %}{{ 1 // x }}{{ 'b' * x }}")
    alone = Renderer(str(tmp_path))
    renderer = Renderer(str(tmp_path), limits=SMALL)
    contexts = [{"x": x} for x in (1, 2, 0, 3)]
    together = renderer.render_some("k.cu", contexts)
    assert together == [alone.render("k.cu", each) for each in contexts[:2]]
    with pytest.raises(InputError, match="division by zero"):
        renderer.render_some("k.cu", contexts[2:])
    renderer.close()


def test_a_child_has_none_of_the_handlers_that_end_its_parent(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("")
    renderer = Renderer(str(tmp_path), limits=SMALL)
    with stoppable():
        renderer.render("k.cu", {})
    assert renderer._worker is not None
    assert renderer._worker._child is not None
    status = Path(f"/proc/{renderer._worker._child._pid}/status").read_text()
    masks = {
        line[:6]: int(line[8:], 16)
        for line in status.splitlines()
        if line.startswith(("SigBlk", "SigIgn", "SigCgt"))
    }
    for number in STOPPING:
        assert not masks["SigBlk"] & 1 << number - 1
        assert not masks["SigCgt"] & 1 << number - 1
    assert not masks["SigIgn"] & 1 << signal.SIGTERM - 1


def test_the_parent_knows_the_text_that_the_child_read(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("{% include 'part' %}")
    (tmp_path / "part").write_text("old")
    renderer = Renderer(str(tmp_path), limits=SMALL)
    renderer.render("k.cu", {})
    digest = renderer.digest("part")
    (tmp_path / "part").write_text("new")
    assert renderer.digest("part") == digest
    assert renderer.render("k.cu", {}).text == "old"
    renderer.close()


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("")
    parent = os.fork()
    if parent == 0:
        renderer = Renderer(str(tmp_path), limits=SMALL)
        renderer.render("k.cu", {})
        child = renderer._worker._child._pid  # type: ignore[union-attr]
        (tmp_path / "pid.new").write_text(str(child))
        (tmp_path / "pid.new").rename(tmp_path / "pid")
        time.sleep(100)
    wait_until((tmp_path / "pid").exists)
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    child = int((tmp_path / "pid").read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{child}"))


def test_the_second_rendering_of_a_line_map_is_under_the_limits_too(tmp_path: Path) -> None:
    """Its marks double where a text without any stays empty."""
    double = "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"
    (tmp_path / "t.j2").write_text(
        "{% set x %}\n{% endset %}{% set ns = namespace(s=x) %}"
        "{% for i in range(40) %}" + double + "{% endfor %}{{ ns.s|length }}\n"
    )
    renderer = Renderer(str(tmp_path), limits=SMALL)
    try:
        text = renderer.render("t.j2", {}).text
        assert text == "0\n"
        assert renderer.line_map("t.j2", {}, text).origin(1) is None
    finally:
        renderer.close()
