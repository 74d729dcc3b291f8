"""Write the versions of packages: all that Joiner needs, and those of the controller's image.

`pulumi install` reads the first, `infra/requirements.txt`; the image has the second,
`controller/requirements.txt`.
The versions are those of the interpreter that runs this program, so the lock contains what the
tests have run with: `make lock`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from infra.deployment.imagelayer import PYTHON

CHECKOUT = Path(__file__).resolve().parents[2]
LOCK = CHECKOUT / "infra" / "requirements.txt"
HEAD = "# All packages that Joiner needs, with their versions; written by `make lock`.\n"
IMAGE_LOCK = CHECKOUT / "controller" / "requirements.txt"
IMAGE_HEAD = "# All packages of the controller's image; written by `make lock`.\n"
IMAGE = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.0", "sys_platform": "linux"}
"""What the image has in place of this interpreter, for the conditions of requirements."""

ONLY_PROGRAM = {
    *("pulumi", "pulumi-aws", "pulumi-kubernetes"),
    *("botocore", "jsonschema", "kubernetes", "pip", "requests"),
}
"""Dependencies in pyproject.toml that only `pulumi up` needs."""


def direct() -> list[str]:
    """Return the dependencies in pyproject.toml."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def direct_of_image() -> list[str]:
    """Return the dependencies in pyproject.toml that the controller needs."""
    return [text for text in direct() if Requirement(text).name not in ONLY_PROGRAM]


def closure(
    requirements: Iterable[str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return all transitive dependencies of the requirements, with their installed versions.

    Conditions hold for this interpreter, except for what `environment` states.
    """
    versions: dict[str, str] = {}
    waiting = list(requirements)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in versions:
            versions[name] = metadata.version(name)
            waiting += _asked(name, requirement.extras, environment or {})
    return versions


def _asked(name: str, extras: Iterable[str], environment: Mapping[str, str]) -> Iterator[str]:
    for text in metadata.requires(name) or []:
        marker = Requirement(text).marker
        known = ({**environment, "extra": extra} for extra in ("", *extras))
        if marker is None or any(map(marker.evaluate, known)):
            yield text


def text_of(head: str, versions: Mapping[str, str]) -> str:
    """Return the content of a file of versions."""
    return head + "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def main() -> None:
    """Write the files."""
    LOCK.write_text(text_of(HEAD, closure(direct())))
    IMAGE_LOCK.write_text(text_of(IMAGE_HEAD, closure(direct_of_image(), IMAGE)))


if __name__ == "__main__":
    main()
