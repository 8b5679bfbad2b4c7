"""The manual as a site, for `make site`. Pages stay what they are on GitHub.

Three things are worked out here, so that nothing is repeated: the navigation, from the lists of
`index.md` and `manifest.md`; the addresses of files of the repository that are no pages; and the
version.
"""

from __future__ import annotations

import os
import re
import sys

import sphinx.application

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
with open(os.path.join(_ROOT, "pyproject.toml"), "rb") as _file:
    _PROJECT = tomllib.load(_file)["project"]

project = "tilusbuild"
author = _PROJECT["authors"][0]["name"]
with open(os.path.join(_ROOT, "tilusbuild/_version.py"), encoding="utf-8") as _file:
    version = release = re.findall(r'__version__ = "(.*)"', _file.read())[0]
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"tilusbuild {release}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
# A summary is read from the page that was found, which no browser allows of a page from disk.
html_show_search_summary = False
html_theme_options = {"navigation_with_keys": True}
myst_heading_anchors = 4
# Blocks of a language that the highlighter does not know, and of templates in C++, are text.
suppress_warnings = ["misc.highlighting_failure"]

_REPOSITORY = _PROJECT["urls"]["Documentation"].removesuffix("/docs")
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
_PAGE = re.compile(r"^- \[.+?\]\(([^)]+)\.md\): ", re.MULTILINE)


def setup(app: sphinx.application.Sphinx) -> None:
    """Have pages read through the functions below."""
    app.connect("source-read", _read)


def _read(app: sphinx.application.Sphinx, name: str, source: list[str]) -> None:
    directory = os.path.dirname(os.path.join(app.srcdir, name))

    def address(link: re.Match[str]) -> str:
        path = os.path.relpath(os.path.join(directory, link[1]), _ROOT)
        is_page = path.startswith("docs/") and path.endswith(".md")
        return link[1] if is_page else f"{_REPOSITORY}/{path}"

    source[0] = _LINK.sub(address, source[0])
    if name in ("index", "manifest"):
        source[0] += "".join(_navigation(source[0]))


def _navigation(page: str) -> list[str]:
    """Return a part of the navigation for each section of a page that has a list of pages."""
    parts = []
    for section in page.split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        pages = "".join(f"{page}\n" for page in _PAGE.findall(text))
        if pages:
            parts.append(f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}```\n")
    return parts
