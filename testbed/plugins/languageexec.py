"""Runs a Python program for the engine, from a JSON request on standard input.

It needs Pulumi's SDK and nothing of the testbed. In a project's own virtual environment, which
does not have the testbed, the language host starts it by its path.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pulumi

THREADS_PER_OPERATION: Final = 4


class ProgramError(Exception):
    """The program failed; the message is for the user."""


def run(request: Mapping[str, Any], declare: Callable[[], None] | None = None) -> str | None:
    """Run the program to its end, including its resources; return the error, or None.

    A returned error has already been shown to the user.

    Args:
        request: The engine's request, as `languagehost` writes it.
        declare: Creates the resources; None runs the Python program.

    """
    program = _prepare(request)
    try:
        _run(declare or partial(_execute, program), program, request["parallel"])
    except ProgramError as error:
        pulumi.log.error(str(error))
        return str(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return None


def _prepare(request: Mapping[str, Any]) -> Path:
    """Set up the process as the program expects it; return the program's path."""
    os.chdir(request["pwd"] or request["folder"])
    program = Path(request["folder"]) / (request["entry_point"] or ".")
    sys.argv = [str(program), *request["args"][1:]]
    pulumi.runtime.set_all_config(request["config"], request["secret_keys"])
    pulumi.runtime.configure(
        pulumi.runtime.Settings(
            project=request["project"],
            stack=request["stack"],
            parallel=request["parallel"],
            engine=request["args"][0] if request["args"] else "",
            monitor=request["monitor"],
            dry_run=request["dry_run"],
            organization=request["organization"] or "organization",
            root_directory=request["root"],
        )
    )
    return program


def _run(declare: Callable[[], None], program: Path, parallel: int) -> None:
    """Run the program to its end, including its resources. Raises `ProgramError`."""
    # A failed program leaves futures that are never awaited, about which asyncio would log.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    workers = ThreadPoolExecutor(max(parallel, 1) * THREADS_PER_OPERATION)
    loop.set_default_executor(workers)
    try:
        loop.run_until_complete(pulumi.runtime.run_in_stack(declare))
    except pulumi.RunError as error:
        raise ProgramError(str(error)) from error
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise ProgramError(f"the engine refused a call: {error.details()}") from error
        # The engine is gone, so there is no recipient for an error.
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
    """Return the traceback from the program's first frame on, without the frames before it."""
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
    del sys.path[0]  # this folder, whose modules do not belong to the program
    sys.exit(1 if run(json.load(sys.stdin)) else 0)
