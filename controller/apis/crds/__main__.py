"""Renders the CustomResourceDefinitions into a directory, by default `crds/`."""

from __future__ import annotations

import sys
from pathlib import Path

from controller.apis.crds import render


def main(directory: Path) -> None:
    """Write every definition that differs from its file, and print its path."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in render().items():
        path = directory / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("crds"))
