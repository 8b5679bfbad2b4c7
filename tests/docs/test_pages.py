"""The pages hold: links lead somewhere, commands parse, and the code on them does as they say."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import fields

from support import command_line
from support.processes import run_python
from tilusbuild.cli.parser import list_verbs, parse_command
from tilusbuild.errors import InputError
from tilusbuild.manifest.loading import load_manifest
from tilusbuild.manifest.names import RESERVED
from tilusbuild.manifest.settings import Settings, format_variable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
BY_NAME = {str(page.relative_to(ROOT)): page for page in PAGES}


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[str]:
    """Every `tilusbuild …` line that stands alone, prompts and comments taken off."""
    for line in page.read_text().splitlines():
        match = re.match(r"^(?: {4}|\$ | {4}\$ )(tilusbuild .*)$", line)
        if match:
            yield re.split(r"\s{2,}|\s#|\s&&\s|\s\|\s|\s>\s", match[1])[0]


@pytest.mark.parametrize("name", BY_NAME)
def test_links_lead_somewhere(name: str) -> None:
    page = BY_NAME[name]
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def named_sources(text: str) -> Iterator[str]:
    """Yield the paths of Python and C files that a page names as ours.

    Those are all that stand in backticks, and those in plain text whose first directory is one of
    ours. A file name in capitals is a placeholder. In a table row that begins with a directory,
    the names of files are relative to it.
    """
    roots = {p.name for p in (ROOT / "tilusbuild").iterdir() if p.is_dir()}
    roots |= {"tilusbuild", "tests", "scripts", "benchmarks"}
    for line in text.splitlines():
        row = re.match(r"\| ((?:`\w+/`(?:, )?)+) \|.*\| (.*) \|$", line)
        if row is not None:
            directories, files = (re.findall(r"`([\w./]+)`", cell) for cell in row.groups())
            for file in files:
                if not any((ROOT / "tilusbuild" / top / file).is_file() for top in directories):
                    yield f"{directories[0]}{file}"
            continue
        for tick, path in re.findall(r"(`?)(?<![\w./-])((?:[\w.-]+/)+\w+\.(?:py|c))\b", line):
            if (tick or path.split("/")[0] in roots) and not Path(path).stem.isupper():
                yield path


@pytest.mark.parametrize("name", [*BY_NAME, "CONTRIBUTING.md"])
def test_source_files_that_a_page_names_exist(name: str) -> None:
    named = named_sources((ROOT / name).read_text())
    places = (ROOT / "tilusbuild", ROOT, (ROOT / name).parent)
    assert not [path for path in named if not any((top / path).is_file() for top in places)]


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for name, page in BY_NAME.items() for text in blocks(page, "toml")],
)
def test_tables_are_toml(name: str, text: str) -> None:
    assert tomllib.loads(text), name


@pytest.mark.parametrize("name", BY_NAME)
def test_commands_are_ones_that_the_command_line_takes(name: str) -> None:
    for command in commands(BY_NAME[name]):
        words = shlex.split(command)[1:]
        parse_command([word for word in words if word != "[OUTPUT]"], record=b"", started=0)


def test_commands_in_sentences_are_ones_that_the_command_line_takes() -> None:
    """Given each `tilusbuild VERB …` and `VERB --option` of a page, then it parses, but for what a
    sentence leaves out: an argument that must be there."""
    wrong = []
    for name, page in BY_NAME.items():
        for words in re.findall(r"`(?:tilusbuild )?([a-z]+ [^`]*)`", page.read_text()):
            verb, *rest = words.split()
            # `cmake -G Ninja` is CMake's.
            is_ours = verb in list_verbs() and verb != "cmake"
            is_command = is_ours and rest and (rest[0][0] == "-" or verb == "cache")
            try:
                if is_command:
                    parse_command(shlex.split(words), record=b"", started=0)
            except InputError as error:
                if not re.search("arguments are required|expected one argument", str(error)):
                    wrong.append(f"{name}: {words}: {error}")
    assert wrong == []


def count_programs(example: Path) -> set[int]:
    """Return the numbers of programs of an example that a page may state: of all, of its GPUs, and
    of each script, target and instance."""
    counts: dict[str, int] = {}
    for line in command_line.run(example, "plan", "--space", "--json").events:
        script, target = line["instance"].partition("[")[0].split()[0], line["instance"].split()[-1]
        is_gpu = target not in ("host", "cpu")
        for group in ("", script, target, line["instance"], *(("gpu", f"{script} gpu") * is_gpu)):
            counts[group] = counts.get(group, 0) + line["valid"]
    return {*counts.values()}


@pytest.mark.parametrize("example", ["gemm", "hopper", "quickstart", "attention", "marlin"])
def test_numbers_of_programs_are_those_of_the_example(example: str) -> None:
    directory = ROOT / "examples" / example
    lines = (directory / "README.md").read_text().splitlines()
    for page in PAGES:
        lines += [line for line in page.read_text().splitlines() if f"examples/{example}`" in line]
    stated = {
        int(number.replace(",", ""))
        for number in re.findall(r"([0-9][0-9,]*) programs", "\n".join(lines))
    }
    assert stated <= count_programs(directory)


def test_every_verb_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert [verb for verb in list_verbs() if f"| `{verb}` |" not in text] == []


def test_every_page_can_be_reached_from_the_readme_through_the_index() -> None:
    assert "(docs/index.md)" in (ROOT / "README.md").read_text()
    docs = ROOT / "docs"
    text = (docs / "index.md").read_text() + (docs / "manifest.md").read_text()
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"index.md"}
    assert {page for page in pages if f"]({page}): " not in text} == set()


def test_the_readmes_manifest_loads(tmp_path: Path) -> None:
    write_the_readmes(tmp_path)
    script = load_manifest(str(tmp_path / "tilus.toml")).scripts["saxpy"]
    assert [*script.args] == ["a", "x", "y", "n"]


def write_the_readmes(directory: Path) -> None:
    """The project that the README shows."""
    ((manifest,), (template,)) = (blocks(ROOT / "README.md", of) for of in ("toml", "cpp"))
    (directory / "tilus.toml").write_text(manifest)
    (directory / "kernels").mkdir()
    (directory / "kernels/saxpy.cu.j2").write_text(template)


@pytest.mark.slow
def test_the_page_of_a_librarys_interface_is_true(tmp_path: Path) -> None:
    """Given the README's saxpy, built for the cpu, when the page's program runs beside lib.so."""
    write_the_readmes(tmp_path)
    words = ("build", "-t", "cpu", "--level", "0", "-q", "--cache-dir", "cache")
    command_line.run(tmp_path, *words)
    (library,) = tmp_path.glob("cache/programs/*/module/lib.so")
    (program,) = blocks(ROOT / "docs/abi.md", "python")
    ran = run_python(program, status=None, cwd=library.parent)
    assert ran.stdout.strip() == "[1. 3. 5. 7. 9.]", ran.stderr


def test_the_page_of_settings_has_each_and_its_example_runs(tmp_path: Path) -> None:
    page = ROOT / "docs" / "settings.md"
    settings = [field.name for field in fields(Settings)]
    missing = [
        name for name in settings if format_variable(name.replace("_", "-")) not in page.read_text()
    ]
    assert not missing
    (example,) = blocks(page, "python")
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True)


def test_the_example_of_kernels_inside_a_program_says_what_it_prints(tmp_path: Path) -> None:
    (example,) = blocks(ROOT / "docs" / "kernel-cache.md", "python")
    done = run_python(example, cwd=tmp_path, environment={"HOME": str(tmp_path)})
    assert done.stdout.splitlines() == [
        "[4. 4. 4.]",
        "Stats(memory_hits=1, disk_hits=0, compiles=1)",
    ]


def test_every_extra_is_declared_and_written_up() -> None:
    """What pages, scripts and messages tell people to install is there."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["optional-dependencies"].keys()
    written = set(
        re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE)
    )
    files = [*PAGES, ROOT / "Makefile", *(ROOT / "scripts").glob("*.*")]
    files += (ROOT / "tilusbuild").rglob("*.py")
    named = {
        extra
        for file in files
        for extras in re.findall(r"(?:tilusbuild|\.)\[([a-z,]+)\]", file.read_text())
        for extra in extras.split(",")
    }
    assert named <= declared
    assert declared <= written


