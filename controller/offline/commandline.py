"""Shared by the commands: where they read a cluster from, and how they print an answer."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import orjson
import yaml
from rich.console import Console
from rich.table import Table as DrawnTable

from controller.offline.reporter import Table
from controller.options import SETTINGS, nearest

STDIN = Path("-")

FORMATS = ("table", "wide", "json", "yaml")

CONTEXT = "JOINER_KUBE_CONTEXT"
"""The environment variable that names a context of the kubeconfig; `--context` sets it."""

UNBOUNDED = 10_000
"""The width of tables that no terminal shows: no column is cut."""


class QuestionError(Exception):
    """The command cannot run; the message says what to change."""


def add_world(parser: argparse.ArgumentParser) -> None:
    """Add the positional argument for a recorded world, and what every answer takes."""
    parser.add_argument(
        "world",
        metavar="WORLD.json",
        type=Path,
        help="a recorded world (docs/reference/formats.md); - reads standard input",
    )
    add_time_limit(parser)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that read the cluster, or a recorded world."""
    parser.add_argument(
        "--world",
        type=Path,
        metavar="WORLD.json",
        help="read this recorded world (docs/reference/formats.md) instead of the cluster; - is "
        "standard input",
    )
    add_connection(parser)
    add_time_limit(parser)


def cluster_parser(command: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of a command that prints an answer about a cluster or a recorded world.

    It has the options of the source and of the output.
    """
    parser = argparse.ArgumentParser(
        prog=f"joiner {command}", description=f"{description} The command changes nothing."
    )
    add_source(parser)
    add_output(parser)
    return parser


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a cluster, as kubectl names them."""
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="the kubeconfig (default: KUBECONFIG, ~/.kube/config)"
    )
    parser.add_argument("--context", metavar="NAME", help="a context of the kubeconfig")


def add_time_limit(parser: argparse.ArgumentParser) -> None:
    """Add the limit of the time that an answer takes."""
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="use the best answer found within this time (default 60)",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the choice of how an answer is printed."""
    parser.add_argument(
        "-o",
        "--output",
        choices=FORMATS,
        default="table",
        help="wide: nothing is shortened (default: table)",
    )


def add_now(parser: argparse.ArgumentParser) -> None:
    """Add the time as of which a command decides."""
    parser.add_argument(
        "--now",
        type=moment,
        default=None,
        metavar="TIME",
        help="decide as of this time, such as 2026-11-22T08:00:00Z (default: now)",
    )


def connection(chosen: argparse.Namespace, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the cluster that the command line selects."""
    given = {"KUBECONFIG": chosen.kubeconfig, CONTEXT: chosen.context}
    return {**environ, **{name: value for name, value in given.items() if value}}


def seconds(text: str) -> float:
    """Parse a number of seconds from the command line."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds such as 60 or 0.5")
    return number


def positive(text: str) -> int:
    """Parse a number of repetitions from the command line."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def moment(text: str) -> datetime:
    """Parse a time from the command line; without a time zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time such as 2026-11-22T08:00:00Z"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; exit with code 2 and suggest a similar option if one is unknown."""
    chosen, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse(parser, chosen, unknown)
    return chosen


def parsed_with_settings(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the arguments of a command that also takes the flags of `run`, and return both."""
    chosen, rest = parser.parse_known_args(argv)
    flags = [f"--{setting.flag}" for setting in SETTINGS]
    unknown = [each for each in rest if each.startswith("--") and _name(each) not in flags]
    if unknown:
        _refuse(parser, chosen, unknown, flags)
    if rest and getattr(chosen, "world", None) is not None:
        parser.error(f"--world takes its settings from the world; remove {' '.join(rest)}")
    return chosen, rest


def _refuse(
    parser: argparse.ArgumentParser,
    chosen: argparse.Namespace,
    unknown: Sequence[str],
    flags: Sequence[str] = (),
) -> NoReturn:
    options = [f"--{name.replace('_', '-')}" for name in vars(chosen)]
    similar = nearest(_name(unknown[0]), [*options, *flags])
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{similar}")


def _name(argument: str) -> str:
    return argument.partition("=")[0]


def answer_on_cluster(
    parser: argparse.ArgumentParser,
    ask: Callable[[argparse.Namespace, Sequence[str], Mapping[str, str]], int],
    argv: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    """Parse the command line, print the command's answer, and return the exit code.

    `ask` receives the arguments, the flags of `run` among them, and an environment that selects
    the same cluster as the command line.
    """
    chosen, settings = parsed_with_settings(parser, argv)
    return answered(lambda: ask(chosen, settings, connection(chosen, environ)))


def answered(ask: Callable[[], int]) -> int:
    """Run a command; print a `QuestionError` to standard error and return exit code 2."""
    try:
        return ask()
    except QuestionError as error:
        print(error, file=sys.stderr)
        return 2


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or of standard input for `-`.

    Raises:
        QuestionError: the file is missing or not JSON.

    """
    try:
        return orjson.loads(sys.stdin.buffer.read() if path == STDIN else path.read_bytes())
    except OSError as error:
        raise QuestionError(f"{path}: {os.strerror(error.errno or 0)}") from error
    except orjson.JSONDecodeError as error:
        raise QuestionError(f"{path}: not JSON: {error}") from error
    except ValueError as error:
        raise QuestionError(f"{str(path)!r} is not a path: {error}") from error


def write_data(output: str, content: Mapping[str, Any]) -> bool:
    """Write an answer as JSON or YAML; returns False if `output` is a table."""
    if output == "json":
        sys.stdout.write(json.dumps(content) + "\n")
    elif output == "yaml":
        yaml.safe_dump(content, sys.stdout, sort_keys=False, allow_unicode=True)
    else:
        return False
    return True


def write_tables(tables: Iterable[Table], *, before: str = "", after: str = "") -> None:
    """Write tables, and the sentences before and after them.

    Where no terminal shows them, no column is cut, and nothing is coloured.
    """
    width = None if sys.stdout.isatty() else UNBOUNDED
    console = Console(markup=False, emoji=False, width=width)
    if before:
        console.print(before, highlight=False)
    for table in tables:
        drawn = DrawnTable(title=table.title, header_style="bold", title_justify="left")
        for head in table.heads:
            drawn.add_column(head, justify="right" if head in table.right else "left")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(drawn)
    if after:
        console.print(after, highlight=False)
