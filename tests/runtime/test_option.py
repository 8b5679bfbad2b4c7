"""What a program chooses by `tilusbuild.option`: what counts, how long, and what is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilusbuild import option
from tilusbuild.manifest import Setting, decide_settings


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv("TILUSBUILD_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with option.context():
        yield


def test_every_choice_is_a_setting_above_the_environment_and_below_the_command_line() -> None:
    option.cache_dir("/somewhere")
    option.parallel_workers(4)
    option.bench_warmup(0)
    option.bench_repeat(7)
    option.debug.dump_ir()
    option.debug.disable_ptxas_opt()
    chosen, environment = option.chosen(), {"TILUSBUILD_JOBS": "5"}
    decided = decide_settings("/", {}, environment, None, chosen)
    assert decided.cache_dir.value == "/somewhere"
    assert decided.jobs == Setting(4, "tilusbuild.option")
    assert decide_settings("/", {"jobs": 1}, environment, None, chosen).jobs == Setting(1, "--jobs")
    assert (decided.bench_warmup.value, decided.bench_repeat.value) == (0, 7)
    assert decided.dump_ir.value
    assert decided.disable_ptxas_opt.value


def test_each_choice_can_be_had_for_a_while() -> None:
    option.parallel_workers(1)
    with option.context():
        option.debug.dump_ir()
        option.parallel_workers(9)
        assert dict(option.chosen()) == {"jobs": 9, "dump-ir": True}
    assert dict(option.chosen()) == {"jobs": 1}


def test_a_cache_directory_is_relative_to_where_it_was_chosen(tmp_path, monkeypatch) -> None:
    (tmp_path / "kernels").mkdir()
    monkeypatch.chdir(tmp_path / "kernels")
    option.cache_dir("chosen")
    monkeypatch.chdir(tmp_path)
    assert option.get_cache_dir() == str(tmp_path / "kernels" / "chosen")


@pytest.mark.parametrize(
    ("choose", "error"),
    [
        (lambda: option.parallel_workers(0), "parallel_workers is at least 1, not 0"),
        (lambda: option.parallel_workers(True), "parallel_workers takes an int, not bool"),
        (lambda: option.bench_warmup(-1), "bench_warmup is at least 0, not -1"),
        (lambda: option.bench_repeat(1.5), "bench_repeat takes an int, not float"),  # type: ignore[arg-type]
        (lambda: option.debug.dump_ir(1), "dump_ir takes True or False, not int"),  # type: ignore[arg-type]
        (lambda: option.cache_dir(""), "'' names no directory"),
        (lambda: option.cache_dir(b"x"), "a cache directory is a str"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_option_is_refused(choose: object, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        choose()  # type: ignore[operator]
    assert not option.chosen()
