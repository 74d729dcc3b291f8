"""Options, input and output that the commands share."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson
import yaml
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from controller.offline.reporter import Table
from controller.options import SETTINGS, nearest

STDIN = Path("-")
EARLIEST_YEAR, LATEST_YEAR = 1970, 2999

WORLD_HELP = "a recorded world: a file that `joiner record` wrote (docs/reference/formats.md)"

FORMATS = ("table", "wide", "json", "yaml")

CONTEXT = "JOINER_KUBE_CONTEXT"
"""The environment variable that names a context of the kubeconfig; `--context` sets it."""

POSITIONAL = "recorded"
"""The name of the argument WORLD.json; `parse_arguments` moves its value to `world`."""

BORDER = 3
"""The width of a column's line and its padding in a table, in characters."""

READING = "reading the cluster …"

UNATTENDED = 120
"""The width of tables if standard output is not a terminal, in characters. Sentences are lines."""


class CommandError(Exception):
    """The command cannot run; the message says what to change."""


class Progress(str):
    """A message about progress, which the next one replaces on a terminal."""

    __slots__ = ()


class Output(Console):
    """Standard output, to which text is written as it is."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(markup=False, emoji=False, width=width)

    def on_broken_pipe(self) -> None:
        """Raise the error that rich caught; rich would end the process with exit code 1."""
        raise BrokenPipeError


def add_world(parser: argparse.ArgumentParser, *, time_limit: float = 60.0) -> None:
    """Add the recorded world, as an argument and as the option `--world`, and the time limit."""
    read = f"{WORLD_HELP}; - reads standard input"
    parser.add_argument(POSITIONAL, metavar="WORLD.json", nargs="?", type=Path, help=read)
    parser.add_argument("--world", type=Path, metavar="WORLD.json", help="the same, as an option")
    add_time_limit(parser, time_limit)


def add_source(parser: argparse.ArgumentParser, *, time_limit: float = 60.0) -> None:
    """Add the options of commands that read the cluster, or a recorded world."""
    add_world(parser, time_limit=time_limit)
    add_connection(parser)


def cluster_parser(
    command: str, description: str, *, subject: str = "", subject_help: str = ""
) -> argparse.ArgumentParser:
    """Return the parser of a command that reads a cluster or a recorded world and prints a result.

    It has the options of source and output, and before the world the argument `subject`.
    """
    parser = argparse.ArgumentParser(
        prog=f"joiner {command}", description=f"{description} The command changes nothing."
    )
    if subject:
        parser.add_argument(subject.lower(), metavar=subject, help=subject_help)
    add_source(parser)
    add_output(parser)
    return parser


def add_connection(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a cluster, as kubectl names them."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="path of the kubeconfig (default: KUBECONFIG, ~/.kube/config)",
    )
    parser.add_argument(
        "--context",
        metavar="CONTEXT",
        help="context of the kubeconfig (default: its current context)",
    )


def add_time_limit(parser: argparse.ArgumentParser, default: float) -> None:
    """Add the option `--time-limit`, the time limit of the computation in seconds."""
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=default,
        metavar="SECONDS",
        help=f"use the best answer found within this time (default {default:g})",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the option `--output`, the format of the output."""
    parser.add_argument(
        "-o",
        "--output",
        choices=FORMATS,
        default="table",
        help="format of the output (default: table); wide is a table in which nothing is shortened",
    )


def add_now(parser: argparse.ArgumentParser) -> None:
    """Add the option `--now`, the time that the command uses as the current time."""
    parser.add_argument(
        "--now",
        type=moment,
        default=None,
        metavar="TIME",
        help="decide as of this time, such as 2026-11-22T08:00:00Z (default: now)",
    )


