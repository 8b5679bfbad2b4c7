"""The manual as a site: no link is broken, and a page loads nothing from another host."""

import importlib.util
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.processes import run_to_end

DOCS = Path(__file__).parents[2] / "docs"
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@dataclass
class Page(HTMLParser):
    """What a page has and asks for."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        value_by_name = dict(attributes)
        self.ids |= {value_by_name.get("id") or ""}
        if tag in _LOADED and (address := value_by_name.get(_LOADED[tag])):
            self.loaded.append(address)
        if tag == "a" and (address := value_by_name.get("href")):
            self.links.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make site` builds it; a warning of the generator is an error."""
    for name in ("sphinx", "furo", "myst_parser"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}, of tilusbuild[site]: `make site` installs it")
    directory = tmp_path_factory.mktemp("site")
    words = ("-q", "-W", "--keep-going", "-d", str(tmp_path_factory.mktemp("doctrees")))
    run_to_end([sys.executable, "-m", "sphinx", *words, str(DOCS), str(directory)])
    return directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    page_by_path = {}
    for path in site.rglob("*.html"):
        page_by_path[path] = Page()
        page_by_path[path].feed(path.read_text())
    return page_by_path


def test_no_link_is_broken(pages: dict[Path, Page], site: Path) -> None:
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages.get(target)
            exists = target.is_file() and target.is_relative_to(site)
            # Of `#` alone, and of a script's own anchors, nothing is on the page as it is written.
            anchored = not parts.fragment or known is None or parts.fragment in known.ids
            if not exists or not anchored:
                broken.append((str(path.relative_to(site)), link))
    assert not broken


def test_a_page_loads_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    loaded = {address for page in pages.values() for address in page.loaded}
    assert loaded
    assert not [address for address in loaded if urlsplit(address).netloc]
