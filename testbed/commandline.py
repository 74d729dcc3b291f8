"""The command line of the testbed: `python -m testbed up | env | fault | logs | down | …`."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from testbed.cloud.control import CloudControl
from testbed.demo.faults import FAULTS
from testbed.environment import CHECKOUT, cache_directory
from testbed.kube.client import holds
from testbed.processes import binaries, owned
from testbed.processes.ports import is_listening
from testbed.progress import Progress
from testbed.region.supervisor import READY, StartOptions
from testbed.region.testbed import (
    Part,
    Phase,
    State,
    StateUnreadableError,
    read_state,
    state_directory,
)

STOP_SECONDS = 60.0
"""How long `down` waits for the owner's cleanup before it cleans up itself, in seconds."""

errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    chosen = _parser().parse_args(arguments)
    verb: Callable[[argparse.Namespace], int] = chosen.verb
    try:
        return verb(chosen)
    except KeyboardInterrupt:
        errors.print("interrupted")
        return 130
    except (RuntimeError, OSError) as exc:
        errors.print(f"{chosen.command}: {exc}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m testbed",
        description="A small AWS region with one EKS-like cluster, on this machine: a real"
        " Kubernetes control plane, a test cloud, kubelets for its instances.",
        epilog="The first `up` downloads or builds the binaries, which may take minutes; they are"
        f" kept in {cache_directory()} ($JOINER_CACHE changes that).",
    )
    verbs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = _verb(verbs, "up", _up, "start a testbed in the background; return when it is ready")
    _add_settings(up)
    _verb(verbs, "env", _env, 'print the variables to set in a shell: eval "$(make env)"')
    _add_faults(_verb(verbs, "fault", _fault, "cause a fault of the test cloud"))
    _verb(verbs, "logs", _logs, "print what the controller's replicas logged, oldest first")
    _verb(verbs, "down", _down, "stop the testbed, and check that nothing is left")
    status = _verb(verbs, "status", _status, "show the parts of the testbed that run")
    status.add_argument(
        "--json", action="store_true", help="print the state that the testbed recorded"
    )
    summary = "run the whole scenario, from pulumi up to pulumi destroy"
    demo = verbs.add_parser("demo", help=summary, description=summary)
    demo.set_defaults(verb=_demo)
    return parser


def _verb(
    verbs: Any, name: str, verb: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    _add_name(parser)
    parser.set_defaults(verb=verb)
    return parser


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name",
        type=_name,
        default="default",
        help="name of the testbed; a checkout can have several (default: %(default)s)",
    )


def _add_faults(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="fault", required=True, metavar="FAULT")
    for name, fault in FAULTS.items():
        chosen = names.add_parser(name, help=fault.summary, description=fault.summary)
        for argument, meaning in fault.arguments.items():
            chosen.add_argument(argument, help=meaning)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster-name",
        type=_name,
        default="joiner",
        help="name of the EKS cluster (default: %(default)s)",
    )
    parser.add_argument(
        "--region", type=_name, default="us-west-2", help="AWS region (default: %(default)s)"
    )
    parser.add_argument(
        "--join-delay",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="time from a running instance to its Node; 20 to 40 on AWS (default: %(default)s)",
    )
    parser.add_argument(
        "--until",
        choices=[part.value for part in Part],
        default=Part.KUBELETS.value,
        metavar="PART",
        help="last part to start, of " + ", ".join(Part) + " (default: %(default)s)",
    )
    parser.add_argument(
        "--without-stack", action="store_true", help="do not deploy the stack; no controller runs"
    )


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name: up to 40 of a-z, 0-9 and -, no - at either end"
        )
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 3600")
    return seconds


# up


def _up(chosen: argparse.Namespace) -> int:
    directory = state_directory(chosen.name)
    if (state := _await_state(directory)) is None:
        upcoming = [] if chosen.without_stack else [binaries.pulumi()]
        for binary in ("kwokctl", "kubectl"):
            binaries.ensure(binary, progress=Progress(errors), upcoming=upcoming)
        try:
            _start_supervisor(chosen, directory)
        except RuntimeError:
            # Another `up` may have been faster; then this one uses its testbed.
            if _await_state(directory) is None:
                raise
        state = read_state(directory)
    elif state.phase is Phase.BROKEN:
        errors.print(
            f"the testbed is broken: {state.problem}\nStop it with: {_command('down', chosen)}"
        )
        return 1
    else:
        errors.print(f"up already, for {_age(state)}; --region, --join-delay, --until are ignored")
    if state is None:
        errors.print("the testbed was stopped while it started")
        return 1
    if Part.KUBELETS in state.parts and not chosen.without_stack:
        return _deploy(state, directory, chosen)
    _print_usage(state, chosen)
    return 0


