"""`python -m testbed up | down | status`, as a user runs it in a shell."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.processes import binaries, owned
from testbed.processes.ports import is_listening
from testbed.region.testbed import Part, Phase, Testbed, read_state, state_directory
from tests.testbed.eventually import eventually

pytestmark = pytest.mark.cluster

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Shell:
    """A shell of a user whose cache holds the binaries and nothing else."""

    cache: Path

    @property
    def directory(self) -> Path:
        return self.cache / "testbeds" / state_directory("default").name

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "testbed", *arguments],
            cwd=CHECKOUT,
            env={**os.environ, "JOINER_CACHE": str(self.cache)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as running:
            said, complained = running.communicate(timeout=300)
        return subprocess.CompletedProcess(arguments, running.returncode, said, complained)

    def owner(self) -> int:
        state = read_state(self.directory)
        assert state
        return state.owner_pid


@pytest.fixture(scope="session")
def supplied() -> Path:
    """The shared cache's binaries, complete."""
    return binaries.ensure("kwokctl").parent.parent


@pytest.fixture
def shell(tmp_path: Path, supplied: Path) -> Iterator[Shell]:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "binaries").symlink_to(supplied)
    shell = Shell(tmp_path / "cache")
    yield shell
    if shell.directory.exists():
        shell.run("down")
    assert owned.belonging_to(shell.directory) == []


def assert_nothing_left(shell: Shell, ports: dict[str, int]) -> None:
    assert owned.belonging_to(shell.directory) == []
    assert [name for name, port in ports.items() if is_listening(port)] == []
    assert not shell.directory.exists()


def test_up_prints_usage_status_shows_the_testbed_and_down_leaves_nothing(shell: Shell) -> None:
    up = shell.run("up", "--until", "cloud")
    assert up.returncode == 0, up.stderr

    exported = dict(re.findall(r"^export (\w+)='?(.*?)'?$", up.stdout, re.M))
    assert Path(exported["KUBECONFIG"]).exists()
    assert exported["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:")
    assert exported["AWS_REGION"] == "us-west-2"
    status = shell.run("status")
    assert status.returncode == 0, status.stderr
    for shown in ("kube-apiserver", "cloud", exported["AWS_ENDPOINT_URL"], "nodes: 0", "instances"):
        assert shown in status.stdout
    ports = json.loads(shell.run("status", "--json").stdout)["ports"]
    assert all(is_listening(port) for port in ports.values())

    again = shell.run("up", "--until", "cloud")
    assert (again.returncode, again.stdout) == (0, up.stdout)
    assert "up already" in again.stderr

    down = shell.run("down")
    assert down.returncode == 0
    assert "nothing is left" in down.stderr
    assert_nothing_left(shell, ports)


