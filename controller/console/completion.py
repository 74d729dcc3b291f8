"""The command `completion`: shell completion of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

import shtab

from controller.console.top import command as top
from controller.console.web import command as web
from controller.offline import cost, disrupt, node, pod, solve
from controller.offline.advise import command as advise
from controller.offline.commandline import parse_arguments
from controller.offline.record import command as record

PARSERS: Mapping[str, Callable[[], argparse.ArgumentParser]] = {
    "solve": solve.solve_parser,
    "disrupt": disrupt.disrupt_parser,
    "record": record.record_parser,
    "cost": cost.parser,
    "advise": advise.parser,
    "top": top.parser,
    "web": web.parser,
}


def completion(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `completion`; return the exit code."""
    parser = _parser()
    print(shtab.complete(every(), parse_arguments(parser, argv).shell))
    return 0


def every() -> argparse.ArgumentParser:
    """Return one parser with all commands."""
    parser = argparse.ArgumentParser(prog="joiner")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers()
    for name, make in PARSERS.items():
        commands.add_parser(name, help="", parents=[make()], add_help=False)
    explain = commands.add_parser("explain", help="").add_subparsers()
    explain.add_parser("pod", help="", parents=[pod.parser()], add_help=False)
    explain.add_parser("node", help="", parents=[node.parser()], add_help=False)
    commands.add_parser("completion", help="", parents=[_parser()], add_help=False)
    return parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="joiner completion",
        description="Print a script that completes the command line of joiner. For bash: "
        'eval "$(joiner completion bash)".',
    )
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return parser
