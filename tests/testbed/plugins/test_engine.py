"""The engine runs programs and Python providers, and ends cleanly in every case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from testbed.environment import CHECKOUT
from testbed.plugins.engine import EngineError, PulumiEngine
from testbed.processes import owned
from tests.testbed.plugins.conftest import PROGRAMS, EngineOn

DEADLINE_SECONDS = 120.0


@dataclass
class Console:
    """Return the engine's output so far."""

    lines: list[str] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    def show(self, line: str) -> None:
        with self.news:
            self.lines.append(line)
            self.news.notify_all()

    def wait_for(self, words: str) -> None:
        with self.news:
            assert self.news.wait_for(lambda: self.has(words), DEADLINE_SECONDS), self.lines

    def has(self, words: str) -> bool:
        return any(words in line for line in self.lines)


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def in_background(act: Callable[[], object]) -> Iterator[None]:
    """Run something beside the test, and see it end."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    return {"file": str(tmp_path / "file"), "gate": str(tmp_path / "gate"), "text": "one"}


def test_a_dynamic_provider_in_a_package_works_and_its_output_appears_live(
    engine_on: EngineOn, config: dict[str, str]
) -> None:
    console = Console()
    engine = engine_on("drain", show=console.show)
    file, gate = Path(config["file"]), Path(config["gate"])

    engine.up("dev", config)
    assert file.read_text() == "one"
    assert not engine.up("dev", config).any
    assert engine.up("dev", {**config, "text": "two"}).update == 1
    assert file.read_text() == "two"
    assert engine.outputs("dev")["interpreter"] == sys.executable
    assert engine.outputs("dev")["text"] == "two"

    with in_background(lambda: engine.destroy("dev")):
        console.wait_for("3 nodes left")
        assert file.exists()  # the line is here while the deletion is still under way
        gate.touch()
    assert console.has("no node left")
    assert not file.exists()


def test_a_stack_keeps_its_settings_when_a_state_is_restored(
    engine_on: EngineOn, config: dict[str, str]
) -> None:
    engine = engine_on("drain")
    engine.up("dev", config)

    engine.restore("dev", engine.state("dev"))

    assert engine.preview_destroy("dev").delete > 0


def test_a_traceback_starts_in_the_program(engine_on: EngineOn, config: dict[str, str]) -> None:
    with pytest.raises(EngineError) as failure:
        engine_on("drain").up("dev", {**config, "fault": "exception"})

    said = str(failure.value)
    assert "ValueError: the tea is cold" in said
    assert "in fail_deep_inside" in said
    assert "languageexec.py" not in said
    assert "runpy" not in said
    assert failure.value.status != 0


def test_a_refusal_is_shown_without_a_traceback(
    engine_on: EngineOn, config: dict[str, str]
) -> None:
    with pytest.raises(EngineError, match="is no cluster name") as failure:
        engine_on("drain").up("dev", {**config, "fault": "refusal"})

    assert "Traceback" not in str(failure.value)


def test_a_program_that_ends_itself_fails_the_operation(
    engine_on: EngineOn, config: dict[str, str]
) -> None:
    with pytest.raises(EngineError, match="exit status 3"):
        engine_on("drain").up("dev", {**config, "fault": "exit"})


def test_no_process_survives_a_killed_engine_and_the_next_run_continues(
    engine_on: EngineOn, config: dict[str, str]
) -> None:
    console = Console()
    engine = engine_on("drain", show=console.show)
    engine.up("dev", config)
    failures: list[EngineError] = []

    def destroy() -> None:
        try:
            engine.destroy("dev")
        except EngineError as error:
            failures.append(error)

    with in_background(destroy):
        console.wait_for("3 nodes left")
        running = owned.belonging_to(engine.directory)
        assert len(running) > 1
        engines = [pid for pid in running if "bin/pulumi destroy" in owned.command_of(pid)]
        os.kill(engines[0], signal.SIGKILL)
        wait_until(lambda: not owned.belonging_to(engine.directory))
    assert [failure.status for failure in failures] == [-signal.SIGKILL]

    Path(config["gate"]).touch()
    with pytest.raises(EngineError, match=r"unlock\(\)"):
        engine.destroy("dev")
    engine.unlock("dev")
    engine.destroy("dev")
    assert not Path(config["file"]).exists()


@contextmanager
def another_process_destroys(engine: PulumiEngine) -> Iterator[subprocess.Popen[str]]:
    """A user who runs destroy in a separate process, up to the first line of progress."""
    script = f"""
from pathlib import Path
from testbed.plugins.engine import Plugins, PulumiEngine
PulumiEngine(
    directory=Path({str(engine.directory)!r}),
    project=Path({str(PROGRAMS / "drain")!r}),
    plugins=Plugins.STAND_IN,
    patience=1.0,
    show=lambda line: print(line, flush=True),
).destroy("dev")
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as person:
        assert person.stdout is not None
        assert any("3 nodes left" in line for line in person.stdout)
        yield person
    wait_until(lambda: not owned.belonging_to(engine.directory))


def test_ctrl_c_stops_the_engine_and_leaves_no_process(
    engine_on: EngineOn, config: dict[str, str]
) -> None:
    engine = engine_on("drain")
    engine.up("dev", config)

    with another_process_destroys(engine) as person:
        person.send_signal(signal.SIGINT)
        assert person.wait(DEADLINE_SECONDS) == -signal.SIGINT

    engine.unlock("dev")
    Path(config["gate"]).touch()
    engine.destroy("dev")


def test_an_engine_whose_user_is_killed_leaves_no_process(
    engine_on: EngineOn, config: dict[str, str]
) -> None:
    engine = engine_on("drain")
    engine.up("dev", config)

    with another_process_destroys(engine) as person:
        person.kill()

    assert owned.belonging_to(engine.directory) == []
    engine.unlock("dev")
    Path(config["gate"]).touch()
    engine.destroy("dev")


def test_an_operation_in_a_thread_can_be_stopped_from_outside(
    engine_on: EngineOn, config: dict[str, str]
) -> None:
    console = Console()
    engine = engine_on("drain", show=console.show)
    engine.up("dev", config)
    failures: list[EngineError] = []

    def destroy() -> None:
        try:
            engine.destroy("dev")
        except EngineError as error:
            failures.append(error)

    with in_background(destroy):
        console.wait_for("3 nodes left")
        engine.patience = 1.0
        engine.interrupt()
        console.wait_for("^C received")
    assert len(failures) == 1  # the gate stayed closed until the time limit
    assert Path(config["file"]).exists()

    engine.interrupt()  # no operation is in progress, so this has no effect
    engine.unlock("dev")
    Path(config["gate"]).touch()
    engine.destroy("dev")


def test_a_stack_is_created_by_up_and_removed_by_remove(
    engine_on: EngineOn, config: dict[str, str]
) -> None:
    engine = engine_on("drain")
    assert not engine.stack_exists("dev")

    engine.up("dev", config)
    assert engine.stack_exists("dev")
    with pytest.raises(EngineError, match="still has resources"):
        engine.remove_stack("dev")

    Path(config["gate"]).touch()
    engine.destroy("dev")
    engine.remove_stack("dev")
    assert not engine.stack_exists("dev")


def test_the_users_own_pulumi_settings_are_not_used(
    engine_on: EngineOn, config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_STACK", "foreign")
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///nowhere/at/all")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "theirs")

    assert engine_on("drain").preview("dev", config).create > 0


def test_the_text_of_an_engine_omits_its_passphrase(tmp_path: Path) -> None:
    engine = PulumiEngine(directory=tmp_path, project=tmp_path, passphrase="hush")

    assert "hush" not in repr(engine)
