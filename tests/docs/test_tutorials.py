"""The tutorials do as they say: every command of them, and its output."""

from pathlib import Path

import pytest

from support import tutorials

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))
TUTORIALS = {page.stem: tutorials.read(page) for page in PAGES}


def test_there_are_five() -> None:
    assert len(TUTORIALS) == 5


@pytest.mark.parametrize(
    ("name", "need"), [(name, need) for name, each in TUTORIALS.items() for need in each.needs]
)
def test_this_machine_has_what_a_step_needs(name: str, need: str) -> None:
    if not tutorials.HERE[need]():
        pytest.skip(f"steps of {name} were left out: they need {need}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_says_at_its_head_what_it_needs(page: Path) -> None:
    head = page.read_text().split("\n## ")[0]
    (needs,) = (part for part in head.split("\n\n") if part.startswith("You need "))
    assert "pip install" in needs
    assert "g++" in needs
    named = {"torch": "PyTorch"}
    for need in TUTORIALS[page.stem].needs:
        assert named.get(need, need) in needs


@pytest.mark.slow
def test_every_command_prints_what_the_pages_say(tmp_path: Path) -> None:
    """Given one home, when a reader follows the pages one after another, as the index lists them:
    each command prints the text of its page, whatever the earlier pages left in the home."""
    if not tutorials.HERE["g++"]():
        pytest.skip("needs g++")
    home = tmp_path / "home"
    home.mkdir()
    index = (PAGES[0].parents[1] / "index.md").read_text()
    differences = []
    for name in sorted(TUTORIALS, key=lambda name: index.index(f"(tutorials/{name}.md)")):
        directory = tmp_path / name
        directory.mkdir()
        differences += [
            f"{name}: $ {command.line}\nprints\n{printed}\nand the page says\n{command.printed}"
            for command, printed in tutorials.run(TUTORIALS[name], directory, home)
            if not tutorials.agrees(command, printed)
        ]
    assert not differences, "\n".join(differences)