def test_the_commands_printed_by_up_work_in_a_shell_without_python(shell: Shell) -> None:
    up = shell.run("up", "--until", "cloud")
    (first,) = re.findall(r'eval ".*"$', up.stderr, re.M)
    hints = re.findall(r"^  (\S.*)$", up.stderr, re.M)

    typed = subprocess.run(
        ["/bin/sh", "-c", " && ".join([first, *hints])],
        cwd=CHECKOUT,
        env={"PATH": "/nowhere", "HOME": str(shell.cache), "JOINER_CACHE": str(shell.cache)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert typed.returncode == 0, typed.stderr
    assert "No resources found" in typed.stderr
    assert "ready for" in typed.stdout
    assert "nothing is left" in typed.stderr


def test_down_and_status_succeed_if_nothing_runs(shell: Shell) -> None:
    down, status = shell.run("down"), shell.run("status")

    assert (down.returncode, down.stderr) == (0, "nothing runs\n")
    assert status.returncode == 3
    assert f"start it with: {sys.executable} -m testbed up" in status.stderr


def test_ctrl_c_during_up_stops_everything(shell: Shell) -> None:
    up = shell.start("up", "--until", "cluster")
    assert up.stderr
    first = up.stderr.readline()

    up.send_signal(signal.SIGINT)
    said = first + up.communicate(timeout=120)[1]

    assert up.returncode == 130
    assert "undoing" in said
    assert "nothing is left" in said
    assert_nothing_left(shell, {})


async def test_no_process_survives_a_killed_supervisor_and_up_starts_again(
    shell: Shell,
) -> None:
    assert shell.run("up", "--until", "cluster").returncode == 0
    state = read_state(shell.directory)
    assert state

    os.kill(state.owner_pid, signal.SIGKILL)

    await eventually(gone(shell))
    assert_nothing_left(shell, state.ports)
    assert shell.run("up", "--until", "cluster").returncode == 0


def gone(shell: Shell) -> Callable[[], Awaitable[bool]]:
    async def is_gone() -> bool:
        return not owned.belonging_to(shell.directory) and not shell.directory.exists()

    return is_gone


async def test_if_the_keeper_is_killed_too_status_explains_and_down_cleans_up(
    shell: Shell,
) -> None:
    assert shell.run("up", "--until", "cluster").returncode == 0
    state = read_state(shell.directory)
    assert state
    keepers = [
        pid
        for pid in owned.belonging_to(shell.directory)
        if owned.__file__ in owned.command_of(pid)
    ]
    for pid in (*keepers, state.owner_pid):
        os.kill(pid, signal.SIGKILL)

    status = shell.run("status")
    down = shell.run("down")

    assert status.returncode == 1
    assert "is gone without undoing it" in status.stderr
    assert down.returncode == 0
    assert_nothing_left(shell, state.ports)


async def test_status_reports_a_dead_part_and_down_still_works(shell: Shell) -> None:
    assert shell.run("up", "--until", "cluster").returncode == 0
    state = read_state(shell.directory)
    assert state
    os.kill(state.pids["etcd"], signal.SIGKILL)

    async def is_told() -> bool:
        now = read_state(shell.directory)
        return now is not None and now.phase is Phase.BROKEN

    await eventually(is_told)
    status = shell.run("status")
    assert status.returncode == 1
    assert "etcd ended" in status.stdout
    again = shell.run("up", "--until", "cluster")
    assert again.returncode == 1
    assert f"Stop it with: {sys.executable} -m testbed down" in again.stderr
    assert shell.run("down").returncode == 0
    assert_nothing_left(shell, state.ports)


def test_a_damaged_state_file_is_explained_and_removed(shell: Shell) -> None:
    shell.directory.mkdir(parents=True)
    (shell.directory / "state.json").write_text('{"phase": "ready"')

    status = shell.run("status")
    down = shell.run("down")

    assert status.returncode == 1
    assert "state.json cannot be parsed" in status.stderr
    assert down.returncode == 0
    assert_nothing_left(shell, {})


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["up", "--join-delay=soon"], "'soon' is not a number of seconds", id="delay"),
        pytest.param(["up", "--name=../x"], "'../x' is not a name", id="name"),
        pytest.param(["up", "--until=moon"], "choose from", id="part"),
        pytest.param([], "required: COMMAND", id="nothing"),
    ],
)
def test_an_invalid_command_line_is_reported(
    shell: Shell, arguments: list[str], complaint: str
) -> None:
    mistaken = shell.run(*arguments)

    assert mistaken.returncode == 2
    assert complaint in mistaken.stderr


def test_in_process_the_testbed_is_a_context_manager_with_its_environment(tmp_path: Path) -> None:
    with Testbed(directory=tmp_path / "testbed", until=Part.CLOUD) as testbed:
        environment = testbed.environment()
        asked = subprocess.run(
            [binaries.ensure("kubectl"), "get", "--raw", "/readyz"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        testbed.check()

    assert asked.stdout == "ok"
    assert environment["AWS_ENDPOINT_URL"]
    assert owned.belonging_to(tmp_path) == []
    assert not (tmp_path / "testbed").exists()
