"""What Pulumi's own host does with `runtime.options` of a Python project: the toolchain pip.

Which folder is looked into for what was read in Pulumi's SDK, `python/toolchain/pip.go`, and of
providers written in Python in `python/dist/pulumi-resource-pulumi-python`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

INSTALLED: Final = "--installed"
"""Has the hosts run in the virtual environment, and not on the testbed's interpreter."""

REQUIREMENTS: Final = "requirements.txt"


class ToolchainError(Exception):
    """The packages of a project are not there, or cannot be; the message is for the user."""


def virtual_environment(folder: Path, options: Mapping[str, Any]) -> Path | None:
    """Return where the project's virtual environment is, None where it asks for none.

    Args:
        folder: what a relative path is relative to.
        options: `runtime.options` of Pulumi.yaml.

    """
    toolchain = options.get("toolchain") or "pip"
    if toolchain != "pip":
        raise ToolchainError(f"the stand-in for Pulumi's host knows pip alone, not {toolchain}")
    named = options.get("virtualenv")
    return folder / named if named else None


def interpreter(environment: Path) -> Path:
    """Return the Python of a virtual environment. Raises `ToolchainError` for none."""
    python = environment / "bin" / "python"
    if not python.exists():
        raise ToolchainError(
            f"there is no virtual environment in {environment}, which Pulumi.yaml names: "
            "pulumi install makes it"
        )
    return python


def activated(environment: Path) -> dict[str, str]:
    """Return this process's variables as they are in a virtual environment."""
    outside = {"PYTHONHOME", "PYTHONPATH"}
    return {
        **{name: value for name, value in os.environ.items() if name not in outside},
        "PATH": os.pathsep.join([str(environment / "bin"), os.environ.get("PATH", "")]),
        "VIRTUAL_ENV": str(environment),
    }


def install(root: Path, program: Path, options: Mapping[str, Any]) -> Iterator[str]:
    """Make the virtual environment, and install what the program requires; yields what is said.

    Args:
        root: the folder of Pulumi.yaml.
        program: the folder of the program and of its requirements.txt.
        options: `runtime.options` of Pulumi.yaml.

    Raises:
        ToolchainError: it cannot be made, or pip gives up.

    """
    environment = virtual_environment(root, options)
    if environment is None:
        raise ToolchainError("the stand-in for Pulumi's host installs into a virtualenv alone")
    yield f"Creating virtual environment {environment}\n"
    yield from _said([_ambient(), "-m", "venv", str(environment)], program)
    pip = [str(interpreter(environment)), "-m", "pip", "install"]
    variables = activated(environment)
    yield from _said([*pip, "--upgrade", "pip", "setuptools", "wheel"], program, variables)
    if (program / REQUIREMENTS).exists():
        yield from _said([*pip, "-r", REQUIREMENTS], program, variables)


def _ambient() -> str:
    named = os.environ.get("PULUMI_PYTHON_CMD")
    for command in (named,) if named else ("python3", "python"):
        if found := shutil.which(command):
            return found
    raise ToolchainError("there is no Python on the path")


def _said(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    with subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise ToolchainError(f"{' '.join(command)} ended with status {process.returncode}")
