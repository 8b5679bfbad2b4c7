"""`docs/architectures.md` says what the code says."""

import doctest
import re
from pathlib import Path

from tilusbuild.arch import known_names, parse_arch
from tilusbuild.arch.table import ATTRIBUTES

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"


def test_examples_answer_as_shown() -> None:
    failed, asked = doctest.testfile(str(PAGE), module_relative=False)
    assert asked > 0
    assert failed == 0


def test_the_table_of_limits() -> None:
    text = PAGE.read_text()
    rows = re.findall(
        r"^\| (sm_\d.*?) \| (\d+) \| (\d+) \| (\d+) KB \| (\d+) KB \|$", text, re.MULTILINE
    )
    shown = set()
    for names, threads, blocks, smem_sm, smem_block in rows:
        for name in re.findall(r"sm_\d+", names):
            arch = parse_arch(name)
            assert (arch.threads_per_sm, arch.blocks_per_sm) == (int(threads), int(blocks)), name
            sizes = (arch.smem_per_sm // 1024, arch.smem_per_block // 1024)
            assert sizes == (int(smem_sm), int(smem_block)), name
            shown.add(name)
    numbers = {name.rstrip("af") for name in known_names() if name != "cpu"}
    assert {n for n in numbers if int(n[3:]) >= 70} == shown


def test_every_attribute_is_named() -> None:
    text = PAGE.read_text()
    assert [
        name for name in ATTRIBUTES if f"`{name}`" not in text and f" {name} " not in text
    ] == []
