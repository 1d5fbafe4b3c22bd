"""The documentation site builds without a warning and without the network, and shows all there is.

It is built from a copy with a page, and a public name, that nobody has put anywhere: what is written next breaks nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

import strictq
import strictq.testing

from .test_code_blocks import ROOT

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings_handlers", "mkdocs_awesome_nav")),
    reason='the site is built with the extra: pip install -e ".[docs]"',
)

NEW_PAGE = """# A page that nobody listed

It follows [the README](../../README.md), [code](../../strictq/queue.py#L1) and [another page](worker.md).
`[not a link](../../README.md)`

**A list right after a line:**
- one
- two

> **And in a quotation**
> - quoted
"""

BUILD = """
import socket, sys

def refuse(*_):
    raise AssertionError("the build must not ask the network for anything")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
sys.argv = ["mkdocs", "build", "--strict", "--site-dir", sys.argv[1]]  # --quiet would silence --strict, too
cli()
"""


class Page(HTMLParser):
    """What tests ask of a built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(given["id"] or "")
        for name, value in attrs:
            if value and (name == "src" or (tag == "link" and name == "href")):
                self.loaded.append(value)
            elif value and name == "href":
                self.links.append(value)


def build(place: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of what lies in `place`, into its folder `site`."""
    return subprocess.run(
        [sys.executable, "-c", BUILD, str(place / "site")],
        cwd=place,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def whole_site(place: Path) -> Path:
    shutil.copytree(ROOT / "docs", place / "docs")
    shutil.copy(ROOT / "mkdocs.yml", place)
    (place / "strictq").symlink_to(ROOT / "strictq")
    (place / "docs" / "howto" / "brand-new.md").write_text(NEW_PAGE, encoding="utf-8")
    queue = place / "docs" / "reference" / "docstrings" / "queue.md"
    text = queue.read_text(encoding="utf-8")
    assert "::: strictq.Lease\n" in text
    queue.write_text(text.replace("::: strictq.Lease\n", ""), encoding="utf-8")  # as a name that nobody has put on a page
    done = build(place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr, done.stdout + done.stderr
    return place / "site"


def every_page_is_there_and_in_the_navigation(pages: dict[str, str]) -> None:
    expected = {str(p.relative_to(ROOT / "docs").with_suffix(".html")) for p in (ROOT / "docs").rglob("*.md")}
    assert expected | {"howto/brand-new.html"} == set(pages) - {"404.html"}
    reachable = {link.partition("#")[0] for link in Page(pages["index.html"]).links}
    assert expected - reachable == set()
    assert "howto/brand-new.html" in reachable


def no_folder_has_two_sections(pages: dict[str, str]) -> None:
    titles = re.findall(r'<(?:label|a|span) class="md-nav__title"[^>]*>(.*?)</', pages["index.html"], re.DOTALL)
    sections = [re.sub(r"<[^>]*>|\s", "", title).lower() for title in titles]
    named = [section for section in sections if section and section != "tableofcontents"]
    assert {"howto", "reference", "explanation"} <= set(named)
    assert len(named) == len(set(named)), named


def links_out_of_the_documentation_are_text(pages: dict[str, str]) -> None:
    new = pages["howto/brand-new.html"]
    assert 'the README, code and <a href="worker.html">another page</a>' in new
    assert "<code>[not a link](../../README.md)</code>" in new


def lists_and_tables_are_lists_and_tables(pages: dict[str, str]) -> None:
    assert "<li>one</li>" in pages["howto/brand-new.html"]
    assert "<li>quoted</li>" in pages["howto/brand-new.html"]
    for name, text in pages.items():
        for paragraph in re.findall(r"<p>(.*?)</p>", text, re.DOTALL):
            assert not re.search(r"^(?:[-*] |\d+\. |\||```)", paragraph, re.MULTILINE), f"{name}: {paragraph[:200]}"


def every_public_name_is_in_the_reference(pages: dict[str, str]) -> None:
    there = set().union(*(Page(text).ids for name, text in pages.items() if name.startswith("reference/docstrings/")))
    public = {f"strictq.{n}" for n in strictq.__all__ if n != "__version__"} | {
        f"strictq.testing.{n}" for n in strictq.testing.__all__
    }
    assert public - there == set()
    for member in ("strictq.Queue.send", "strictq.Queue.receive", "strictq.Queue.ack_many", "strictq.Queue.explain"):
        assert member in there, f"{member}: inherited members belong to it, too"


def docstrings_are_shown_in_their_sections(pages: dict[str, str]) -> None:
    queue, worker, values = (pages[f"reference/docstrings/{name}.html"] for name in ("queue", "worker", "values"))
    for section in ("Parameters:", "Returns:", "Raises:"):
        assert f'<span class="doc-section-title">{section}</span>' in queue, section
        assert not re.search(rf"<p>{section}", queue), section
    assert 'More: <a href="../../explanation/leases.html">explanation/leases.md</a>' in queue
    assert "prepared_bytes_max" in worker, "the constructor's arguments belong to a class"
    assert 'id="strictq.ShardStats.oldest_age_seconds"' in values


def pages_load_nothing_from_elsewhere(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        outside = [url for url in Page(text).loaded if re.match(r"(https?:)?//", url)]
        assert outside == [], name


def examples_and_diagrams_are_there(site: Path, pages: dict[str, str]) -> None:
    for example in (ROOT / "docs" / "examples").glob("*.py"):
        assert (site / "examples" / example.name).read_bytes() == example.read_bytes()
    for name, text in pages.items():
        assert 'class="mermaid"' not in text, f"{name}: mermaid loads a script from the network"
        for picture in re.findall(r'<img [^>]*src="([^"]+)"', text):
            assert (site / name).parent.joinpath(picture).exists(), f"{name}: {picture}"
    assert not (site / "site_markdown.py").exists()


def search_finds_what_people_look_for(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8").lower()
    for words in ("priorit", "metrics", "webhook", "graceful shutdown", "rate limit", "dead letter"):
        assert words in index, words


def test_the_site(tmp_path: Path) -> None:
    """One test, because building it takes most of the time, and tests that share something built are spread over processes."""
    site = whole_site(tmp_path)
    pages = {str(p.relative_to(site)): p.read_text(encoding="utf-8") for p in site.rglob("*.html")}
    every_page_is_there_and_in_the_navigation(pages)
    links_out_of_the_documentation_are_text(pages)
    lists_and_tables_are_lists_and_tables(pages)
    every_public_name_is_in_the_reference(pages)
    docstrings_are_shown_in_their_sections(pages)
    pages_load_nothing_from_elsewhere(pages)
    examples_and_diagrams_are_there(site, pages)
    search_finds_what_people_look_for(site)


DOCSTRING = '''
def act(x: int) -> None:
    """Act.

    Args: whatever it says; and
        a line that griffe cannot take for an argument
    """
'''


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("[there is no such page](nowhere.md)\n", "nowhere.md"),
        ("::: broken.act\n", "Failed to get 'name: description' pair"),
    ],
    ids=["a dead link", "a docstring that is misread"],
)
def test_a_warning_stops_the_build(tmp_path: Path, page: str, told: str) -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    (tmp_path / "docs").mkdir()
    for hook in (ROOT / "docs").glob("site_*.py"):
        shutil.copy(hook, tmp_path / "docs")
    (tmp_path / "strictq").symlink_to(ROOT / "strictq")
    (tmp_path / "broken.py").write_text(DOCSTRING, encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n{page}", encoding="utf-8")
    done = build(tmp_path)
    assert done.returncode != 0
    assert told in done.stdout + done.stderr
    assert "Aborted with 1 warnings in strict mode" in done.stdout + done.stderr
