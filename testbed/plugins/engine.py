"""The real Pulumi engine on a project, with its own home, state and passphrase.

* EngineError          an operation failed; has the end of the engine's output
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from testbed.plugins import languagehost
from testbed.plugins.home import Home, Plugins, prepare
from testbed.processes import binaries, owned
from testbed.progress import SILENCE, Progress

TAIL_LINES: Final = 40
COMPILED: Final = ("yaml", "nodejs", "go")
"""Runtimes whose language host is a binary of the testbed, not a stand-in in Python."""
CHANGE: Final = re.compile(r"(\d+) (?:to )?(create|update|delete|replace|unchanged)")
"""One count in the engine's summary, such as `+ 3 created` or `~ 1 to update`."""

ADVICE: Final[Sequence[tuple[str, str]]] = (
    ("the stack is currently locked", "an earlier run was killed: call unlock(), then again"),
    ("incorrect passphrase", "the state belongs to another passphrase: use the one it was made by"),
    ("no resource plugin", "the program uses a package that has no plugin and no stand-in here"),
    ("has no resource type", "add the type to testbed/plugins, or use the real plugin"),
    ("has no function", "add the function to testbed/plugins, or use the real plugin"),
    ("unable to find main", "the project's folder needs a Pulumi.yaml whose main exists"),
)
"""Text in the engine's output → what to do next."""


