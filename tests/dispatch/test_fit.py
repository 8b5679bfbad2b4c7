"""`dispatch fit`: the fewest programs for what was measured, and costs for the sizes between."""

import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from support.marks import Marks, built, copied
from tilusbuild.cache.tree import Tree
from tilusbuild.dispatch.fit import Fit, FitCase, Waves, fit_programs
from tilusbuild.dispatch.measurements import append_rows
from tilusbuild.expr import parse_expression
from tilusbuild.plan.measured import MeasuredRow
from tilusbuild.runtime import load
from tilusbuild.runtime.device import get_cpu

__all__ = ["built", "copied"]
FILE = "tuned/mark.jsonl"


def fit(
    cases: list[FitCase], within: float = 1.05, max_programs: int = 8, waves: Waves | None = None
) -> Fit:
    return fit_programs(cases, ("m", "n"), within, max_programs, waves or Waves({}))


def find_cheapest(fitted: Fit, **sizes: int) -> int:
    """The program of the least cost."""
    costs = {p: parse_expression(cost).evaluate(sizes) for p, cost in fitted.costs.items()}
    return min(costs, key=lambda program: float(costs[program]))


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
    assert find_cheapest(fitted, m=1, n=1) in fitted.programs


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
    fitted = fit(cases, max_programs=1)
    assert (fitted.programs, fitted.within) == ([1], 1.4)
    assert len(fitted.costs) == 1


def test_programs_without_common_cases_may_be_more_than_asked_for() -> None:
    cases = [FitCase((m, 1), {m: 1.0}) for m in range(1, 4)]
    assert fit(cases, max_programs=1).programs == [1, 2, 3]


def test_costs_say_what_programs_take() -> None:
    """Given a program with a short start and one with a high rate, on a machine that is up to twice
    as slow at some sizes, then the costs are in their proportion, and sizes that are left out are
    served well."""
    chance = random.Random(1)
    sizes = [(2**i, 2**j) for i in range(0, 12, 2) for j in range(0, 12, 2)]
    cases = []
    for m, n in sizes:
        slowness = chance.uniform(1, 2)
        times = {3: slowness * (1e-6 + 4e-9 * m * n), 7: slowness * (4e-6 + 1e-9 * m * n)}
        cases.append(FitCase((m, n), times))
    fitted = fit(cases)
    assert max(case.left_out_regret for case in fitted.cases) == 0
    assert find_cheapest(fitted, m=30, n=30) == 3
    assert find_cheapest(fitted, m=33, n=33) == 7


@pytest.mark.parametrize("seed", range(10))
def test_disturbed_times_do_not_decide_on_other_sizes(seed: int) -> None:
    """Given three programs, one of which was three times as slow as it is at a twentieth of the
    sizes, when they are fitted, then other sizes are served well."""

    def measure(m: int, n: int) -> dict[int, float]:
        return {
            p: start * 1e-6 + rate * m * n
            for p, start, rate in ((3, 1, 4e-9), (7, 4, 1e-9), (9, 2, 2e-9))
        }

    chance = random.Random(seed)
    sizes = [(2**i, 2**j) for i in range(0, 12, 2) for j in range(0, 12, 2)]
    times = {size: measure(*size) for size in sizes}
    for size in chance.sample(sizes, 2):
        times[size][chance.choice([3, 7, 9])] *= 3
    fitted = fit([FitCase(size, seconds) for size, seconds in times.items()])
    for m, n in ((2**i + 1, 2**j + 1) for i in range(11) for j in range(11)):
        seconds = measure(m, n)
        assert seconds[find_cheapest(fitted, m=m, n=n)] <= 1.02 * min(seconds.values())