def connection(chosen: argparse.Namespace, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return `environ` with the kubeconfig and context that the command line selects."""
    overrides = {"KUBECONFIG": chosen.kubeconfig, CONTEXT: chosen.context}
    return {**environ, **{name: value for name, value in overrides.items() if value}}


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
    """Parse a whole number of at least 1 from the command line."""
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
    if not EARLIEST_YEAR <= moment.year <= LATEST_YEAR:
        # Near the first and the last year of `datetime`, sums of times overflow.
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time from {EARLIEST_YEAR} to {LATEST_YEAR}"
        )
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a command that reads no cluster.

    Exits with code 2 if an option is unknown, and suggests a similar one, or if the recorded world
    is missing.
    """
    chosen = _parse(parser, argv, ())
    if "world" in chosen and chosen.world is None:
        parser.error("the following arguments are required: WORLD.json")
    return chosen


def parse_with_settings(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the arguments of a command that also takes the flags of `run`.

    Returns the parsed arguments of the command, and the flags of `run` as text.
    """
    own, settings = _without_settings(parser, argv)
    chosen = _parse(parser, own, [f"--{setting.flag}" for setting in SETTINGS])
    if settings and getattr(chosen, "world", None) is not None:
        given = " ".join(settings)
        parser.error(f"the settings of a recorded world are those in WORLD.json; remove {given}")
    return chosen, settings


def _without_settings(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the arguments of the command, and the flags of `run` with their values."""
    needs_value = {f"--{setting.flag}": not setting.is_switch for setting in SETTINGS}
    for name in _options(parser):
        needs_value.pop(name, None)
    own, settings = list[str](), list[str]()
    arguments = iter(argv)
    for argument in arguments:
        name, has_value, _ = argument.partition("=")
        (settings if name in needs_value else own).append(argument)
        if needs_value.get(name) and not has_value:
            settings += [value for value in [next(arguments, None)] if value is not None]
    return own, settings


def _parse(
    parser: argparse.ArgumentParser, argv: Sequence[str], flags: Sequence[str]
) -> argparse.Namespace:
    """Parse the arguments; `flags` are the names of further options that the command accepts."""
    chosen, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        similar = nearest(_name(unknown[0]), [*_options(parser), *flags])
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{similar}")
    given = vars(chosen).pop(POSITIONAL, None)
    if given is not None:
        if chosen.world is not None:
            parser.error(f"the recorded world is given twice: {given} and --world {chosen.world}")
        chosen.world = given
    return chosen


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings]


def _name(argument: str) -> str:
    return argument.partition("=")[0]


def run_on_cluster(
    parser: argparse.ArgumentParser,
    command: Callable[[argparse.Namespace, Sequence[str], Mapping[str, str]], int],
    argv: Sequence[str],
    environ: Mapping[str, str],
) -> int:
    """Parse the command line, run the command, and return the exit code.

    `command` receives the arguments, the flags of `run`, and the environment variables that select
    the cluster of the command line.
    """
    chosen, settings = parse_with_settings(parser, argv)
    return run_command(lambda: command(chosen, settings, connection(chosen, environ)))


def run_command(command: Callable[[], int]) -> int:
    """Run a command; print a `CommandError` to standard error and return exit code 2."""
    try:
        return command()
    except CommandError as error:
        print(error, file=sys.stderr)
        return 2


@contextmanager
def messages() -> Iterator[Callable[[str], None]]:
    """Yield a function that writes messages to standard error within the context.

    A `Progress` is the last line of a terminal, which is removed at the end. If standard error is
    not a terminal, progress is not written.
    """
    console = Console(stderr=True, markup=False, emoji=False)
    with console.status(Text(READING)) as status:

        def write(text: str) -> None:
            if isinstance(text, Progress):
                status.update(Text(f"{READING} {text}"))
            else:
                print(text, file=sys.stderr, flush=True)

        yield write


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or of standard input for `-`.

    Raises:
        CommandError: the file is missing or not JSON.

    """
    try:
        return orjson.loads(sys.stdin.buffer.read() if path == STDIN else path.read_bytes())
    except OSError as error:
        raise CommandError(f"{path}: {os.strerror(error.errno or 0)}") from error
    except orjson.JSONDecodeError as error:
        raise CommandError(f"{path}: not JSON: {error}") from error
    except ValueError as error:
        raise CommandError(f"{str(path)!r} is not a path: {error}") from error


def write_data(output: str, content: Mapping[str, Any]) -> bool:
    """Write content as JSON or YAML; return False if `output` is a table format."""
    if output == "json":
        sys.stdout.write(json.dumps(content) + "\n")
    elif output == "yaml":
        plain = json.loads(json.dumps(content))  # a cause is a text with attributes
        yaml.safe_dump(plain, sys.stdout, sort_keys=False, allow_unicode=True)
    else:
        return False
    return True


def write_tables(tables: Iterable[Table], *, before: str = "", after: str = "") -> None:
    """Write tables, and the sentences before and after them.

    A table for which the terminal is too narrow becomes a list, so that no cell is cut. If standard
    output is not a terminal, its width is `UNATTENDED`, and nothing is coloured.
    """
    is_terminal = sys.stdout.isatty()
    console = Output(None if is_terminal else UNATTENDED)
    if before:
        console.print(before, highlight=False, soft_wrap=not is_terminal)
    for table in tables:
        widths = _widths(table, console.width)
        if not widths:
            console.print(table.title, style="bold", highlight=False)
            listed = _list_of(table, console.width)
            console.print(listed, highlight=False, soft_wrap=not is_terminal)
            continue
        rich_table = RichTable(title=table.title, header_style="bold", title_justify="left")
        for head, column_width in zip(table.heads, widths, strict=True):
            justify: Literal["left", "right"] = "right" if head in table.right else "left"
            rich_table.add_column(head, justify=justify, width=column_width)
        for row in table.rows:
            rich_table.add_row(*row)
        console.print(rich_table)
    if after:
        console.print(after, highlight=False, soft_wrap=not is_terminal)


def _widths(table: Table, width: int) -> list[int]:
    """Return the widths of the columns in a terminal of this width, in which no word is cut.

    Empty if the words do not fit. Columns get equal widths, but no more than they need.
    """
    columns = list(zip(table.heads, *table.rows, strict=True))
    least = [max(len(word) for cell in each for word in (*cell.split(), "")) for each in columns]
    ideal = [max(map(len, each)) for each in columns]
    left, needed = width - BORDER * len(columns) - 1, sum(least)
    if needed > left:
        return []
    widths = list(least)
    for number, index in enumerate(sorted(range(len(columns)), key=ideal.__getitem__)):
        needed -= least[index]
        share = max(least[index], math.ceil(left / (len(columns) - number)))
        widths[index] = min(ideal[index], share, left - needed)
        left -= widths[index]
    return widths


def _list_of(table: Table, width: int) -> str:
    """Return a table as text: a paragraph for each row, with a line for each of its cells."""
    indent = 2 + max(map(len, table.heads)) + 2
    return "\n".join(
        textwrap.fill(
            cell or "-",
            width,
            initial_indent=f"  {head}".ljust(indent),
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
            break_long_words=sys.stdout.isatty(),  # programs read what a pipe gets
        )
        + ("\n" if head == table.heads[-1] else "")
        for row in table.rows
        for head, cell in zip(table.heads, row, strict=True)
    )
