"""The command `completion`: shell completion of the command line.

`kubectl` completes its plugins with a program `kubectl_complete-NAME`, which prints the words that
may follow. `for_kubectl` is that program for `kubectl joiner`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args, get_origin

import shtab

from controller.apis.kinds import NODE, POD, Kind
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.errors import ApiError
from controller.console.top import command as top
from controller.console.web import command as web
from controller.kube.access import AccessError
from controller.kube.client import Client
from controller.offline import cost, disrupt, node, pod, solve
from controller.offline.advise import command as advise
from controller.offline.commandline import parse_arguments
from controller.offline.record import command as record
from controller.options import SETTINGS

FILES: Mapping[str, Mapping[str, Any]] = {
    "FILE": shtab.FILE,
    "WORLD.json": shtab.FILE,
    "FOLDER": shtab.DIRECTORY,
}
"""How a value that is a path is completed, by the metavar of its argument."""

KINDS: Mapping[str, Kind[Any]] = {"NODE": NODE, "POD": POD}
"""The kind of object that an argument names, by its metavar."""

CONTEXT_NAME = "CONTEXT"
"""The metavar of the option `--context`."""

LISTED_SECONDS = 3.0
"""How long completion waits for the names of nodes or pods."""

NO_FILES, ONLY_FOLDERS = 4, 16
"""Bits of kubectl's directive, the last line of its completions: no file names besides the words,
and the names of folders instead of those of files."""


def completion(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `completion`; return the exit code."""
    parser = _parser()
    print(shtab.complete(every(), parse_arguments(parser, argv).shell))
    return 0


def for_kubectl() -> int:
    """Print what may follow the arguments of this process, the last of which is incomplete."""
    *before, incomplete = sys.argv[1:] or [""]
    words, directive = next_words(before, incomplete, partial(names_in_cluster, environ=os.environ))
    print(*words, f":{directive}", sep="\n")
    return 0


def names_in_cluster(metavar: str, *, environ: Mapping[str, str]) -> list[str]:
    """Return what an argument may name: contexts of the kubeconfig, nodes, or pending pods.

    Empty for other arguments, and if the kubeconfig or the cluster cannot be read in time.
    """
    try:
        if metavar == CONTEXT_NAME:
            return record.context_names(environ)
        kind = KINDS.get(metavar)
        return [] if kind is None else asyncio.run(_names_of(kind, environ))
    except (AccessError, ApiError, TimeoutError):
        return []


async def _names_of(kind: Kind[Any], environ: Mapping[str, str]) -> list[str]:
    async with (
        asyncio.timeout(LISTED_SECONDS),
        Client(record.access_of(environ), user_agent="joiner") as api,
    ):
        found = await api.list(kind)
    return sorted(
        each.metadata.key.lstrip("/")
        for each in found
        if not (isinstance(each, Pod) and each.spec.node_name)
    )


def next_words(
    before: Sequence[str],
    incomplete: str,
    names: Callable[[str], Sequence[str]] = lambda metavar: (),
) -> tuple[list[str], int]:
    """Return the words that may follow `before` and begin with `incomplete`.

    `names` returns the names that an argument may have, given its metavar. The second value is the
    directive for kubectl: whether files, folders or neither may follow too.
    """
    parser, argument = every(), None
    positionals = _positionals(parser)
    for word in before:
        if argument is not None:  # the word is its value
            argument = None
        elif word.startswith("-"):
            argument = _option(parser, word)
        elif positionals:
            chosen = positionals.pop(0)
            if isinstance(chosen.choices, Mapping) and word in chosen.choices:
                parser = chosen.choices[word]
                positionals = _positionals(parser)
    if argument is None and incomplete.startswith("-"):
        words = [name for action in parser._actions for name in action.option_strings]
        return _with_prefix(incomplete, words), NO_FILES
    if argument is None:
        argument = positionals[0] if positionals else None
    if argument is None:
        return [], NO_FILES
    path = FILES.get(str(argument.metavar))
    directive = NO_FILES if path is None else ONLY_FOLDERS if path is shtab.DIRECTORY else 0
    choices = argument.choices or names(str(argument.metavar))
    return _with_prefix(incomplete, choices), directive


def _with_prefix(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    """Return the option whose value follows the word; None if no value follows."""
    return next(
        (
            action
            for action in parser._actions
            if word in action.option_strings and action.nargs != 0
        ),
        None,
    )


def every() -> argparse.ArgumentParser:
    """Return one parser with all commands."""
    parser = argparse.ArgumentParser(prog="joiner")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    for name, make in PARSERS.items():
        _add(commands, name, make())
    kinds = commands.add_parser("explain", help=EXPLAIN).add_subparsers()
    _add(kinds, "pod", pod.parser())
    _add(kinds, "node", node.parser())
    return parser


def _add(commands: Any, name: str, parser: argparse.ArgumentParser) -> None:
    """Add a command to the subparsers of another one."""
    for action in parser._actions:
        if complete := FILES.get(str(action.metavar)):
            action.complete = complete  # type: ignore[attr-defined]
    summary = (parser.description or "").partition(":")[0].partition(". ")[0]
    commands.add_parser(name, help=summary, parents=[parser], add_help=False)


def _run_parser() -> argparse.ArgumentParser:
    """Return a parser with the settings of `run`, for completion only."""
    parser = argparse.ArgumentParser(
        prog="joiner run", description="Run the controller until it is stopped."
    )
    for setting in SETTINGS:
        is_literal = get_origin(setting.type) is Literal
        parser.add_argument(
            f"--{setting.flag}",
            choices=get_args(setting.type) if is_literal else None,
            help=setting.doc.partition(". ")[0].replace("%", "%%"),
        )
    return parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="joiner completion",
        description="Print a script that completes the command line of joiner. For bash: "
        'eval "$(joiner completion bash)". For fish: joiner completion fish | source. For zsh: '
        "write the output of joiner completion zsh to a file _joiner in a folder of $fpath.",
    )
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return parser


EXPLAIN = "Print why a pod is pending, or why a node is not disrupted"

PARSERS: Mapping[str, Callable[[], argparse.ArgumentParser]] = {
    "run": _run_parser,
    "solve": solve.solve_parser,
    "disrupt": disrupt.disrupt_parser,
    "record": record.record_parser,
    "cost": cost.parser,
    "advise": advise.parser,
    "top": top.parser,
    "web": web.parser,
    "completion": _parser,
}
