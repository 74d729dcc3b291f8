"""The documentation site builds without warnings, and loads nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from testbed.environment import CHECKOUT

DOCS = CHECKOUT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=CHECKOUT, env=quiet, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.process
def test_every_page_is_on_the_site(site: Path) -> None:
    pages = {
        page.relative_to(DOCS).with_suffix(".html")
        for page in DOCS.rglob("*.md")
        if page.parent.name != "notes"
    }

    assert {page.relative_to(site) for page in site.rglob("*.html")} == pages | {Path("404.html")}


@pytest.mark.process
def test_every_page_is_in_llms_txt_and_is_served_as_markdown(site: Path) -> None:
    index = (site / "llms.txt").read_text()
    pages = {page.relative_to(site).with_suffix(".md") for page in site.rglob("*.html")}

    linked = {Path(link) for link in re.findall(r"\]\(([^)]+)\)", index)}
    assert linked == pages - {Path("404.md")}
    assert all((site / page).read_text().startswith("# ") for page in linked)


@pytest.mark.process
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loading = re.compile(
        r'<(?:script|img|iframe|link(?! rel="canonical"))[^>]*(?:src|href)="(\S+?)"'
    )
    loaded = {
        address
        for page in site.rglob("*.html")
        for address in loading.findall(page.read_text())
        if re.match(r"(https?:)?//", address)
    }

    assert loaded == set()


@pytest.mark.process
def test_lists_and_tables_of_the_pages_are_lists_and_tables_on_the_site(site: Path) -> None:
    """Python-Markdown needs an empty line before a list, and four spaces inside of one."""
    broken = {
        (page.name, line)
        for page in site.rglob("*.html")
        for line in re.findall(r"^(?:<p>)?(?:- |\d+\. |\| ).*$", page.read_text(), re.M)
    }

    assert broken == set()


def test_the_navigation_has_the_four_parts() -> None:
    class Loader(yaml.SafeLoader):
        """Ignores the tags of Python objects."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    Loader.add_constructor("!ENV", lambda *_: None)
    navigation = yaml.load((CHECKOUT / "mkdocs.yml").read_text(), Loader)["nav"]

    parts = [next(iter(entry)) for entry in navigation if isinstance(entry, dict)]
    assert parts == ["Tutorial", "How-to", "Reference", "Explanation"]
