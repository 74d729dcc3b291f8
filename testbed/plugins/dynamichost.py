"""The process that the engine starts for dynamic providers, which are Python classes.

It runs `pulumi.dynamic`, which by itself would outlive a killed engine and would buffer its
output. With `--installed` it runs in the virtual environment that Pulumi.yaml names. A relative
path of that environment is relative to the program's folder, as in Pulumi's own script.
"""

import os
import runpy
import sys
from pathlib import Path

from testbed.plugins import toolchain
from testbed.plugins.lifetime import end_with_engine


def use_project_environment() -> None:
    """Re-execute in the project's virtual environment, if Pulumi.yaml names one."""
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
    os.execve(python, command, toolchain.activated_variables(environment))  # noqa: S606


if __name__ == "__main__":
    if toolchain.INSTALLED in sys.argv:
        use_project_environment()
    end_with_engine()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    runpy.run_module("pulumi.dynamic", run_name="__main__")