@pytest.mark.parametrize("known_size", [132, None])
def test_costs_count_waves_of_blocks(known_size: int | None) -> None:
    """Given programs of tiles of 64 and of 128 on a device that runs 132 blocks at once, when some
    sizes are measured, then the better one is chosen at others, by the waves that it takes. Where
    the 132 are not declared, they are found by the times."""

    def measure(m: int, n: int) -> dict[int, float]:
        blocks = {0: -(-m // 64) * -(-n // 64), 1: -(-m // 128) * -(-n // 128)}
        rates = {0: 1.3e-6, 1: 4e-6}
        return {p: 2e-6 + rates[p] * -(-count // 132) for p, count in blocks.items()}

    chance = random.Random(2)
    sizes = [(chance.randrange(1, 4096), chance.randrange(1, 4096)) for _ in range(300)]
    tiles = {0: "cdiv(m, 64) * cdiv(n, 64)", 1: "cdiv(m, 128) * cdiv(n, 128)"}
    blocks = {program: parse_expression(grid) for program, grid in tiles.items()}
    cases = [FitCase(size, measure(*size)) for size in sizes[:100]]
    fitted = fit(cases, waves=Waves(blocks, known_size))
    assert "* cdiv((cdiv(m, 64) * cdiv(n, 64)), 132)" in fitted.costs[0]
    for m, n in sizes[100:]:
        times = measure(m, n)
        assert times[find_cheapest(fitted, m=m, n=n)] <= 1.01 * min(times.values())


def test_a_program_that_does_not_serve_a_size_is_never_chosen_there() -> None:
    """Program 0 is fast and serves even sizes, program 1 serves all."""
    cases = [
        FitCase((m, 1), {1: 2.0} if m % 2 else {0: 1.0, 1: 2.0}, frozenset({0} if m % 2 else ()))
        for m in range(1, 20)
    ]
    fitted = fit(cases)
    assert fitted.programs == [0, 1]
    for case in fitted.cases:
        assert case.program == case.left_out_program == case.case.sizes[0] % 2


def test_a_program_that_failed_counts_as_slow() -> None:
    """Program 0 failed at half of the sizes."""
    cases = [FitCase((m, 1), {1: 1.01, 0: 1.0 if m < 9 else math.inf}) for m in range(1, 17)]
    assert fit(cases).programs == [1]
    assert find_cheapest(fit(cases, within=1), m=16, n=1) == 1


def test_a_program_that_was_not_measured_at_some_sizes_is_judged_by_others() -> None:
    cases = [FitCase((m, 1), {1: 2.0 * m} | ({0: 1.0 * m} if m % 2 else {})) for m in range(1, 17)]
    assert find_cheapest(fit(cases), m=16, n=1) == 0


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


def choices(directory: Path, *sizes: int) -> list[tuple[int, str]]:
    kernel = load("mark", where=str(directory))
    return [kernel.select(n=n)[:2] for n in sizes]


def test_a_fit_is_written_served_and_packed(measured: Marks, tmp_path: Path) -> None:
    """Given a tuned script, when it is fitted, then few programs serve it here, in another
    checkout, and from a package that has only these and the default."""
    sizes = (2, 8, 50, 4096, 32768, 1 << 20)
    assert choices(measured.cache, *sizes)[1:4] == [(3, "measured"), (3, "nearest"), (0, "nearest")]
    out = measured.run("dispatch", "fit", "mark", "--within", "1.01").out
    assert f"mark cpu on {get_cpu().name}: 2 programs of 4, within 1.01 of the best" in out
    assert "  program 3: variant=3\n    cost: 1.171e-07 + 1.26e-10 * n\n" in out
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
    # Both are in the bucket 3072: costs see the exact sizes.
    assert choices(measured.cache, 2800, 3000) == [(3, "fitted"), (0, "fitted")]
    measured.run("dispatch", "check", "mark")
    shown = measured.run("dispatch", "show", "mark").out
    assert "fitted: program 0 costs 4.429e-07 + 1.564e-11 * n\n" in shown
    _, first, second, *rows = (measured.directory / FILE).read_text().splitlines()
    assert '"cost": "4.429e-07 + 1.564e-11 * n", "schedule": {"variant": 0}}' in first
    assert '"cost": "1.171e-07 + 1.26e-10 * n", "schedule": {"variant": 3}}' in second
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


def test_a_build_keeps_the_costs_of_an_installed_package(measured: Marks, tmp_path: Path) -> None:
    """Given a package with a fit, when it is installed into the cache of a project without one, and
    the project is built and tuned, then the costs serve the sizes that nothing was measured for."""
    measured.run("dispatch", "fit", "mark", "--within", "1.01")
    measured.run("package", "--format", "dir", "-o", "dist")
    (package,) = (measured.directory / "dist").iterdir()
    project = measured.copy(tmp_path / "other", cache=False)
    project.edit("tilus.toml", f'measured = "{FILE}"\n', "")
    for _ in range(2):
        project.run("install", package)
        project.run("build", "mark")
        assert choices(project.cache, 8, 50) == [(3, "measured"), (3, "fitted")]
    rows = project.cache / "state" / "tune" / "mark" / "measured.jsonl"
    assert rows.read_text().count('"cost"') == 2, "once, of two programs"
    measure(project, lambda n: [9.0, 9.0, 0.1, 9.0])
    project.run("build", "mark")
    assert choices(project.cache, 8, 50) == [(2, "measured"), (3, "fitted")]
    merged = tmp_path / "merged"
    project.run("cache", "merge", project.cache, "--cache-dir", merged)
    assert choices(merged, 8, 50) == [(2, "measured"), (3, "fitted")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("<<<<<<< HEAD", "invalid character"),
        ('{"target": "cpu", "device": "', "truncated"),
        ("version https://git-lfs.github.com/spec/v1", "invalid character"),
    ],
)
def test_a_damaged_line_is_named(measured: Marks, line: str, why: str) -> None:
    """Given a line that is not a row among others, which may end as on Windows, then each verb
    that reads them names it, and the others serve."""
    rows = measured.cache / "state" / "tune" / "mark" / "measured.jsonl"
    rows.write_text(rows.read_text().replace("\n", "\r\n", 2) + line)
    count = len(rows.read_text().splitlines())
    name = f"{rows}:{count}: not a measurement: "
    for words, status in (
        (("build",), 0),
        (("dispatch", "show", "mark"), 0),
        (("dispatch", "fit", "mark"), 0),
        (("dispatch", "check", "mark"), 1),
        (("package", "--strict"), 2),
        (("tune", "mark", "--size", "n=64", "--unchecked"), 0),
    ):
        done = measured.run(*words, status=status)
        (named,) = [text for text in (done.out + done.err).splitlines() if name in text]
        assert why in named, words
    assert choices(measured.cache, 8) == [(1, "measured")]


def test_one_program_may_be_enough(measured: Marks) -> None:
    """Within 5 %, program 1 serves all sizes, and what was measured no longer names the others."""
    measured.run("dispatch", "fit", "mark")
    assert choices(measured.cache, 8, 50, 32768) == [
        (1, "measured"),
        (1, "fitted"),
        (1, "measured"),
    ]
    assert '"cost": "1.04e-06"' in (measured.directory / FILE).read_text()
    line, *_ = measured.run("dispatch", "fit", "mark", "--json").events
    assert (line["programs"], line["costs"]) == ([1], ["1.04e-06"])


def test_costs_that_no_longer_apply_serve_nothing(measured: Marks) -> None:
    """Given a fit, when the space loses a program, then a warning counts its cost."""
    measured.run("dispatch", "fit", "mark", "--within", "1.01")
    measured.edit("tilus.toml", "variant = { range = [0, 3] }", "variant = [0, 1, 2]")
    assert "1.171e-07 + 1.26e-10 * n (the space has no such schedule)" in measured.run("build").err
    assert choices(measured.cache, 50, 4096) == [(0, "fitted"), (0, "fitted")]


def test_a_mistake_in_a_cost_is_shown_at_its_line(measured: Marks) -> None:
    measured.run("dispatch", "fit", "mark", "--within", "1.01")
    text = (measured.directory / FILE).read_text().replace("1.26e-10 * n", "1.26e-10 *")
    measured.write(FILE, text)
    err = measured.run("plan", status=2).err
    message = "not measurements of mark: '1.171e-07 + 1.26e-10 *': "
    assert err.startswith(f"{FILE}:3:1: error: {message}")


def test_mistakes_are_told(copied: Marks) -> None:
    stderr = copied.run("dispatch", "fit", "mark", status=2).err
    assert '`measured = "tuned/mark.jsonl"` in [script.mark.dispatch]' in stderr
    copied.edit("tilus.toml", "\ntable", f'\nmeasured = "{FILE}"\ntable')
    copied.run("build")
    assert "nothing is measured for mark cpu" in copied.run("dispatch", "fit", "mark", status=2).err
    assert "--within" in copied.run("dispatch", "fit", "mark", "--within", "0.5", status=2).err
    stderr = copied.run("package", "--fitted", status=1).err
    assert "--fitted: mark cpu has no fitted programs" in stderr
    assert "`tilusbuild dispatch fit mark`" in stderr