class EngineError(RuntimeError):
    """An operation failed. The message has the end of the engine's output and a next step."""

    def __init__(self, operation: str, status: int, output: Sequence[str]) -> None:
        self.status = status
        self.output = "\n".join(output)
        """The last lines of the engine's output."""
        advice = next(
            (step for words, step in ADVICE if words in self.output),
            "mend what the lines above name, then run the same operation again: "
            "what was done is in the state",
        )
        super().__init__(
            f"pulumi {operation} ended with status {status}\n{self.output}\nNext: {advice}."
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """Number of resources that an operation changes, or would change, by type of change."""

    create: int = 0
    update: int = 0
    replace: int = 0
    delete: int = 0
    unchanged: int = 0

    @property
    def any(self) -> bool:
        """Whether anything changed."""
        return any((self.create, self.update, self.replace, self.delete))


@dataclass(kw_only=True)
class PulumiEngine:
    """The engine, on one project. Stacks are in a file backend in `directory`.

    Only `install` and `add_package` write to the project's folder, and nothing reads the user's
    Pulumi home. Only one operation may run on a stack at a time. Every method that runs the engine
    raises `EngineError` if the engine fails.
    """

    directory: Path
    """Directory of the engine's home, state and stack settings; created if needed."""
    project: Path
    """The folder that contains `Pulumi.yaml`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the program and the plugins, added to this process's."""
    show: Callable[[str], None] = print
    """Called with each line of the engine's output as it is printed."""
    engine: Path | None = None
    """The engine's binary; None is the testbed's."""
    plugins: Plugins = Plugins.AUTOMATIC
    is_installed: bool = False
    """Whether the program runs in the virtual environment that Pulumi.yaml names.

    `install` fills that environment, as for users. If False, the program runs on this interpreter
    and its packages.
    """
    generates_sdks: bool = False
    """Whether `add_package` works in a Python project: Pulumi's generator of SDKs is built first.

    Projects in other languages generate SDKs in any case.
    """
    passphrase: str = field(default="testbed", repr=False)
    progress: Progress = SILENCE
    patience: float = 60.0
    """Seconds from Ctrl-C to a kill, in which the engine may finish its current work."""
    _running: subprocess.Popen[str] | None = field(default=None, init=False, repr=False)

    @cached_property
    def home(self) -> Home:
        """The engine's home; `str(home)` lists which plugins are real and which are stand-ins."""
        return prepare(
            self.directory,
            engine=self.engine or binaries.ensure("pulumi", progress=self.progress),
            plugins=self.plugins,
            hosts=[binaries.ensure(name, progress=self.progress) for name in self._hosts],
            is_installed=self.is_installed,
            progress=self.progress,
        )

    def install(self) -> None:
        """Install the program's requirements into its virtual environment, in the project's folder.

        Raises `EngineError`.
        """
        self._stream("install", ["install"])

    def add_package(self, source: str) -> None:
        """Add a Pulumi package to the project, by its path or URL. It changes Pulumi.yaml."""
        self._ask("package", "add", source, folder=self.project)

    def install_plugin(self, source: str, version: str) -> None:
        """Install a resource plugin, by its name or URL. No project is changed."""
        self._ask("plugin", "install", "resource", source, version)

    def up(
        self,
        stack: str,
        config: Mapping[str, str] | None = None,
        *,
        secrets: Mapping[str, str] | None = None,
        replace: Sequence[str] = (),
    ) -> Changes:
        """Create and update what the program declares; return the changes. Raises `EngineError`.

        The stack is created if needed. `config` and `secrets` (encrypted) replace the stack's
        settings; a key without a colon belongs to the project. `replace` has the URNs of resources
        that are replaced even if they have not changed.
        """
        self._configure(stack, config or {}, secrets or {})
        again = [word for urn in replace for word in ("--replace", urn)]
        return self._operate("up", stack, "--yes", "--skip-preview", *again)

    def preview(
        self,
        stack: str,
        config: Mapping[str, str] | None = None,
        *,
        secrets: Mapping[str, str] | None = None,
    ) -> Changes:
        """Return the changes that `up` would make. Raises `EngineError`."""
        self._configure(stack, config or {}, secrets or {})
        return self._operate("preview", stack)

    def refresh(self, stack: str) -> Changes:
        """Update the state to match the live resources; return the differences found."""
        return self._operate("refresh", stack, "--yes", "--skip-preview")

    def destroy(self, stack: str, *options: str) -> Changes:
        """Delete every resource of the stack; return the changes. Raises `EngineError`.

        `options` are further options of the command, such as `--target`.
        """
        return self._operate("destroy", stack, "--yes", "--skip-preview", *options)

    def preview_destroy(self, stack: str) -> Changes:
        """Return the changes that `destroy` would make. The program runs, and may affect them."""
        return self._operate("destroy", stack, "--preview-only", "--run-program")

    def outputs(self, stack: str) -> dict[str, Any]:
        """Return the stack's outputs, including secrets."""
        said = self._ask("stack", "output", "--json", "--show-secrets", "--stack", stack)
        outputs: dict[str, Any] = json.loads(said)
        return outputs

    def state(self, stack: str) -> dict[str, Any]:
        """Return the stack's state, with encrypted secrets."""
        state: dict[str, Any] = json.loads(self._ask("stack", "export", "--stack", stack))
        return state

    def restore(self, stack: str, state: Mapping[str, Any]) -> None:
        """Import a state into the stack, which is created if needed and keeps its settings."""
        self._ensure(stack)
        file = self._command_folder / f"{stack}.state.json"
        file.write_text(json.dumps(state))
        self._ask("stack", "import", "--stack", stack, "--file", str(file))

    def stack_exists(self, stack: str) -> bool:
        """Return whether the stack exists."""
        return any(entry["name"] == stack for entry in json.loads(self._ask("stack", "ls", "-j")))

    def remove_stack(self, stack: str) -> None:
        """Delete a stack and its settings. Raises `EngineError` if it has resources."""
        self._ask("stack", "rm", "--yes", "--stack", stack)

    def interrupt(self) -> None:
        """Stop the running operation, if there is one, as Ctrl-C does. Thread-safe.

        The engine finishes its current work and starts no more. The operation then raises an
        `EngineError` if work was left. After `patience` seconds, the engine is killed.
        """
        process = self._running
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGINT)
        limit = threading.Timer(self.patience, _kill, (process,))
        limit.daemon = True
        limit.start()

    def unlock(self, stack: str) -> None:
        """Remove the lock that a killed engine left."""
        self._ask("cancel", "--yes", "--stack", stack)

    @property
    def _hosts(self) -> Sequence[str]:
        """The binaries that the project's runtime needs."""
        runtime = self._description["runtime"]
        name = runtime["name"] if isinstance(runtime, Mapping) else runtime
        if name in COMPILED:
            return [f"pulumi-language-{name}"]
        return [languagehost.GENERATOR] if self.generates_sdks else []

    @cached_property
    def _project_name(self) -> str:
        return str(self._description["name"])

    @property
    def _description(self) -> Mapping[str, Any]:
        described: Mapping[str, Any] = yaml.safe_load((self.project / "Pulumi.yaml").read_text())
        return described

    @cached_property
    def _command_folder(self) -> Path:
        """A folder in place of the project's, for commands that write next to Pulumi.yaml."""
        desk = self.directory / "stacks"
        desk.mkdir(parents=True, exist_ok=True)
        description = {"name": self._project_name, "runtime": "python"}
        (desk / "Pulumi.yaml").write_text(yaml.safe_dump(description))
        return desk

    def _settings(self, stack: str) -> Path:
        return self._command_folder / f"Pulumi.{stack}.yaml"

    def _ensure(self, stack: str) -> None:
        """Create the stack if it does not exist."""
        if not self.stack_exists(stack):
            self._ask("stack", "init", "--no-select", "--stack", stack)

    def _configure(self, stack: str, config: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        self._ensure(stack)
        settings = self._settings(stack)
        kept = yaml.safe_load(settings.read_text()) if settings.exists() else {}
        qualified = {
            key if ":" in key else f"{self._project_name}:{key}": value
            for key, value in config.items()
        }
        settings.write_text(yaml.safe_dump({**kept, "config": qualified}))
        if secrets:
            pairs = [
                word for key, value in secrets.items() for word in ("--secret", f"{key}={value}")
            ]
            self._ask("config", "set-all", "--stack", stack, *pairs)

    def _operate(self, operation: str, stack: str, *options: str) -> Changes:
        """Run one operation on the project, and return its changes."""
        settings = ("--config-file", str(self._settings(stack)))
        lines = self._stream(
            f"{operation} --stack {stack}",
            [operation, "--stack", stack, *settings, "--suppress-permalink=true", *options],
        )
        summary = "\n".join(lines).partition("\nResources:\n")[2]
        return Changes(**{kind: int(count) for count, kind in CHANGE.findall(summary)})

    def _stream(self, operation: str, arguments: Sequence[str]) -> Sequence[str]:
        """Run a command on the project and show its output; return the output's last lines."""
        lines: deque[str] = deque(maxlen=TAIL_LINES)
        with subprocess.Popen(
            self._command(self.project, arguments),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C must reach the engine once, from here: a second means "stop at once".
            process_group=0,
        ) as process:
            self._running = process
            try:
                self._read(process, lines)
                process.wait()
            except KeyboardInterrupt:
                self.interrupt()
                with suppress(KeyboardInterrupt):  # a second Ctrl-C ends the wait
                    self._read(process, lines)
                    process.wait()
                raise
            finally:
                self._running = None
                _kill(process)
        if process.returncode:
            raise EngineError(operation, process.returncode, lines)
        return lines

    def _read(self, process: subprocess.Popen[str], lines: deque[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            self.show(lines[-1])

    def _ask(self, *arguments: str, folder: Path | None = None) -> str:
        """Run a short command on the backend; return its output."""
        done = subprocess.run(
            self._command(folder or self._command_folder, arguments),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr).splitlines()
            raise EngineError(" ".join(arguments[:2]), done.returncode, said[-TAIL_LINES:])
        return done.stdout

    def _command(self, folder: Path, arguments: Sequence[str]) -> list[str]:
        fixed = ("--non-interactive", "--color", "never", "--cwd", str(folder))
        return [str(self.home.engine), *arguments, *fixed]

    def select(self, stack: str) -> None:
        """Make a stack the default of commands that name none, in the project's folder."""
        self._ask("stack", "select", stack, folder=self.project)

    def settings_of(self, stack: str) -> str:
        """Return the content of a stack's settings file."""
        return self._settings(stack).read_text()

    @cached_property
    def variables(self) -> dict[str, str]:
        """The variables with which the engine finds its home, the state and the program."""
        state = self.directory.absolute() / "state"
        state.mkdir(parents=True, exist_ok=True)
        own = {
            "PULUMI_BACKEND_URL": state.as_uri(),
            "PULUMI_CONFIG_PASSPHRASE": self.passphrase,
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_HOME": str(self.home.directory.absolute()),
            "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        }
        if not self.is_installed:
            inherited = {**os.environ, **self.environment}.get("PYTHONPATH")
            folders = [str(self.project.absolute()), *([inherited] if inherited else [])]
            own["PYTHONPATH"] = os.pathsep.join(folders)
        return own

    @cached_property
    def _environment(self) -> dict[str, str]:
        inherited = {**os.environ, **self.environment}
        # A stack or backend that the user selected elsewhere must not apply here.
        for name in [name for name in inherited if name.startswith("PULUMI_")]:
            if name not in self.environment:
                del inherited[name]
        return owned.marked_environment(self.directory, {**inherited, **self.variables})


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
