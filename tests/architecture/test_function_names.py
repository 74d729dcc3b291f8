"""Functions are named with a verb or a noun, so that a call says what it does or returns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("controller", "infra", "testbed", "bench")

PARTICIPLE = re.compile(
    r"[a-z]+(ed|ing)|told|kept|lost|sent|left|built|bought|made|taken|given|known|shown|seen|drawn"
    r"|written|chosen|held|gone|apart|spent|hidden|frozen|begun|broken|driven|drained"
)
NOUNS = {
    "anything",
    "bring",
    "feed",
    "finding",
    "heading",
    "listing",
    "logging",
    "mapping",
    "need",
    "offering",
    "packing",
    "paging",
    "pricing",
    "ranking",
    "saving",
    "scheduling",
    "seed",
    "setting",
    "spread",
    "string",
}
"""Words that look like participles and are nouns or verbs."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _is_state(function: Function) -> bool:
    """Whether a participle is right: for a property, or for a context after `with`."""
    marks = " ".join(map(ast.unparse, function.decorator_list))
    returned = ast.unparse(function.returns) if function.returns else ""
    return "property" in marks or "contextmanager" in marks or "AbstractContextManager" in returned


def _bare_participles(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, Function) or node.name.startswith("__"):
            continue
        word = node.name.strip("_")
        if PARTICIPLE.fullmatch(word) and word not in NOUNS and not _is_state(node):
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_is_named_by_a_participle_alone(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))
    assert [name for path in paths for name in _bare_participles(path)] == []
