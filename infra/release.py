"""The version of this program, and the sources of its image."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SOURCES = ("Dockerfile", "pyproject.toml", "infra/requirements.txt", "controller")
"""The image's sources. A change of any of them builds a new image."""


def version() -> str:
    """Return the version in pyproject.toml, which stands beside the program wherever it runs."""
    project = (CHECKOUT / "pyproject.toml").read_text()
    match = re.search(r'^version = "(.+)"$', project, re.M)
    assert match is not None
    return match[1]


def digest(paths: Sequence[Path]) -> str:
    """Return a digest (12 hex digits) of names and contents of files; `.pyc` files are ignored."""
    content = hashlib.sha256()
    for path in paths:
        files = [path] if path.is_file() else sorted(filter(Path.is_file, path.rglob("*")))
        for file in files:
            if file.suffix == ".pyc":
                continue
            content.update(f"{file.relative_to(path.parent)}\0".encode())
            content.update(file.read_bytes())
    return content.hexdigest()[:12]


def sources_digest() -> str:
    """Return the digest of the sources of this checkout's image."""
    return digest([CHECKOUT / name for name in SOURCES])
