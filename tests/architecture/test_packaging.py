"""What the wheel contains."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_data_file_of_a_package_is_part_of_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packaged = {
        path
        for package, patterns in settings["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    data = {
        path
        for path in (ROOT / "controller").rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }

    assert data - packaged == set()
