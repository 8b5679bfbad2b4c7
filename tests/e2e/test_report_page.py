"""The page of `report --html`, in a browser: it opens, asks nobody, shows the JSON's numbers, and
what is a name in a project is text on it."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from support import report_lines, scale
from support.browser import Browser, browser
from support.nvcc_journal import FakeCuda
from support.project import NewProject
from tilusbuild.page import html
from tilusbuild.report.jsonl import format_json_line
from tilusbuild.status import Status

PAGES = ("build", "space", "tuning", "package")
DATA = re.compile(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>')


def embedded(page: str) -> list[dict[str, Any]]:
    """The data of a page."""
    (data,) = DATA.findall(page)
    events: list[dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(data)))
    return events


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as session:
        yield session


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of 240 programs."""
    path = tmp_path_factory.mktemp("report") / "r.html"
    path.write_bytes(html.make_page(report_lines.lines(240)))
    return path


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("page", PAGES)
def test_every_page_opens_without_a_complaint_and_asks_nobody(window, report, page, width, scheme):
    window.requests()
    window.size(width, scheme)
    window.open(report, page)
    assert window.complaints() == []
    assert {url.partition("#")[0] for url in window.requests()} == {report.as_uri()}
    drawn = window.js("return document.querySelectorAll('.chart:has(canvas)').length")
    assert drawn == {"build": 1, "space": 3, "tuning": 3, "package": 1}[page]
    wide = window.js("return document.documentElement.scrollWidth")
    assert wide <= width, "nothing sticks out"
    cut = (
        "return [...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)"
    )
    assert width > 600 or not window.js(cut), "no column is out of sight"
    tabs = "const n = document.querySelector('nav'); return n.scrollWidth <= n.clientWidth"
    assert window.js(tabs), "every tab is in sight"


def test_the_page_is_drawn_from_what_json_prints(window: Browser, report: Path):
    window.open(report, "build")
    read = json.loads(window.js("return JSON.stringify(report.found.lines)"))
    assert read == [json.loads(line) for line in report_lines.lines(240)]


@pytest.mark.parametrize("page", PAGES)
def test_names_are_text_and_never_markup(window: Browser, report: Path, page: str):
    window.open(report, page)
    assert window.js("return document.querySelectorAll('main img, main script').length") == 0
    assert (
        window.js("return document.querySelectorAll('main i:not([class]):not(li > i)').length") == 0
    )
    assert window.js("return document.title") == "<b>p</b>: report"
    shown = window.js("return document.body.innerText")
    assert report_lines.HOSTILE in shown
    if page == "build":
        assert report_lines.LOG in window.js("return document.querySelector('pre').textContent")


def test_a_policy_that_names_its_parts_by_digest_lets_nothing_else_run(report: Path):
    page = report.read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    parts = re.findall(r"<(script|style)>(.*?)</(?:script|style)>", page, re.DOTALL)
    assert len(parts) == 3
    for _, text in parts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_the_cells_of_the_map_are_those_of_the_json(window: Browser, report: Path):
    programs = [event for event in embedded(report.read_text()) if event["event"] == "program"]
    window.open(report, "space")
    window.choose("map-x", "tile_n")
    window.choose("map-y", "stages")
    window.choose("map-metric", "registers")
    window.choose("fix-tile_m", "64")
    cells = window.js(
        "return document.getElementById('chart-map').drawn.cells.map(c => [c[0], c[1], c[2]])"
    )
    wanted: dict[tuple[int, int], list[int]] = {}
    for event in programs:
        if event["values"]["tile_m"] == 64:
            cell = (report_lines.TILES.index(event["values"]["tile_n"]), event["values"]["stages"])
            known = [usage["registers"] for usage in event["usages"]]
            wanted.setdefault(cell, []).extend(known)
    assert {(x, y): value for x, y, value in cells} == {
        cell: median(values) for cell, values in wanted.items() if values
    }


def test_an_empty_cell_says_why(window: Browser, tmp_path: Path):
    path = tmp_path / "r.html"
    path.write_bytes(
        html.make_page(report_lines.lines(40))
    )  # three stages; of the third two tile_n
    window.open(path, "space")
    window.choose("map-x", "tile_n")
    window.choose("map-y", "stages")
    code = "return document.getElementById('chart-map').drawn.empty"
    assert window.js(code) == [[2, 2, "few"], [3, 2, "few"]]
    window.choose("fix-tile_m", "64")  # of the cells' programs 6 and 34 do not compile
    assert window.js(code) == [[0, 2, "failed"], [1, 0, "failed"], [2, 2, "few"], [3, 2, "few"]]


