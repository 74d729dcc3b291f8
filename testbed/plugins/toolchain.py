"""`runtime.options` of a Python project, as Pulumi's own host applies them with toolchain pip.

The folders to search follow Pulumi's SDK, `python/toolchain/pip.go`, and for dynamic providers
`python/dist/pulumi-resource-pulumi-python`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

INSTALLED: Final = "--installed"
"""Option of the hosts: use the project's virtual environment, not the testbed's interpreter."""

REQUIREMENTS: Final = "requirements.txt"


class ToolchainError(Exception):
    """A project's packages are missing or cannot be installed; the message is for the user."""


def virtual_environment(folder: Path, options: Mapping[str, Any]) -> Path | None:
    """Return the path of the project's virtual environment, or None if it has none.

    Args:
        folder: The folder that a relative path is relative to.
        options: `runtime.options` of Pulumi.yaml.

    Raises:
        ToolchainError: The toolchain is not pip.

    """
    toolchain = options.get("toolchain") or "pip"
    if toolchain != "pip":
        raise ToolchainError(f"the stand-in for Pulumi's host supports only pip, not {toolchain}")
    named = options.get("virtualenv")
    return folder / named if named else None


def interpreter(environment: Path) -> Path:
    """Return the Python of a virtual environment. Raises `ToolchainError` if it does not exist."""
    python = environment / "bin" / "python"
    if not python.exists():
        raise ToolchainError(
            f"there is no virtual environment in {environment}, which Pulumi.yaml names: "
            "pulumi install makes it"
        )
    return python


def activated_variables(
    environment: Path, variables: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return `variables`, changed as if the virtual environment had been activated."""
    outside = {"PYTHONHOME", "PYTHONPATH"}
    return {
        **{name: value for name, value in variables.items() if name not in outside},
        "PATH": os.pathsep.join([str(environment / "bin"), variables.get("PATH", "")]),
        "VIRTUAL_ENV": str(environment),
    }


def install(root: Path, program: Path, options: Mapping[str, Any]) -> Iterator[str]:
    """Create the virtual environment and install the program's requirements; yield the output.

    Args:
        root: The folder of Pulumi.yaml.
        program: The folder of the program and its requirements.txt.
        options: `runtime.options` of Pulumi.yaml.

    Raises:
        ToolchainError: The environment cannot be created, or pip fails.

    """
    environment = virtual_environment(root, options)
    if environment is None:
        raise ToolchainError("the stand-in for Pulumi's host installs only into a virtualenv")
    yield f"Creating virtual environment {environment}\n"
    yield from _output_of([_ambient(), "-m", "venv", str(environment)], program)
    pip = [str(interpreter(environment)), "-m", "pip", "install"]
    variables = activated_variables(environment)
    yield from _output_of([*pip, "--upgrade", "pip", "setuptools", "wheel"], program, variables)
    if (program / REQUIREMENTS).exists():
        yield from _output_of([*pip, "-r", REQUIREMENTS], program, variables)


def require(root: Path, packages: Sequence[str]) -> None:
    """Add the folders of packages to a project's requirements.txt, each once."""
    file = root / REQUIREMENTS
    others = [line for line in file.read_text().splitlines() if line.strip() not in packages]
    file.write_text("\n".join([*others, *sorted(packages)]) + "\n")


def _ambient() -> str:
    named = os.environ.get("PULUMI_PYTHON_CMD")
    for command in (named,) if named else ("python3", "python"):
        if found := shutil.which(command):
            return found
    raise ToolchainError("there is no Python on the path")


def _output_of(
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
