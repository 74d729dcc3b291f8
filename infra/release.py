"""The version of this program, and the published image of its controller.

`make release IMAGE=...` records the image, for the commit of a release. Without an image, the
module prints what is recorded.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
"""The folder of Pulumi.yaml; relative paths in settings start here."""

SOURCES = (
    "Dockerfile",
    "controller",
    "infra/deployment/image.py",
    "infra/deployment/imagelayer.py",
)
"""The image's sources. A change of any of them builds a new image."""

RECORD = Path(__file__).with_name("released.json")
"""The image of the latest release, and the digest of its sources."""


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


def released_image() -> str | None:
    """Return the published image of exactly this checkout's sources; None if there is none."""
    if not RECORD.exists():
        return None
    record = json.loads(RECORD.read_text())
    return str(record["image"]) if record["sources"] == sources_digest() else None


def main(arguments: Sequence[str]) -> int:
    """Print the recorded image, or record one for the sources of this checkout."""
    if not arguments:
        print(released_image() or "none")
        return 0
    record = {"image": arguments[0], "sources": sources_digest()}
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
