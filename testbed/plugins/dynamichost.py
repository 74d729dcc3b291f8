"""The process that the engine starts for resources whose provider is a Python class.

It is `pulumi.dynamic` itself, which would outlive an engine that is killed, and
whose prints would wait in a buffer. With `--installed` it is that of the virtual environment
which Pulumi.yaml names, found as Pulumi's own script finds it: from the program's folder.
"""

import os
import runpy
import sys
from pathlib import Path

from testbed.plugins import toolchain
from testbed.plugins.lifetime import end_with_engine


def become_installed() -> None:
    """Go on in the project's virtual environment, if there is one to be."""
    options = {"virtualenv": os.environ.get("PULUMI_RUNTIME_VIRTUALENV")}
    environment = toolchain.virtual_environment(Path.cwd(), options)
    if environment is None:
        return
    try:
        python = str(toolchain.interpreter(environment))
    except toolchain.ToolchainError as error:
        sys.exit(str(error))
    arguments = [argument for argument in sys.argv[1:] if argument != toolchain.INSTALLED]
    command = [python, "-u", "-m", "pulumi.dynamic", *arguments]
    os.execve(python, command, toolchain.activated(environment))  # noqa: S606


if __name__ == "__main__":
    if toolchain.INSTALLED in sys.argv:
        become_installed()
    end_with_engine()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    runpy.run_module("pulumi.dynamic", run_name="__main__")
