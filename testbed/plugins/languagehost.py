"""The language host: runs a Python program for the engine, on the interpreter it runs under.

Whatever the options of `runtime` say (virtualenv, toolchain), the program sees the
packages of this interpreter. As under the real host, the program's folder is the
first place where modules are looked for, and the project's folder is one too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import runpy
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
import pulumi
from pulumi.runtime.proto import language_pb2, language_pb2_grpc, plugin_pb2

from testbed.plugins.lifetime import new_server, serve

VERSION: Final = "3.250.0"
THREADS_PER_OPERATION: Final = 4


class ProgramError(Exception):
    """The program failed; the message is for the user."""


class LanguageHost(language_pb2_grpc.LanguageRuntimeServicer):
    """Answers the engine on behalf of Python."""

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

    def InstallDependencies(self, request: Any, context: Any) -> Any:
        return iter(())  # the interpreter has what the program needs

    def Run(self, request: Any, context: Any) -> Any:
        program = _prepare(request)
        try:
            _run(program, request.parallel)
        except ProgramError as error:
            pulumi.log.error(str(error))
            return language_pb2.RunResponse(error=str(error), bail=True)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return language_pb2.RunResponse()


def _prepare(request: Any) -> Path:
    """Set the process up as the program expects to find it; return the program's path."""
    project, folder = request.info.root_directory, request.info.program_directory
    os.chdir(request.pwd or folder)
    sys.path[:0] = [folder, project]
    program = Path(folder) / (request.info.entry_point or ".")
    sys.argv = [str(program), *request.args[1:]]
    pulumi.runtime.set_all_config(dict(request.config), list(request.configSecretKeys))
    pulumi.runtime.configure(
        pulumi.runtime.Settings(
            project=request.project,
            stack=request.stack,
            parallel=request.parallel,
            engine=request.args[0] if request.args else "",
            monitor=request.monitor_address,
            dry_run=request.dryRun,
            organization=request.organization or "organization",
            root_directory=project,
        )
    )
    return program


def _run(program: Path, parallel: int) -> None:
    """Run the program to its end, resources included. Raises `ProgramError`."""
    # A program that fails leaves futures behind that nobody will ask for.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    workers = ThreadPoolExecutor(max(parallel, 1) * THREADS_PER_OPERATION)
    loop.set_default_executor(workers)
    try:
        loop.run_until_complete(pulumi.runtime.run_in_stack(lambda: _execute(program)))
    except pulumi.RunError as error:
        raise ProgramError(str(error)) from error
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise ProgramError(f"the engine refused a call: {error.details()}") from error
        # The engine is gone, and with it whoever would want to hear of it.
    except (Exception, SystemExit) as error:
        raise ProgramError(_describe(error, program)) from error
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.close()
        workers.shutdown(wait=False, cancel_futures=True)


def _execute(program: Path) -> None:
    if program.is_dir() and not (program / "__main__.py").exists():
        raise pulumi.RunError(f"there is no Python program in {program}: no __main__.py")
    runpy.run_path(str(program), run_name="__main__")


def _describe(error: BaseException, program: Path) -> str:
    """The traceback from the program's first line on, without what leads there."""
    if isinstance(error, SystemExit):
        return f"the program ended itself with exit status {error.code}"
    frames = traceback.extract_tb(error.__traceback__)
    home = program if program.is_dir() else program.parent
    own = [index for index, frame in enumerate(frames) if home in Path(frame.filename).parents]
    if not own:
        return "".join(traceback.format_exception_only(error))
    lines = traceback.format_exception(error, limit=own[0] - len(frames))
    return "the program failed with an exception:\n" + "".join(lines)


if __name__ == "__main__":
    server = new_server()
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageHost(), server)
    serve(server)