def _deploy(state: State, directory: Path, chosen: argparse.Namespace) -> int:
    """Deploy the stack, and print what to do next."""
    from testbed.demo import playground

    if not playground.is_deployed(directory):
        errors.print(f"deploying the stack {playground.STACK}: pulumi up")
        playground.deploy(
            state,
            directory,
            cluster_name=chosen.cluster_name,
            show=errors.print,
            progress=Progress(errors),
        )
    is_default = chosen.name == "default"
    env, down, fault = (
        f"make {verb}" if is_default else _command(verb, chosen)
        for verb in ("env", "down", "fault")
    )
    errors.print(
        "\nReady. Try it in this folder:\n"
        f'  eval "$({env})"\n'
        "  kubectl create deployment web --image=nginx --replicas=20 --dry-run=client -o yaml |\n"
        "    kubectl set resources -f - --local --requests=cpu=500m,memory=512Mi -o yaml |\n"
        "    kubectl apply -f -\n"
        "  joiner top\n"
        "  joiner explain pod POD\n"
        "  pulumi preview\n"
        "  pulumi config set joiner:replicas 1 && pulumi up\n"
        f"  {fault}{'' if is_default else ' --help'}\n"
        f"  {down}"
    )
    return 0


def _env(chosen: argparse.Namespace) -> int:
    """Print the variables as shell commands."""
    from testbed.demo import playground

    state = _running_state(chosen)
    for name, value in playground.environment(state, state_directory(chosen.name)).items():
        out.print(f"export {name}={shlex.quote(value)}")
    return 0


def _fault(chosen: argparse.Namespace) -> int:
    """Cause a fault."""
    state, fault = _running_state(chosen), FAULTS[chosen.fault]
    cloud = CloudControl(state.environment["AWS_ENDPOINT_URL"])
    arguments = [getattr(chosen, name) for name in fault.arguments]
    out.print(fault.act(cloud, *arguments))
    return 0


def _logs(chosen: argparse.Namespace) -> int:
    """Print the lines of all replicas by time."""
    _running_state(chosen)
    logs = state_directory(chosen.name) / "workloads" / "logs"
    for line in controller_lines(logs):
        out.print(line)
    return 0


def controller_lines(logs: Path) -> list[str]:
    """Return the log lines of the controller's replicas, by time.

    A line without a time, such as one of a traceback, follows the line before it.
    """
    dated: list[tuple[str, str]] = []
    for file in sorted(logs.glob("kube-system_karpenter-*_controller.log")):
        at = ""
        for line in file.read_text(errors="replace").splitlines():
            found = re.search(r'"time":"([^"]+)"', line)
            at = found[1] if found else at
            dated.append((at, line))
    return [line for _, line in sorted(dated, key=lambda item: item[0])]


def _running_state(chosen: argparse.Namespace) -> State:
    """Return the state of the testbed.

    Raises:
        RuntimeError: it does not run.

    """
    state = read_state(state_directory(chosen.name))
    if state is None or not state.is_owned:
        raise RuntimeError(f"nothing runs; start it with: {_command('up', chosen)}")
    return state


def _await_state(directory: Path) -> State | None:
    """Wait while another process starts or stops the testbed; remove what a crash left.

    Returns the state, or None if there is no testbed.
    """
    announced = False
    while (state := _read_or_clear(directory)) is not None:
        if state.phase in (Phase.READY, Phase.BROKEN):
            return state
        if not announced:
            errors.print(f"process {state.owner_pid} is {state.phase} the testbed; waiting")
            announced = True
        time.sleep(0.2)
    return None


def _read_or_clear(directory: Path) -> State | None:
    """Return the state; if the owner is gone, report it and remove what it left."""
    try:
        state = read_state(directory)
    except StateUnreadableError as exc:
        if (state := _once_more(directory)) is None:
            errors.print(f"{exc}; removing it")
            _clear(directory)
        return state
    if state and not state.is_owned:
        errors.print(
            f"the testbed's owner, process {state.owner_pid}, is gone; removing what it left"
        )
        _clear(directory)
        return None
    return state


def _once_more(directory: Path) -> State | None:
    """Wait up to 2 s for the state of an owner that has just created the directory."""
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        time.sleep(0.05)
        try:
            return read_state(directory)
        except StateUnreadableError:
            continue
    return None


def _clear(directory: Path) -> None:
    owned.end_all(directory)
    shutil.rmtree(directory, ignore_errors=True)


def _start_supervisor(chosen: argparse.Namespace, directory: Path) -> None:
    """Start the background process; show its output until it is ready or has exited."""
    options = StartOptions(
        name=chosen.name,
        cluster_name=chosen.cluster_name,
        region=chosen.region,
        join_delay_seconds=chosen.join_delay,
        until=Part(chosen.until),
    )
    reading, writing = os.pipe()
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "testbed.region.supervisor", msgspec.json.encode(options)],
        cwd=CHECKOUT,
        # Not marked: the supervisor owns and removes the directory, so it must not belong to it.
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=writing,
        start_new_session=True,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as said:
            for line in iter(said.readline, READY):
                if not line:
                    raise RuntimeError(f"not started, and undone (exit code {supervisor.wait()})")
                errors.print(line.rstrip("\n"))
    except KeyboardInterrupt:
        errors.print("interrupted; undoing what was started")
        supervisor.terminate()
        supervisor.wait()
        _prove_nothing_is_left(directory, {})
        raise


