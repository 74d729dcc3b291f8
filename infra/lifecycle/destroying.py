"""Detects that the program runs for `pulumi destroy`, and reports refusals before it starts.

The engine runs the program of a destroy only with `--run-program`, and does not tell it the
operation. In a preview the engine does not ask providers whether a deletion would be refused. So
the program reads the engine's command line from its parent processes, and asks the providers
itself. In inline programs of the Automation API, a destroy is not detected.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import Resource

from infra.wording import wrap_lines

DESTROY = frozenset({"destroy", "down", "dn"})
OTHERS = frozenset({"up", "update", "preview", "pre", "refresh", "import", "watch"})

TARGET = frozenset({"--target", "-t"})
"""The options of Pulumi that limit an operation to some resources."""

EXCLUDE_PROTECTED = "--exclude-protected"
"""The option of `pulumi destroy` that leaves protected resources alone."""

REPLACE = frozenset({"--replace", "--target-replace"})


class DestroyRefusedError(pulumi.RunError):
    """`pulumi destroy` would be refused; the message says why and what to do."""

    def __init__(self, problems: Sequence[str]) -> None:
        said = ["pulumi destroy would be refused:", *map(wrap_lines, problems)]
        super().__init__("\n".join(said))


def refuse_ahead(
    resource: Resource,
    keys: Sequence[str],
    refusals: Callable[[Mapping[str, Any]], Sequence[str]],
) -> None:
    """Refuse a destroy while the program runs, before the engine deletes anything.

    Args:
        resource: the resource whose deletion may be refused.
        keys: names of its properties. In a destroy the engine returns their values from the state,
            which decide what the destroy does.
        refusals: returns the reasons for the given properties; empty if the deletion is allowed.

    Raises:
        DestroyRefusedError: `refusals` returned reasons.

    """
    if not is_destroying():
        return

    def refuse(known: Mapping[str, Any]) -> None:
        if problems := refusals(known):
            raise DestroyRefusedError(problems)

    pulumi.Output.all(**{key: getattr(resource, key) for key in keys}).apply(refuse)


@cache
def is_destroying() -> bool:
    """Whether a `pulumi destroy` started this program."""
    return any(is_destroy(arguments) for _, arguments in ancestors())


def is_destroy(arguments: Sequence[str]) -> bool:
    """Whether a command line is that of `pulumi destroy`."""
    words = _words_of_engine(arguments)
    return next((word for word in words if word in DESTROY | OTHERS), "") in DESTROY


@cache
def is_replacing() -> bool:
    """Whether `pulumi up --replace` started this program, to replace resources that it names."""
    return any(is_replacement(arguments) for _, arguments in ancestors())


@cache
def is_partial() -> bool:
    """Whether a `pulumi destroy` of only a part of the stack started this process."""
    return any(is_destroy_of_part(arguments) for _, arguments in ancestors())


def is_destroy_of_part(arguments: Sequence[str]) -> bool:
    """Whether a command line is that of `pulumi destroy` with `--target`."""
    options = {word.partition("=")[0] for word in _words_of_engine(arguments)}
    return is_destroy(arguments) and bool(options & TARGET)


def protected_resources() -> list[str]:
    """Return the URNs that the state protects, in a `pulumi destroy` that would delete them too.

    The engine refuses to delete such a resource only when its turn comes. Empty if the state cannot
    be read, or outside of a destroy.
    """
    for process, arguments in ancestors():
        if is_destroy(arguments) and EXCLUDE_PROTECTED not in arguments:
            try:
                exported = _export(process, arguments)
            except (OSError, ValueError, subprocess.SubprocessError):
                return []
            resources = exported["deployment"].get("resources") or []
            return [one["urn"] for one in resources if one.get("protect")]
    return []


def _export(process: int, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the state of the stack that the engine's process destroys."""
    stack = _option(arguments, "--stack", "-s")
    engine = Path(f"/proc/{process}")
    folder = _option(arguments, "--cwd", "-C") or str((engine / "cwd").readlink())
    command = [str((engine / "exe").readlink()), "stack", "export", "--cwd", folder]
    command += ["--non-interactive", *(["--stack", stack] if stack else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    exported: dict[str, Any] = json.loads(done.stdout)
    return exported


def _option(arguments: Sequence[str], *names: str) -> str:
    """Return the value of an option of a command line; empty without it."""
    for word, following in itertools.pairwise((*arguments, "")):
        name, _, value = word.partition("=")
        if name in names:
            return value or following
    return ""


def is_replacement(arguments: Sequence[str]) -> bool:
    """Whether a command line is Pulumi's, and asks to replace resources (`--replace`)."""
    return any(word.partition("=")[0] in REPLACE for word in _words_of_engine(arguments))


def _words_of_engine(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments of a command line of Pulumi's engine; empty for other programs."""
    program, *words = arguments or [""]
    return words if Path(program).name.startswith("pulumi") else []


def ancestors() -> Iterator[tuple[int, list[str]]]:
    """Yield ID and command line of the parent process, of its parent, and so on."""
    process = os.getppid()
    while process > 1:
        try:
            parent, arguments = _parent_and_command(process)
        except (OSError, ValueError, subprocess.SubprocessError):
            return
        yield process, arguments
        process = parent


def _parent_and_command(process: int) -> tuple[int, list[str]]:
    """Return the parent of a process, and its command line."""
    folder = Path(f"/proc/{process}")
    if folder.exists():
        arguments = (folder / "cmdline").read_text(errors="replace").split("\0")
        # The name of the program, in parentheses, may hold spaces.
        parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        return int(parent), arguments
    command = ["ps", "-o", "ppid=,command=", "-p", str(process)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    parent, _, line = listed.stdout.strip().partition(" ")
    return int(parent), line.split()
