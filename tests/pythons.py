"""The unit tests on every Python that the project is for: `make pythons`.

Which those are, pyproject.toml's classifiers say. Each gets an environment of its own, as
`make test PYTHON=…` would make it; the last line of each run is pytest's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
CLASSIFIER = "Programming Language :: Python :: "
UNIT = ("-m", "pytest", "-m", "unit", "-q", "-p", "no:cacheprovider")


def versions() -> list[str]:
    """Return the versions that the project is for, such as 3.11."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    named = (each.partition(CLASSIFIER)[2] for each in project["classifiers"])
    return [version for version in named if "." in version]


def find(version: str) -> Path | None:
    """Return an interpreter of that version: on the path, or one of pyenv's; None for none."""
    return next(filter(_runs, _candidates(version)), None)


def _candidates(version: str) -> Iterator[Path]:
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(root.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)


def _runs(python: Path) -> bool:
    """Whether it starts: pyenv's shims are on the path for versions that are not chosen, too."""
    done = subprocess.run([python, "-c", ""], capture_output=True, check=False)
    return done.returncode == 0


def run(python: Path) -> int:
    """Run the unit tests on it; returns pytest's exit status, or 1 for want of packages."""
    made = subprocess.run(
        [python, "-m", "testbed.environment"],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode:
        return 1
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(
        [made.stdout.strip(), *UNIT], cwd=CHECKOUT, env=environment, check=False
    ).returncode


def main() -> int:
    """Run them on one Python after the other; the exit status is 1 unless all have passed."""
    has_passed = True
    for version in versions():
        python = find(version)
        if python is None:
            print(
                f"There is no Python {version} on the path, nor among pyenv's. Install it "
                f"(pyenv install {version}, or your system's package python{version}), "
                "and run this again."
            )
            has_passed = False
            continue
        print(f"Python {version}: {python}", flush=True)
        has_passed &= run(python) == 0
    return 0 if has_passed else 1


if __name__ == "__main__":
    sys.exit(main())
