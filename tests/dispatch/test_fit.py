"""`dispatch fit`: the fewest programs for what was measured, and rules for the sizes between."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from support.marks import Marks, built, copied
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.fit import Fit, FitCase, fit_programs
from tilusbuild.dispatch.measurements import append_rows
from tilusbuild.plan.measured import MeasuredRow
from tilusbuild.runtime import load
from tilusbuild.runtime.device import get_cpu

__all__ = ["built", "copied"]
FILE = "tuned/mark.jsonl"


def fit(cases: list[FitCase], within: float = 1.05, most: int = 8) -> Fit:
    return fit_programs(cases, ("m", "n"), within, most, lambda order: order[:1])


def find_rule(fitted: Fit, **sizes: int) -> int:
    """The program of the first rule that holds."""
    return next(program for when, program in fitted.rules if eval(when, {}, sizes))


@pytest.mark.parametrize("seed", range(60))
def test_no_fewer_programs_suffice(seed: int) -> None:
    """Given random times, when they are fitted, then each size is within the factor, and no smaller
    set of programs would do, as trying all sets shows."""
    chance = random.Random(seed)
    programs = range(chance.randrange(1, 8))
    cases = [
        FitCase((i + 1, 1), {p: chance.choice([1.0, 1.04, 1.2, 3.0]) for p in programs})
        for i in range(chance.randrange(1, 16))
    ]

    def suffices(chosen: tuple[int, ...]) -> bool:
        return all(
            min((case.seconds[p] for p in chosen), default=9.9) <= 1.05 * min(case.seconds.values())
            for case in cases
        )

    fitted = fit(cases)
    assert suffices(tuple(fitted.programs))
    for fewer in itertools.combinations(programs, len(fitted.programs) - 1):
        assert not suffices(fewer)
    assert all(find_rule(fitted, m=m + 1, n=1) in fitted.programs for m in range(len(cases)))


def test_greedy_would_take_a_program_more() -> None:
    """Program 0 is good at most sizes, but 1 and 2 are enough."""
    good = {0: {1, 2, 4, 5}, 1: {0, 1, 2}, 2: {3, 4, 5}}
    cases = [
        FitCase((i + 1, 1), {p: 1.0 if i in sizes else 2.0 for p, sizes in good.items()})
        for i in range(6)
    ]
    assert fit(cases).programs == [1, 2]


def test_too_few_programs_serve_within_the_least_factor_that_they_reach() -> None:
    times = ({0: 1.0, 1: 1.3, 2: 9.0}, {0: 1.2, 1: 1.0, 2: 9.0}, {0: 1.5, 1: 1.4, 2: 1.0})
    cases = [FitCase((i + 1, 1), seconds) for i, seconds in enumerate(times)]
    fitted = fit(cases, most=1)
    assert (fitted.programs, fitted.within) == ([1], 1.4)
    assert fitted.rules == [("True", 1)]


def test_rules_split_at_what_separates_the_sizes() -> None:
    """Given a program for small products of m and n, and one for great ones, then the rules say so,
    and a size that is left out is served well by the others."""
    sizes = [(2**i, 2**j) for i in range(0, 12, 2) for j in range(0, 12, 2)]
    cases = [FitCase((m, n), {3: 1.0 + (m * n > 1024), 7: 1.0 + (m * n <= 1024)}) for m, n in sizes]
    fitted = fit(cases)
    assert fitted.rules == [("m * n <= 2048", 3), ("m * n > 2048", 7)]
    assert [case.left_out_regret for case in fitted.cases if case.left_out_regret] == []


def test_a_program_that_does_not_serve_a_size_is_never_chosen_there() -> None:
    """Program 0 is fast and serves even sizes, program 1 serves all."""
    cases = [
        FitCase((m, 1), {1: 2.0} if m % 2 else {0: 1.0, 1: 2.0}, frozenset({0} if m % 2 else ()))
        for m in range(1, 20)
    ]
    fitted = fit_programs(cases, ("m", "n"), 1.05, 8, lambda order: order)
    assert fitted.programs == [0, 1]
    assert fitted.rules == [("True", 0), ("True", 1)]
    for case in fitted.cases:
        assert case.program == case.left_out_program == case.case.key[0] % 2


def test_a_program_without_a_time_counts_as_slow() -> None:
    """Program 0 failed at half of the sizes."""
    cases = [FitCase((m, 1), {1: 1.01} | ({0: 1.0} if m < 9 else {})) for m in range(1, 17)]
    assert fit(cases).programs == [1]
    assert find_rule(fit(cases, within=1), m=16, n=1) == 1


def test_products_beyond_int64_are_compared() -> None:
    cases = [FitCase((1 << 40, 1 << i), {0: 1.0 + (i > 30), 1: 2.0}) for i in range(20, 40)]
    assert fit(cases).programs == [0]


@pytest.fixture
def measured(copied: Marks) -> Marks:
    """`mark` is measured at powers of two: variant 3 is best at small sizes, 0 at great ones, and
    the others are nearly as good somewhere."""
    (copied.cache / "index.json").unlink()
    copied.edit("tilus.toml", "\ntable", f'\nmeasured = "{FILE}"\ntable')
    copied.run("build")
    measure(copied, lambda n: [5.0 if n < 1000 else 1.0, 1.04, 2.0, 1.0 if n < 1000 else 3.0])
    copied.run("build", "mark")
    return copied


def measure(project: Marks, times: Callable[[int], list[float]]) -> None:
    """Note the times of all programs at the sizes, as tuning does."""
    script = project.script("mark")
    rows = [
        MeasuredRow(
            target="cpu",
            device=get_cpu().name,
            arch="cpu",
            params={},
            sizes={"n": 2**i},
            schedule={"variant": number},
            seconds=seconds * 1e-6,
            program=script.programs[number],
            time="2026-05-04T10:20:30Z",
        )
        for i in range(3, 17, 2)
        for number, seconds in enumerate(times(2**i))
    ]
    append_rows(Tree(str(project.cache)), "mark", rows)


def choices(place: Path, *sizes: int) -> list[tuple[int, str]]:
    kernel = load("mark", where=str(place))
    return [kernel.select(n=n)[:2] for n in sizes]


def test_a_fit_is_written_served_and_packed(measured: Marks, tmp_path: Path) -> None:
    """Given a tuned script, when it is fitted, then few programs serve it here, in another
    checkout, and from a package that has only these and the default."""
    sizes = (2, 8, 50, 4096, 32768, 1 << 20)
    assert choices(measured.cache, *sizes)[1:4] == [(3, "measured"), (3, "nearest"), (0, "nearest")]
    out = measured.run("dispatch", "fit", "mark", "--within", "1.01").out
    assert f"mark cpu on {get_cpu().name}: 2 programs of 4, within 1.01 of the best" in out
    assert "  n <= 1024 → program 3\n  n > 1024 → program 0\n" in out
    assert " 2048         0  0.0%             3  200.0%\n" in out
    assert "left out in turn: 28.6% in the mean, 200.0% at worst" in out
    expected = [
        (2, "table"),
        (3, "measured"),
        (3, "fitted"),
        (0, "fitted"),
        (0, "measured"),
        (0, "fitted"),
    ]
    assert choices(measured.cache, *sizes) == expected
    measured.run("dispatch", "check", "mark")
    assert "fitted: n > 1024 → program 0" in measured.run("dispatch", "show", "mark").out
    _, first, second, *rows = (measured.directory / FILE).read_text().splitlines()
    assert '"rule": 1, "when": "n <= 1024", "schedule": {"variant": 3}}' in first
    assert '"rule": 2, "when": "n > 1024", "schedule": {"variant": 0}}' in second
    assert len(rows) == 7

    other = measured.copy(tmp_path / "other", cache=False)
    other.run("build")
    assert choices(other.cache, *sizes) == expected
    few = '[package.few]\nscripts = ["mark"]\n\n[script.mark]\n'
    other.edit("tilus.toml", "[script.mark]\n", few)
    other.edit("tilus.toml", 'table = [{ when = "n <= 4", use = { variant = 2 } }]\n', "")
    other.run("build")
    other.run("package", "few", "--format", "dir", "-o", "dist", "--fitted")
    (package,) = (other.directory / "dist").iterdir()
    packed = {path.name for path in (package / "programs").iterdir()}
    hashes = other.script("mark").programs
    assert packed == {hashes[0], hashes[3], hashes[1]}, "those of the fit, and the default"
    assert choices(package, *sizes)[1:] == expected[1:]


def test_one_program_may_be_enough(measured: Marks) -> None:
    """Within 5 %, program 1 serves all sizes, and what was measured no longer names the others."""
    measured.run("dispatch", "fit", "mark")
    assert choices(measured.cache, 8, 50, 32768) == [
        (1, "measured"),
        (1, "fitted"),
        (1, "measured"),
    ]
    assert '"when": "True"' in (measured.directory / FILE).read_text()
    line, *_ = measured.run("dispatch", "fit", "mark", "--json").events
    assert (line["programs"], line["rules"]) == ([1], [["True", 1]])


def test_rules_that_no_longer_apply_serve_nothing(measured: Marks) -> None:
    """Given a fit, when the space loses a program, then a warning counts its rule."""
    measured.run("dispatch", "fit", "mark", "--within", "1.01")
    measured.edit("tilus.toml", "variant = { range = [0, 3] }", "variant = [0, 1, 2]")
    assert "n <= 1024 (the space has no such schedule)" in measured.run("build").err
    assert choices(measured.cache, 50, 4096) == [(0, "nearest"), (0, "fitted")]


def test_a_mistake_in_a_rule_is_shown_at_its_line(measured: Marks) -> None:
    measured.run("dispatch", "fit", "mark", "--within", "1.01")
    text = (measured.directory / FILE).read_text().replace("n <= 1024", "n <= ")
    measured.write(FILE, text)
    err = measured.run("plan", status=2).err
    assert err.startswith(f"{FILE}:2:1: error: not measurements of mark: 'n <= ': ")


def test_mistakes_are_told(copied: Marks) -> None:
    said = copied.run("dispatch", "fit", "mark", status=2).err
    assert '`measured = "tuned/mark.jsonl"` in [script.mark.dispatch]' in said
    copied.edit("tilus.toml", "\ntable", f'\nmeasured = "{FILE}"\ntable')
    copied.run("build")
    assert "nothing is measured for mark cpu" in copied.run("dispatch", "fit", "mark", status=2).err
    assert "--within" in copied.run("dispatch", "fit", "mark", "--within", "0.5", status=2).err
    said = copied.run("package", "--fitted", status=1).err
    assert "--fitted: mark cpu has no fitted programs" in said
    assert "`tilusbuild dispatch fit mark`" in said
