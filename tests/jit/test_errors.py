"""What a program in Python gets is what the command line prints, and its parts as attributes."""

import pickle

import pytest

import tilusbuild
from support.command_line import run
from support.scale import TEMPLATE, manifest

BROKEN = manifest().replace("unroll = {", "unroll = [1, 2, oops]\nother = {")


@pytest.mark.parametrize(
    ("text", "template"),
    [
        (BROKEN, TEMPLATE),
        (manifest().replace('kernel = "scale"', 'kernal = "scale"'), TEMPLATE),
        (manifest(), TEMPLATE.replace("{{ unroll }}", "{{ unrol }}")),
        (manifest(), TEMPLATE.replace("{% endif %}", "{% endfi %}")),
    ],
    ids=["toml", "key", "name", "tag"],
)
def test_an_error_says_the_same_in_python(tmp_path, monkeypatch, text, template) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "tilus.toml").write_text(text)
    (tmp_path / "kernels" / "scale.cu.j2").write_text(template)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tilusbuild.InputError) as raised:
        tilusbuild.KernelCache().cached("scale", target="cpu")
    error = raised.value
    assert run(tmp_path, "build", status=2).err.rstrip("\n") == str(error)
    assert error.path is not None
    assert error.text is not None
    source = (tmp_path / error.path).read_text().splitlines()
    assert error.line is not None
    assert error.text == source[error.line - 1]
    assert error.message in str(error)
    assert f"{error.line:>5} | {error.text}" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line, again.hint) == (str(error), error.line, error.hint)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"compile_flags": "-fplugin=./evil.so"}, '"-fplugin=./evil.so" is not a flag that is'),
        ({"compile_flags": ["-O2", "@flags"]}, '"@flags" is not a flag that is'),
        ({"compile_flags": "-o elsewhere"}, '"-o" is set by tilusbuild'),
        ({"target_host": "x86-64,-fplugin=./evil.so"}, "not the name of an architecture"),
    ],
)
def test_a_callers_flags_are_held_to_what_a_manifests_are(tmp_path, monkeypatch, how, said) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "tilus.toml").write_text(manifest())
    (tmp_path / "kernels" / "scale.cu.j2").write_text(TEMPLATE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tilusbuild.InputError) as raised:
        tilusbuild.KernelCache().cached("scale", target="cpu", **how)
    assert said in str(raised.value)
    assert not list(tmp_path.glob(".cache/programs/*"))
