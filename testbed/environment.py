"""The Python environment of a checkout: one per set of dependencies, outside the checkout.

This module runs on a bare Python with only the standard library, because it installs the other
packages. It prints the interpreter's path to stdout, and its progress to stderr.

    python3 -m testbed.environment
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
UV = "uv==0.13.9"
"""The installer of the packages; pip installs it, and replaces it where it cannot work."""

HARDLY_IMPORTED = ("kubernetes", "networkx", "pulumi_aws", "pulumi_kubernetes", "sympy")
"""Packages of which few modules are ever imported. Python compiles those at their first import.

They are three quarters of the source code of all packages.
"""


class UnavailableError(RuntimeError):
    """No Python has all dependencies, and no environment can be created.

    The message says what to do.
    """


def cache_directory() -> Path:
    """Return the directory of everything downloaded or built, shared by all checkouts."""
    if own := os.environ.get("JOINER_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().absolute() / "joiner"
    return Path.home() / ".cache" / "joiner"


def dependencies() -> list[str]:
    """Return every pinned requirement of pyproject.toml, including extras."""
    import tomllib  # imported here: an older Python must reach the message on its age

    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(r for name in sorted(extras) for r in extras[name])]


def interpreter() -> Path:
    """Return a Python with all dependencies; create its environment if there is none.

    Raises:
        UnavailableError: This Python is too old for the environment, or pip failed.

    """
    if not _is_recent():
        raise UnavailableError(
            f"Joiner needs Python 3.11 or newer; this is {platform.python_version()}.\n"
            "Name another one: make PYTHON=python3.12 …, or python3.12 -m testbed …"
        )
    wanted = dependencies()
    key = hashlib.sha256(json.dumps([wanted, sys.version]).encode()).hexdigest()[:12]
    folder = cache_directory() / f"python-{sys.version_info.major}.{sys.version_info.minor}-{key}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(folder, python, wanted)
    return python


def _install(folder: Path, python: Path, wanted: list[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    print(f"Python packages, for {folder}", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    if not _installed_by_uv(pip, python, wanted):
        print("uv cannot install them; pip takes a few minutes", file=sys.stderr, flush=True)
        code = subprocess.run([*pip, *wanted], stdout=sys.stderr, check=False).returncode
        if code:
            raise UnavailableError(
                f"pip could not install the packages (exit {code}): "
                "see its message above; a second try continues where it stopped."
            )
    (folder / "complete").touch()


def _installed_by_uv(pip: list[str], python: Path, wanted: list[str]) -> bool:
    """Install the packages with uv, in half of pip's CPU time; return whether this succeeded."""
    if subprocess.run([*pip, "--quiet", UV], stdout=sys.stderr, check=False).returncode:
        return False
    uv = [str(python), "-m", "uv", "pip", "install", "--python", str(python)]
    uv += ["--system-certs"]
    # uv does not read pip's configuration.
    said = subprocess.run([*pip[:3], "config", "list"], capture_output=True, text=True, check=False)
    for index in re.findall(r"^\S*\.index-url='(.+)'$", said.stdout, re.M)[-1:]:
        uv += ["--default-index", index]
    if not sys.stderr.isatty():
        uv += ["--quiet"]  # else it lists every package
    if subprocess.run([*uv, *wanted], stdout=sys.stderr, check=False).returncode:
        return False
    _compile(python)
    return True


def _compile(python: Path) -> None:
    """Compile the packages to bytecode, so that no process does so at its imports."""
    left_out = rf"/site-packages/({'|'.join(HARDLY_IMPORTED)})/"
    command = [str(python), "-m", "compileall", "-qq", "-j", "0", "-x", left_out]
    # It fails if a package contains templates of modules.
    subprocess.run([*command, str(python.parent.parent / "lib")], stdout=sys.stderr, check=False)


def other() -> Path | None:
    """Return the Python to re-execute in, created if needed; None if this one has everything.

    Raises:
        UnavailableError: No Python has all dependencies, and no environment can be created.

    """
    if _is_recent() and _has_all(dependencies()):
        return None
    python = interpreter()
    return None if Path(sys.prefix) == python.parent.parent else python


def _is_recent() -> bool:
    return sys.version_info >= OLDEST


def _has_all(wanted: Iterable[str]) -> bool:
    for requirement in wanted:
        name, _, version = requirement.partition("==")
        try:
            if metadata.version(name.partition("[")[0]) != version:
                return False
        except metadata.PackageNotFoundError:
            return False
    return True


def main() -> int:
    """Print the interpreter's path, or what is missing; return the exit code."""
    try:
        print(interpreter())
    except UnavailableError as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
