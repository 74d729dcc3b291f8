"""The language host: runs a Python program for the engine.

By default the program runs on the host's own interpreter, whatever `runtime.options` says,
because its packages are installed there. With `--installed` it runs in the virtual environment
that the options name, as under the real host. `pulumi install` fills that environment in either
case. Plugins in Python run in the same way, but by default nothing is installed for them.

`pulumi package add` needs Pulumi's generator of SDKs, which is a program in Go.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.json_format import MessageToDict
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

from testbed.plugins import languageexec, toolchain
from testbed.plugins.lifetime import new_server, serve

VERSION: Final = "3.250.0"
GENERATOR: Final = "pulumi-python-sdk"
"""The binary that generates SDKs, beside the engine if the home has it."""


class LanguageHost(language_pb2_grpc.LanguageRuntimeServicer):
    """Answers the engine's language-runtime calls for Python."""

    def __init__(self, *, is_installed: bool = False) -> None:
        self._is_installed = is_installed

    def Handshake(self, request: Any, context: Any) -> Any:
        return language_pb2.LanguageHandshakeResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=VERSION)

    def About(self, request: Any, context: Any) -> Any:
        return language_pb2.AboutResponse(
            executable=sys.executable, version=platform.python_version()
        )

    def GetRequiredPlugins(self, request: Any, context: Any) -> Any:
        return language_pb2.GetRequiredPluginsResponse()

    def GetRequiredPackages(self, request: Any, context: Any) -> Any:
        return language_pb2.GetRequiredPackagesResponse()

    def GetProgramDependencies(self, request: Any, context: Any) -> Any:
        return language_pb2.GetProgramDependenciesResponse()

    def GeneratePackage(self, request: Any, context: Any) -> Any:
        """Generate the SDK of a package."""
        generator = Path(os.environ["PULUMI_HOME"]) / "bin" / GENERATOR
        if not generator.exists():
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{GENERATOR} is not beside the engine")
        done = subprocess.run(
            [generator], input=request.SerializeToString(), capture_output=True, check=False
        )
        if done.returncode:
            context.abort(grpc.StatusCode.UNKNOWN, done.stderr.decode(errors="replace"))
        return language_pb2.GeneratePackageResponse.FromString(done.stdout)

    def Link(self, request: Any, context: Any) -> Any:
        """Add SDKs to the requirements of the program."""
        paths = [one.path for one in request.packages]
        toolchain.require(Path(request.info.root_directory), paths)
        return language_pb2.LinkResponse(
            import_instructions=f"{toolchain.REQUIREMENTS} has the SDK: {', '.join(paths)}"
        )

    def InstallDependencies(self, request: Any, context: Any) -> Iterator[Any]:
        if request.is_plugin and not self._is_installed:
            return
        info = request.info
        root, program = Path(info.root_directory), Path(info.program_directory)
        try:
            for line in toolchain.install(root, program, MessageToDict(info.options)):
                yield language_pb2.InstallDependenciesResponse(stdout=line.encode())
        except toolchain.ToolchainError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))

    def Run(self, request: Any, context: Any) -> Any:
        try:
            wrong = self._run(request)
        except toolchain.ToolchainError as error:
            return language_pb2.RunResponse(error=str(error))
        # The error was logged to the user before, so the engine need not repeat it.
        return language_pb2.RunResponse(error=wrong or "", bail=bool(wrong))

    def RunPlugin(self, request: Any, context: Any) -> Iterator[Any]:
        """Start a plugin in Python, and pass its output on until it or the call ends."""
        given = dict(variable.partition("=")[::2] for variable in request.env)
        try:
            environment = self._environment(request.info)
            python = toolchain.interpreter(environment) if environment else Path(sys.executable)
        except toolchain.ToolchainError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        if environment is None:
            given["PYTHONPATH"] = os.pathsep.join(sys.path)  # the packages of this interpreter
        else:
            given = toolchain.activated_variables(environment, given)
        with subprocess.Popen(
            [str(python), "-u", request.info.program_directory, *request.args],
            cwd=request.pwd,
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        ) as process:
            context.add_callback(process.kill)  # the engine ends a plugin by ending the call
            assert process.stdout is not None
            for line in process.stdout:
                yield language_pb2.RunPluginResponse(stdout=line)
        yield language_pb2.RunPluginResponse(exitcode=process.returncode)

    def _environment(self, info: Any) -> Path | None:
        if not self._is_installed:
            return None
        return toolchain.virtual_environment(Path(info.root_directory), MessageToDict(info.options))

    def _run(self, request: Any) -> str | None:
        info = request.info
        environment = self._environment(info)
        if environment is None:
            # As under the real host, modules are searched first in the program's folder.
            sys.path[:0] = [info.program_directory, info.root_directory]
            return languageexec.run(request_fields(request))
        ended = subprocess.run(
            [str(toolchain.interpreter(environment)), "-u", languageexec.__file__],
            input=json.dumps(request_fields(request)),
            env=toolchain.activated_variables(environment),
            text=True,
            check=False,
        )
        return "the program failed" if ended.returncode else None


def request_fields(request: Any) -> dict[str, Any]:
    """Return the engine's request to run a program, as `languageexec` reads it."""
    return {
        "args": list(request.args),
        "config": dict(request.config),
        "dry_run": request.dryRun,
        "entry_point": request.info.entry_point,
        "folder": request.info.program_directory,
        "monitor": request.monitor_address,
        "organization": request.organization,
        "parallel": request.parallel,
        "project": request.project,
        "pwd": request.pwd,
        "root": request.info.root_directory,
        "secret_keys": list(request.configSecretKeys),
        "stack": request.stack,
    }


if __name__ == "__main__":
    server = new_server()
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(
        LanguageHost(is_installed=toolchain.INSTALLED in sys.argv), server
    )
    serve(server)