def test_a_target_of_which_nothing_is_built_is_folded(window: Browser, tmp_path: Path):
    costs = report_lines.costs(40)
    other = [
        replace(cost, target="other", label=f"other/{cost.index}", status=Status.MISSING, usages=())
        for cost in costs[:5]
    ]
    path = tmp_path / "r.html"
    texts = {"event": "texts", "hash": costs[0].hash, "source": "code;", "sass": ""}
    lines = [*(format_json_line(line) for line in (*other, *costs)), json.dumps(texts)]
    path.write_bytes(html.make_page(lines))
    window.size(1280, "light")
    window.open(path, "build")
    first = "return document.querySelector('#programs tbody tr').innerText"
    count = "return document.querySelector('#programs .count').textContent"
    assert report_lines.HOSTILE in window.js(first)
    assert window.js(count) == "40 of 45"
    window.js("document.querySelector('#programs .texts button').click()")
    assert window.js("return document.querySelector('#programs .shown').innerText") == "code;"
    window.js("document.querySelector('#programs .folded button').click()")
    assert window.js(count) == "45 of 45"
    assert window.js("return [...document.querySelectorAll('nav a')].map(a => a.hash)") == [
        "#build",
        "#space",
        "#package",
    ], "no page without anything on it"


def test_a_hover_says_which_programs_a_cell_has(window: Browser, report: Path):
    window.size(1280, "light")
    window.open(report, "space")
    window.hover("#chart-map canvas", 0.5, 0.35)
    window.wait(lambda: window.js("return document.querySelector('#chart-map .tip')"))
    text = window.js("return document.querySelector('#chart-map .tip').innerText")
    assert "tile_m=" in text
    assert report_lines.HOSTILE in text
    assert window.complaints() == []


def test_filters_sorting_and_csv_agree_with_the_json(window: Browser, report: Path):
    window.open(report, "build")
    window.js(
        "const e = document.querySelector('#programs input'); e.value = 'failed';"
        "e.dispatchEvent(new Event('input'))"
    )
    failed = sum(1 for cost in report_lines.costs(240) if cost.reason)
    count = window.js("return document.querySelector('#programs .count').textContent")
    assert count == f"{failed} of 240"
    window.js("document.querySelectorAll('#programs th button')[2].click()")
    window.js("document.querySelectorAll('#programs .tools button')[0].click()")
    window.wait(lambda: window.js("return window.copied"))
    rows = window.js("return window.copied").split("\r\n")
    assert len([row for row in rows if row]) == 1 + failed
    times = [float(cost.seconds or 0) for cost in report_lines.costs(240) if cost.reason]
    shown = window.js(
        "return [...document.querySelectorAll('#programs td[data-title^=compile]')]"
        ".map(cell => cell.textContent)"
    )
    assert [float(cell) for cell in shown] == pytest.approx(
        sorted(times, reverse=True)[: len(shown)], rel=0.01
    )


def test_the_keyboard_zooms_the_timeline(window: Browser, report: Path):
    window.open(report, "build")
    code = (
        "const c = document.getElementById('chart-timeline');"
        "c.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0]}));"
        "const z = c.chart.getOption().dataZoom[0]; return [z.start, z.end]"
    )
    assert window.js(code, "+") == [25, 75]
    assert window.js(code, "0") == [0, 100]


def test_all_pages_are_printed(window: Browser, report: Path):
    window.open(report, "build")
    window.js("dispatchEvent(new Event('beforeprint'))")
    assert window.js("return document.querySelectorAll('main .page').length") == len(PAGES)
    window.js("dispatchEvent(new Event('afterprint'))")
    assert window.js("return document.querySelectorAll('main .page').length") == 1
    assert window.complaints() == []


def test_ten_thousand_programs_open(window: Browser, tmp_path: Path):
    path = tmp_path / "large.html"
    path.write_bytes(html.make_page(report_lines.lines(10_000)))
    assert path.stat().st_size < 3_000_000
    for page in ("build", "space"):
        window.open(path, page)
    assert window.complaints() == []


def test_the_data_of_the_page_are_what_json_prints(new_project: NewProject, fake_cuda: FakeCuda):
    text = scale.manifest(scale.script(target="gpu", schedules=3), scale.script("other"))
    files = {"kernels/scale.cu.j2": scale.TEMPLATE, "kernels/other.cu.j2": scale.TEMPLATE}
    project = new_project(text, files=files, **fake_cuda.environment)
    project.build()
    project.run("report", "--html", "r.html")
    page = (project.directory / "r.html").read_text()
    events = embedded(page)
    texts = {event.pop("hash"): event for event in events if event["event"] == "texts"}
    assert [event for event in events if event["event"] != "texts"] == (
        project.run("report", "--json").events
    )
    built = [
        event for event in events if event["event"] == "program" and event["status"] == "built"
    ]
    assert texts.keys() == {event["hash"] for event in built}
    source = project.run("cache", "show", built[0]["hash"], "--source").out
    assert texts[built[0]["hash"]] == {"event": "texts", "source": source, "sass": ""}
    assert len(page) < 3_000_000
