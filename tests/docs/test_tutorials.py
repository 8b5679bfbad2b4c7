"""The tutorials do as they say: every command of them, and its output."""

from pathlib import Path

import pytest

from support import tutorials

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))
TUTORIALS = {page.stem: tutorials.read(page) for page in PAGES}


def test_there_are_four() -> None:
    assert len(TUTORIALS) == 4


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
@pytest.mark.parametrize("name", TUTORIALS)
def test_every_command_prints_what_the_page_says(name, tmp_path, tmp_path_factory) -> None:
    if not tutorials.HERE["g++"]():
        pytest.skip("needs g++")
    tutorial = TUTORIALS[name]
    for command, printed in tutorials.run(tutorial, tmp_path, tmp_path_factory.mktemp("home")):
        assert tutorials.agrees(command, printed), (
            f"$ {command.line}\nprints\n{printed}\nand the page says\n{command.printed}"
        )