def test_the_page_on_templates_lists_every_name_that_is_taken() -> None:
    page = (ROOT / "docs" / "templates.md").read_text(encoding="utf-8")
    listed = page.split("### Names that are taken")[1].split("\n## ")[0].split(":\n\n", 1)[1]
    assert set(re.findall(r"`(\w+)`", listed)) == RESERVED


@pytest.fixture
def ops_page(tmp_path: Path) -> Path:
    """The project of the page on ops of torch and JAX, built."""
    page = ROOT / "docs" / "torch-ops.md"
    (tmp_path / "tilus.toml").write_text(blocks(page, "toml")[0])
    (tmp_path / "scale.cu.j2").write_text(blocks(page, "cpp")[0])
    command_line.run(tmp_path, "build", environment={"HOME": str(tmp_path)})
    return tmp_path


@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize(
    ("module", "number", "printed"),
    [
        ("torch", 0, [*(f"{n} 6.0 [2.0, 2.0]" for n in (4, 5, 1000)), "mypackage.scale.default"]),
        ("jax_tvm_ffi", 1, ["6.0"]),
    ],
)
def test_the_examples_of_ops_say_what_they_print(
    ops_page: Path, module: str, number: int, printed: list[str]
) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed")
    example = blocks(ROOT / "docs" / "torch-ops.md", "python")[number]
    done = run_python(example, cwd=ops_page, environment={"HOME": str(ops_page)})
    assert done.stdout.splitlines() == printed
