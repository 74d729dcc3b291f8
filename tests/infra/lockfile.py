"""Write `infra/requirements.txt`: all packages that Joiner needs, for `pulumi install`.

The versions are those of the interpreter that runs this program, so the lock contains what the
tests have run with: `make lock`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

CHECKOUT = Path(__file__).resolve().parents[2]
LOCK = CHECKOUT / "infra" / "requirements.txt"
HEAD = "# All packages that Joiner needs, with their versions; written by `make lock`.\n"


def direct() -> list[str]:
    """Return the dependencies in pyproject.toml."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def closure(requirements: Iterable[str]) -> dict[str, str]:
    """Return all transitive dependencies of the requirements, with their installed versions."""
    versions: dict[str, str] = {}
    waiting = list(requirements)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in versions:
            versions[name] = metadata.version(name)
            waiting += _asked(name, requirement.extras)
    return versions


def _asked(name: str, extras: Iterable[str]) -> Iterator[str]:
    for text in metadata.requires(name) or []:
        marker = Requirement(text).marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield text


def main() -> None:
    """Write the file."""
    pins = [f"{name}=={version}" for name, version in sorted(closure(direct()).items())]
    LOCK.write_text(HEAD + "\n".join(pins) + "\n")


if __name__ == "__main__":
    main()
