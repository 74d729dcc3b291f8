"""Everything that the documentation names exists, and its lines are short enough."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed.environment import CHECKOUT

PAGES = sorted(
    [
        *CHECKOUT.glob("*.md"),
        *(CHECKOUT / "docs").rglob("*.md"),
        *(CHECKOUT / "examples").rglob("README.md"),
    ]
)
NAMES = [str(page.relative_to(CHECKOUT)) for page in PAGES]
FOLDERS = "bench|controller|crds|docs|examples|infra|testbed|tests"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_targets_an_existing_page_and_heading(name: str) -> None:
    page = CHECKOUT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not name.startswith("docs/") or target.resolve().is_relative_to(CHECKOUT / "docs"), (
            f"{link} is not on the site: name the path instead"
        )
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("name", NAMES)
def test_every_path_and_every_command_exists(name: str) -> None:
    text = (CHECKOUT / name).read_text()
    for path in set(re.findall(rf"`((?:{FOLDERS})/[\w/.*-]+)`", text)):
        assert any(CHECKOUT.glob(path.rstrip("/"))) or any(CHECKOUT.glob(f"{path}.py")), path
    for module in set(re.findall(rf"python3? -m ((?:{FOLDERS})\b[\w.]*)", text)):
        file = CHECKOUT / module.replace(".", "/")
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), module


@pytest.mark.parametrize("name", NAMES)
def test_lines_have_at_most_120_characters_outside_tables(name: str) -> None:
    lines = (CHECKOUT / name).read_text().splitlines()

    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []
