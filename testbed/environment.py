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
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections import deque
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
LOG_SECONDS = 10.0
"""How often a log hears of the installation; a terminal hears all the time."""


class UnavailableError(RuntimeError):
    """There is no Python with all dependencies, and none can be made; says what to do."""


def cache_directory() -> Path:
    """Return where all that is fetched or built is kept: between runs, for every checkout."""
    if own := os.environ.get("JOINER_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser().absolute() / "joiner"
    return Path.home() / ".cache" / "joiner"


def dependencies() -> list[str]:
    """Return every pinned requirement of pyproject.toml, extras included."""
    import tomllib  # an older Python must live to be told that it is too old

    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(r for name in sorted(extras) for r in extras[name])]


def interpreter() -> Path:
    """Return the Python that has all dependencies, making it when there is none yet.

    Raises:
        UnavailableError: this Python is too old to make one of, or pip gave up.

    """
    if not _is_recent():
        raise UnavailableError(
            f"Joiner needs Python 3.11 or newer; this is {platform.python_version()}.\n"
            "Name another one: make PYTHON=python3.12 …, or python3.12 -m testbed …"
        )
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
        raise UnavailableError(
            f"{''.join(said)}\n"
            f"pip could not install the packages (exit {pip.returncode}): "
            "see its message above; a second try continues where it stopped."
        )
    (home / "complete").touch()


def _followed(lines: Iterable[str]) -> list[str]:
    """Say what pip is doing, in one line that moves; returns its last words."""
    last: deque[str] = deque(maxlen=20)
    packages, began, spoke = 0, time.monotonic(), 0.0
    for line in lines:
        last.append(line)
        verb = line.split(maxsplit=1)[0] if line.strip() else ""
        packages += verb == "Collecting"
        now = time.monotonic()
        is_due = now - spoke >= (0.2 if sys.stderr.isatty() else LOG_SECONDS)
        if verb in ("Collecting", "Downloading", "Installing") and is_due:
            spoke = now
            what = "installing them" if verb == "Installing" else line.split()[1].split("==")[0]
            _report(f"  {packages} packages, {now - began:.0f} s: {what}")
    _report(f"  {packages} packages installed in {time.monotonic() - began:.0f} s", end="\n")
    return list(last)


def _report(text: str, end: str = "") -> None:
    if sys.stderr.isatty():
        print(f"\r{text[:78]:78}", end=end, file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def other() -> Path | None:
    """Return the Python to go on in, making it when needed; None when this one will do.

    Raises:
        UnavailableError: there is none, and none can be made.

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
    """Print the interpreter's path, or say what is missing."""
    try:
        print(interpreter())
    except UnavailableError as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
