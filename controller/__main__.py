"""The command `joiner`, also usable as `kubectl joiner` and `python -m controller`."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

# Imports stand inside the commands: the solver's process imports this module too, and
# must not pay for what it never uses.

# The engine's matrices are small: threads of the linear algebra library would cost more than
# they bring, and change the order of sums. It reads this when NumPy is first imported; the
# solver's process inherits it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


HELP = frozenset({"-h", "--help"})

VERSION = frozenset({"--version", "version"})

UNREAD = 128 + signal.SIGPIPE
"""The exit code if the reader of a pipe ends first, as for any command that SIGPIPE ends."""

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a write to a full disk, beyond a quota, or beyond the size that a file may have."""


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the controller until it is stopped."""
    if HELP & set(argv):
        from controller import manual

        print(manual.page())
        return 0
    import asyncio
    import logging

    from controller.aws.provider import AWSCloudProvider
    from controller.kube import access
    from controller.manager.replica import Replica
    from controller.options import Options, OptionsError, ignored_gates, misspelt_settings
    from controller.telemetry import logs

    try:
        options = Options.parse(argv, environ)
        replica = Replica(
            options,
            access.from_environment(environ),
            lambda options, dns: AWSCloudProvider(options, cluster_dns=dns),
            environ=environ,
        )
    except (OptionsError, access.AccessError) as exc:
        print(exc, file=sys.stderr)
        return 2
    try:
        logs.configure(options.log_level, options.log_output_paths, options.log_error_output_paths)
    except OSError as exc:
        print(
            f"a log file of LOG_OUTPUT_PATHS or LOG_ERROR_OUTPUT_PATHS cannot be opened: {exc}; "
            "allowed are stdout, stderr and files that the controller can write",
            file=sys.stderr,
        )
        return 2
    log = logging.getLogger(__name__)
    for warning in (*ignored_gates(argv, environ), *misspelt_settings(environ)):
        log.warning(warning)

    try:
        with _page(options.web_port, argv, environ):
            asyncio.run(replica.run())
    except Exception:
        log.exception("the controller process ends after a failure; kubelet restarts its container")
        return 1
    return 0


def _page(
    port: int, argv: Sequence[str], environ: Mapping[str, str]
) -> AbstractContextManager[None]:
    """Return a context that serves the page on the controller's cluster; port 0 serves nothing."""
    if not port:
        return nullcontext()
    from controller.console.web import command

    return command.beside(port, argv, environ)


def solve(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print which nodes the pending pods of a recorded cluster need (a file of `record`)."""
    from controller.offline import solve as offline

    return offline.solve(argv, environ)


def explain(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print why a pod is pending (`explain pod`), or why a node is not disrupted (`… node`)."""
    from controller.offline import node, pod

    commands = {"pod": pod.explain, "node": node.explain}
    if argv and argv[0] in commands:
        return commands[argv[0]](argv[1:], environ)
    asked_for_help = bool(HELP & set(argv[:1]))
    usage = (
        "usage: joiner explain pod POD | node NODE\n\n"
        "  pod   Print where a pending pod is scheduled, or why it is unschedulable.\n"
        "  node  Print why a node is not disrupted, and what would change that.\n\n"
        "The options of each: joiner explain pod --help, joiner explain node --help."
    )
    if argv and not asked_for_help:
        print(f"cannot explain {argv[0]!r}: say pod or node\n", file=sys.stderr)
    print(usage, file=sys.stdout if asked_for_help else sys.stderr)
    return 0 if asked_for_help else 2


def disrupt(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print which nodes of a recorded cluster to disrupt, and what replaces them."""
    from controller.offline import disrupt as offline

    return offline.disrupt(argv, environ)


def record(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write a live cluster as JSON, the input of other commands; `--redact` replaces names."""
    from controller.offline.record import command as offline

    return offline.record(argv, environ)


def cost(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print what the cluster's nodes cost, and a lower bound on that cost."""
    from controller.offline import cost as offline

    return offline.cost(argv, environ)


def advise(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print what the cluster would cost under Joiner, and what prevents a lower cost."""
    from controller.offline.advise import command

    return command.command(argv, environ)


def completion(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the script that completes the command line in a shell, such as bash or zsh."""
    from controller.console import completion as console

    return console.completion(argv, environ)


def top(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Show the nodes, costs and decisions of a live or recorded cluster in the terminal."""
    from controller.console.top import command

    return command.top(argv, environ)


def web(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serve a web page with the nodes, costs and decisions of a live or recorded cluster."""
    from controller.console.web import command

    return command.web(argv, environ)


COMMANDS: Mapping[str, Callable[[Sequence[str], Mapping[str, str]], int]] = {
    "run": run,
    "solve": solve,
    "explain": explain,
    "disrupt": disrupt,
    "record": record,
    "cost": cost,
    "advise": advise,
    "completion": completion,
    "top": top,
    "web": web,
}
"""Every command, by its name."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command; return the exit code of the process."""
    try:
        try:
            return _run_command(argv, environ)
        finally:  # also after the help of a command, which ends the process
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has ended, as `head` does; the rest of the output is discarded.
        _discard_output()
        return UNREAD
    except OSError as error:
        if error.errno not in UNWRITABLE or argv[:1] == ["run"]:
            raise
        _discard_output()
        print(f"cannot write standard output: {os.strerror(error.errno)}", file=sys.stderr)
        return 2


def _run_command(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    if argv and argv[0] in VERSION:
        print(f"joiner {_version()}")
        return 0
    if not argv or argv[0] not in COMMANDS:
        asked_for_help = bool(argv) and argv[0] in HELP
        if argv and not asked_for_help:
            from controller.options import nearest

            print(f"unknown command {argv[0]}{nearest(argv[0], COMMANDS)}\n", file=sys.stderr)
        print(_usage(), file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else 2
    if argv[0] != "run":
        from controller.telemetry import logs

        logs.write_sentences()
    return COMMANDS[argv[0]](argv[1:], environ)


def _version() -> str:
    """Return the version of the installed package, or the commit of a checkout."""
    import subprocess
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    try:
        return version("joiner")
    except PackageNotFoundError:
        pass
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        commit = subprocess.check_output(
            command, cwd=Path(__file__).parent, text=True, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.CalledProcessError):
        return "(from a checkout)"
    return f"(from a checkout at {commit.strip()})"


def _discard_output() -> None:
    """Discard what is still buffered, so that the interpreter does not fail to write it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage() -> str:
    lines = [f"  {name:10} {(command.__doc__ or '').strip()}" for name, command in COMMANDS.items()]
    more = "The options of a command: joiner COMMAND --help."
    return "\n".join(["usage: joiner COMMAND …", "", *lines, "", more])


def script() -> int:
    """Run `joiner` with the arguments of this process; return the exit code."""
    return main(sys.argv[1:], os.environ)


if __name__ == "__main__":
    sys.exit(script())
