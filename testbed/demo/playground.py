"""A testbed on which users try Joiner: with the stack deployed, and variables for a shell.

`make up` deploys a stack with its default NodePool. `eval "$(make env)"` sets the variables of
`environment`, so that the commands of the documentation work in the checkout as typed.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from testbed.environment import CHECKOUT
from testbed.plugins.engine import PulumiEngine
from testbed.processes import binaries
from testbed.progress import SILENCE, Progress
from testbed.region.testbed import State

STACK = "playground"
SETTINGS = CHECKOUT / f"Pulumi.{STACK}.yaml"
"""The stack's settings, where `pulumi config` reads and writes them; ignored by Git."""

COMPLETION = "from controller.console.completion import for_kubectl; for_kubectl()"
COMMANDS: Mapping[str, Sequence[str]] = {
    "joiner": ("-m", "controller"),
    "kubectl-joiner": ("-m", "controller"),
    "kubectl_complete-joiner": ("-c", COMPLETION),
}
"""The arguments of Python for each command that `pip install` would install."""

Variables = Mapping[str, str]


def deploy(
    state: State,
    directory: Path,
    *,
    cluster_name: str,
    show: Callable[[str], None],
    progress: Progress = SILENCE,
) -> None:
    """Deploy the stack on a running testbed, and select it.

    Args:
        state: The state that the testbed recorded.
        directory: The directory of the testbed.
        cluster_name: The name of the testbed's EKS cluster.
        show: Receives each line of Pulumi's output.
        progress: Receives the progress of builds and downloads.

    Raises:
        EngineError: `pulumi up` failed.

    """
    engine = _engine(state, directory, show=show, progress=progress)
    _write_commands(directory)
    engine.up(
        STACK,
        {
            "clusterName": cluster_name,
            "region": state.environment["AWS_REGION"],
            "awsEndpoint": state.environment["AWS_ENDPOINT_URL"],
            "kubeconfig": state.environment["KUBECONFIG"],
            "image": "testbed/checkout:local",
        },
    )
    SETTINGS.write_text(engine.settings_of(STACK))
    engine.select(STACK)


def is_deployed(directory: Path) -> bool:
    """Whether the stack was deployed on the testbed in this directory."""
    return (directory / "bin" / "joiner").exists() and SETTINGS.exists()


def forget() -> None:
    """Remove the stack's settings from the checkout."""
    SETTINGS.unlink(missing_ok=True)


def environment(state: State, directory: Path) -> Variables:
    """Return the variables to set in a shell: those of the testbed, of Pulumi, and `PATH`.

    If no stack is deployed, return only those of the testbed.
    """
    if not is_deployed(directory):
        return state.environment
    engine = _engine(state, directory)
    folders = [
        directory / "bin",
        engine.home.engine.parent,
        binaries.ensure("kubectl").parent,
    ]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath)])
    return {**state.environment, **engine.variables, "PATH": path}


def _engine(
    state: State,
    directory: Path,
    *,
    show: Callable[[str], None] = print,
    progress: Progress = SILENCE,
) -> PulumiEngine:
    return PulumiEngine(
        directory=directory / "pulumi",
        project=CHECKOUT,
        environment=state.environment,
        show=show,
        progress=progress,
    )


def _write_commands(directory: Path) -> None:
    """Write the commands of a checkout, which `pip install` would install."""
    folder = directory / "bin"
    folder.mkdir(exist_ok=True)
    for name, arguments in COMMANDS.items():
        path = folder / name
        path.write_text(
            "#!/bin/sh\n"
            f"PYTHONPATH={shlex.quote(str(CHECKOUT))}${{PYTHONPATH:+:$PYTHONPATH}}\n"
            "export PYTHONPATH\n"
            f'exec {shlex.join((sys.executable, *arguments))} "$@"\n'
        )
        path.chmod(0o755)