def _print_usage(state: State, chosen: argparse.Namespace) -> None:
    """Print the variables as shell commands, and the next steps."""
    for name, value in state.environment.items():
        out.print(f"export {name}={shlex.quote(value)}")
    kubectl = binaries.ensure("kubectl")
    errors.print(
        f'\nReady. Give the lines above to your shell: eval "$({_command("up", chosen)})"\n'
        f"  {kubectl} get nodes\n"
        f"  {_command('status', chosen)}\n"
        f"  {_command('down', chosen)}"
    )


def _command(verb: str, chosen: argparse.Namespace) -> str:
    named = "" if chosen.name == "default" else f" --name {chosen.name}"
    # This interpreter's path, because the user's shell may find another `python` or none.
    return f"{shlex.quote(sys.executable)} -m testbed {verb}{named}"


# down


def _down(chosen: argparse.Namespace) -> int:
    directory = state_directory(chosen.name)
    try:
        state = read_state(directory)
    except StateUnreadableError as exc:
        errors.print(f"{exc}; ending what belongs to it")
        _clear(directory)
        return _prove_nothing_is_left(directory, {})
    if state is None:
        errors.print("nothing runs")
        return 0
    from testbed.demo import playground

    if playground.is_deployed(directory):
        playground.forget()
    began = time.monotonic()
    with Progress(errors).stage("stopping") as stage:
        if state.is_owned:
            os.kill(state.owner_pid, signal.SIGTERM)
        deadline = began + STOP_SECONDS
        while state.is_owned:
            if time.monotonic() > deadline:
                errors.print(f"not stopped after {STOP_SECONDS:.0f} s; ending it by force")
                break
            left = owned.belonging_to(directory)
            stage.update(completed=0, detail=f"{len(left)} processes left")
            time.sleep(0.05)
        _clear(directory)
    return _prove_nothing_is_left(directory, state.ports)


def _prove_nothing_is_left(directory: Path, ports: dict[str, int]) -> int:
    """Check for remaining processes, ports and files; print the result, return the exit code."""
    left = [f"process {pid}: {owned.command_of(pid)}"
            for pid in owned.belonging_to(directory)]  # fmt: skip
    left += [f"port {port} of {name}" for name, port in ports.items() if is_listening(port)]
    left += [f"directory {directory}"] if directory.exists() else []
    for leftover in left:
        errors.print(f"still there: {leftover}")
    if not left:
        errors.print(
            f"nothing is left: no process with {owned.MARKER}={directory}, no listener on its"
            f" {len(ports)} ports, no directory"
        )
    return 1 if left else 0


# status


def _status(chosen: argparse.Namespace) -> int:
    directory = state_directory(chosen.name)
    state = read_state(directory)
    if chosen.json:
        written = (directory / "state.json").read_text() if state else "null"
        out.print(written)
        return 0 if state else 3
    if state is None:
        errors.print(f"nothing runs; start it with: {_command('up', chosen)}")
        return 3
    if not state.is_owned:
        errors.print(
            f"the testbed's owner, process {state.owner_pid}, is gone without undoing it;"
            f" remove what is left with: {_command('down', chosen)}"
        )
        return 1
    _print_status(state, directory)
    return 0 if state.phase is Phase.READY else 1


def _print_status(state: State, directory: Path) -> None:
    out.print(
        f"{state.phase} for {_age(state)}, owned by process {state.owner_pid}, in {directory}"
    )
    if state.problem:
        out.print(state.problem)
    table = Table("process", "pid", "port")
    for name in sorted(state.pids.keys() | state.ports.keys()):
        pid, port = state.pids.get(name), state.ports.get(name)
        table.add_row(name, str(pid or ""), str(port or ""))
    out.print(table)
    out.print("parts ready: " + (", ".join(state.parts) or "none"))
    out.print(f"logs of pods, the controller's too: {directory / 'workloads' / 'logs'}")
    for name, value in state.environment.items():
        out.print(f"{name}={value}")
    if Part.CLUSTER in state.parts:
        out.print(_nodes(state))
    if Part.CLOUD in state.parts:
        out.print(_instances(state))


def _nodes(state: State) -> str:
    asked = subprocess.run(
        [binaries.ensure("kubectl"), "get", "nodes", "-o", "json", "--request-timeout=5s"],
        env={**os.environ, **state.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        return f"nodes: the API server does not answer ({asked.stderr.strip()})"
    nodes = json.loads(asked.stdout)["items"]
    ready = sum(holds(node, "Ready") for node in nodes)
    return f"nodes: {len(nodes)}, {ready} of them ready"


def _instances(state: State) -> str:
    try:
        listed = CloudControl(state.environment["AWS_ENDPOINT_URL"]).instances()
    except OSError as exc:
        return f"instances: the cloud does not answer ({exc})"
    counts = Counter(instance.state for instance in listed.instances)
    return "instances: " + (
        ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "none"
    )


def _age(state: State) -> str:
    seconds = int((datetime.now(UTC) - state.began).total_seconds())
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


# demo


def _demo(chosen: argparse.Namespace) -> int:
    from testbed.demo import run

    return run.main()
