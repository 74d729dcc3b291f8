"""The Python environment of a checkout: made once per set of dependencies, and kept outside.

Runs on a bare Python and needs nothing but the standard library: it is what
installs the rest. Prints the interpreter's path; what it does meanwhile goes to
standard error.

    python3 -m testbed.environment
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from collections import deque
from collections.abc import Iterable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
LOG_SECONDS = 10.0
"""How often a log hears of the installation; a terminal hears all the time."""


class InstallFailedError(RuntimeError):
    """pip gave up; `said` are its last lines."""

    def __init__(self, status: int, said: list[str]) -> None:
        super().__init__(f"pip ended with {status}")
        self.status = status
        self.said = said


def cache_directory() -> Path:
    """Return where all that is fetched or built is kept: between runs, for every checkout."""
    if own := os.environ.get("JOINER_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().absolute() / "joiner"
    return Path.home() / ".cache" / "joiner"


def dependencies() -> list[str]:
    """Return every pinned requirement of pyproject.toml, extras included."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(r for name in sorted(extras) for r in extras[name])]


def interpreter() -> Path:
    """Return the Python that has all dependencies, making it when there is none yet."""
    wanted = dependencies()
    key = hashlib.sha256(json.dumps([wanted, sys.version]).encode()).hexdigest()[:12]
    home = cache_directory() / f"python-{sys.version_info.major}.{sys.version_info.minor}-{key}"
    python = home / "bin" / "python"
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            _install(home, python, wanted)
    return python


def _install(home: Path, python: Path, wanted: list[str]) -> None:
    shutil.rmtree(home, ignore_errors=True)
    print(f"Python packages, for {home}", file=sys.stderr, flush=True)
    venv.create(home, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *wanted]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        said = _followed(pip.stdout)
    if pip.returncode:
        raise InstallFailedError(pip.returncode, said)
    (home / "complete").touch()


def _followed(lines: Iterable[str]) -> list[str]:
    """Say what pip is doing, in one line that moves; returns its last words."""
    last: deque[str] = deque(maxlen=20)
    found, began, spoke = 0, time.monotonic(), 0.0
    for line in lines:
        last.append(line)
        verb = line.split(maxsplit=1)[0] if line.strip() else ""
        found += verb == "Collecting"
        now = time.monotonic()
        is_due = now - spoke >= (0.2 if sys.stderr.isatty() else LOG_SECONDS)
        if verb in ("Collecting", "Downloading", "Installing") and is_due:
            spoke = now
            what = "installing them" if verb == "Installing" else line.split()[1].split("==")[0]
            _tell(f"  {found} packages, {now - began:.0f} s: {what}")
    _tell(f"  {found} packages installed in {time.monotonic() - began:.0f} s", end="\n")
    return list(last)


def _tell(text: str, end: str = "") -> None:
    if sys.stderr.isatty():
        print(f"\r{text[:78]:78}", end=end, file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Print the interpreter's path, or say what is missing."""
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        print(
            f"Joiner needs Python 3.11 or newer; this is {found}.\n"
            "Name another one: make PYTHON=python3.12 …",
            file=sys.stderr,
        )
        return 1
    try:
        print(interpreter())
    except InstallFailedError as failure:
        print("".join(failure.said), file=sys.stderr)
        print(
            f"pip could not install the packages (exit {failure.status}): "
            "see its message above; a second try continues where it stopped.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
