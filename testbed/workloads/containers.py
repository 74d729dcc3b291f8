"""One container of a pod as a local process: start, probes, restart, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from testbed.kube.client import TRANSIENT, Object
from testbed.processes import owned
from testbed.workloads.environment import ConfigurationError, expand
from testbed.workloads.probes import Target, require_supported

log = logging.getLogger(__name__)

FIRST_BACK_OFF_SECONDS = 1.0  # a kubelet starts with 10; there are no images to pull here
LONGEST_BACK_OFF_SECONDS = 60.0  # a kubelet's limit is 300
FORGIVEN_AFTER_SECONDS = 600.0
CONFIGURATION_RETRY_SECONDS = 2.0
CANNOT_START = 128  # the exit code if the command does not exist

Environment = Callable[[Object], Awaitable[dict[str, str]]]


def timestamp() -> str:
    """Return the current time in the API's format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the processes of a container run."""

    directory: Path  # the container's own; marks its processes
    log: Path
    working_directory: Path
    address: str
    session: aiohttp.ClientSession


@dataclass(kw_only=True)
class Container:
    """A container and its state. `changed` is called on every change of the state."""

    spec: Object
    place: Place
    environment: Environment
    restart_policy: str
    grace_seconds: float
    changed: Callable[[], None]
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Object = field(default_factory=dict)
    restarts: int = 0
    is_ready: bool = False
    is_started: bool = False
    _process: asyncio.subprocess.Process | None = None
    _stop_asked: asyncio.Event = field(default_factory=asyncio.Event)
    _back_off: float = FIRST_BACK_OFF_SECONDS

    @property
    def name(self) -> str:
        """The container's name in its pod."""
        return str(self.spec["name"])

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while the container has not terminated."""
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def is_running(self) -> bool:
        """Whether the container runs."""
        return "running" in self.state

    @property
    def status(self) -> Object:
        """The container's status in the API's format."""
        identity = f"process://{self._process.pid}" if self._process else ""
        return {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "containerID": identity,
            "ready": self.is_ready,
            "started": self.is_started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }

    @property
    def _is_stopping(self) -> bool:
        return self._stop_asked.is_set()

    async def run(self) -> None:
        """Run the container, with restarts as the restart policy says, until it ends for good."""
        while not self._is_stopping:
            environment = await self._wait_for_environment()
            if environment is None:
                return
            command = self._command(environment)
            began = asyncio.get_running_loop().time()
            await self._run_once(command, environment)
            if self._is_stopping or not self._should_restart():
                return
            if asyncio.get_running_loop().time() - began > FORGIVEN_AFTER_SECONDS:
                self._back_off = FIRST_BACK_OFF_SECONDS
            await self._wait_for_restart()

    async def stop(self, grace_seconds: float) -> None:
        """Stop the container for good: preStop hook, SIGTERM, SIGKILL after the grace period."""
        self._stop_asked.set()
        began = asyncio.get_running_loop().time()
        if self.is_running and self._process and grace_seconds > 0:
            await self._pre_stop(grace_seconds)
        used = asyncio.get_running_loop().time() - began
        await self._end(max(grace_seconds - used, 0.0))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the container's main process."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def abandon(self) -> None:
        """Kill every remaining process of the container at once."""
        self._stop_asked.set()
        self.send(signal.SIGKILL)
        await self._sweep()

    # --- starting

    async def _wait_for_environment(self) -> dict[str, str] | None:
        """Return the environment once everything it refers to exists; None if stopped before."""
        while not self._is_stopping:
            try:
                require_supported(self.spec)
                return await self.environment(self.spec)
            except (ConfigurationError, *TRANSIENT) as exc:
                waiting = {"reason": "CreateContainerConfigError", "message": str(exc)}
                self._set_state({"waiting": waiting})
                await self._pause(CONFIGURATION_RETRY_SECONDS)
        return None

    def _command(self, environment: dict[str, str]) -> list[str]:
        if not self.spec.get("command"):
            return []
        words = [*self.spec["command"], *(self.spec.get("args") or [])]
        return self._local([expand(word, environment) for word in words])

    def _local(self, words: Sequence[str]) -> list[str]:
        program = sys.executable if words[0] in ("python", "python3") else words[0]
        return [program, *words[1:]]

    async def _run_once(self, command: list[str], environment: dict[str, str]) -> None:
        started_at = timestamp()
        try:
            self._process = await self._start(command, environment) if command else None
        except OSError as exc:
            self._note(f"cannot start {command[0]}: {exc}")
            self._set_state(_terminated_state(CANNOT_START, "StartError", started_at, str(exc)))
            return
        self.is_started = "startupProbe" not in self.spec
        self.is_ready = self.is_started and "readinessProbe" not in self.spec
        self._set_state({"running": {"startedAt": started_at}})
        if self._process is None:
            await self._stop_asked.wait()  # no process to watch: it runs until it is stopped
            return
        if self._is_stopping:
            await self._end(0.0)
        async with self._probed(environment):
            code = await self._process.wait()
        # A container ends with its first process, even if that process left children behind.
        await self._sweep()
        self.is_ready = self.is_started = False
        exit_code = code if code >= 0 else 128 - code
        reason = "Error" if exit_code else "Completed"
        self._set_state(_terminated_state(exit_code, reason, started_at))

    async def _start(
        self, command: Sequence[str], environment: dict[str, str]
    ) -> asyncio.subprocess.Process:
        self.place.directory.mkdir(parents=True, exist_ok=True)
        self.place.log.parent.mkdir(parents=True, exist_ok=True)
        with self.place.log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *command,
                cwd=self.spec.get("workingDir") or self.place.working_directory,
                env=owned.marked_environment(self.place.directory, environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    # --- restarting

    def _should_restart(self) -> bool:
        if self.restart_policy == "OnFailure":
            return self.exit_code != 0
        return self.restart_policy == "Always"

    async def _wait_for_restart(self) -> None:
        delay, self._back_off = self._back_off, min(self._back_off * 2, LONGEST_BACK_OFF_SECONDS)
        self.last_state = self.state
        message = f"back-off {delay:g}s restarting failed container {self.name}"
        self._set_state({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
        await self._pause(delay)
        if not self._is_stopping:
            self.restarts += 1

    async def _pause(self, seconds: float) -> None:
        """Sleep, but at most until the container is asked to stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop_asked.wait()

    # --- stopping

    async def _pre_stop(self, grace_seconds: float) -> None:
        hook = (self.spec.get("lifecycle") or {}).get("preStop") or {}
        with contextlib.suppress(TimeoutError, ConfigurationError):
            async with asyncio.timeout(grace_seconds):
                if "sleep" in hook:
                    await asyncio.sleep(hook["sleep"]["seconds"])
                elif "exec" in hook:
                    await self._execute(hook["exec"]["command"], await self.environment(self.spec))

    async def _end(self, grace_seconds: float) -> None:
        if self._process is None:
            if self.is_running:
                self.is_ready = False
                self._set_state(
                    _terminated_state(0, "Completed", self.state["running"]["startedAt"])
                )
            return
        self.send(signal.SIGTERM if grace_seconds > 0 else signal.SIGKILL)
        try:
            async with asyncio.timeout(grace_seconds or None):
                await self._process.wait()
        except TimeoutError:
            self._note(f"still there {grace_seconds:g} s after SIGTERM: SIGKILL")
            self.send(signal.SIGKILL)
            await self._process.wait()

    async def _sweep(self) -> None:
        await asyncio.to_thread(owned.end_all, self.place.directory, grace_seconds=0.0)

    # --- probing

    @asynccontextmanager
    async def _probed(self, environment: dict[str, str]) -> AsyncIterator[None]:
        probing = asyncio.create_task(self._probe(environment))
        try:
            yield
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)

    async def _probe(self, environment: dict[str, str]) -> None:
        async def run(command: Sequence[str]) -> int:
            return await self._execute(command, environment)

        target = Target(self.spec, self.place.address, self.place.session, run)
        if startup := self.spec.get("startupProbe"):
            await self._await_startup(target, startup)
        await asyncio.gather(self._watch_readiness(target), self._watch_liveness(target))

    async def _await_startup(self, target: Target, probe: Object) -> None:
        async for has_started in target.verdicts(probe):
            if has_started:
                break
            await self._fail("startup", probe)
        self.is_started = True
        self.is_ready = "readinessProbe" not in self.spec
        self.changed()

    async def _watch_readiness(self, target: Target) -> None:
        if probe := self.spec.get("readinessProbe"):
            async for is_ready in target.verdicts(probe):
                if is_ready != self.is_ready:
                    self.is_ready = is_ready
                    self.changed()

    async def _watch_liveness(self, target: Target) -> None:
        if probe := self.spec.get("livenessProbe"):
            async for is_alive in target.verdicts(probe):
                if not is_alive:
                    await self._fail("liveness", probe)

    async def _fail(self, role: str, probe: Object) -> None:
        self._note(f"the {role} probe failed {probe.get('failureThreshold', 3)} times")
        await self._end(probe.get("terminationGracePeriodSeconds", self.grace_seconds))

    async def _execute(self, command: Sequence[str], environment: dict[str, str]) -> int:
        process = await self._start(self._local(command), environment)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()

    # --- reporting

    def _set_state(self, state: Object) -> None:
        self.state = state
        self.changed()

    def _note(self, text: str) -> None:
        """Write to the container's log what its own process cannot report."""
        log.info("container %s: %s", self.name, text)
        self.place.log.parent.mkdir(parents=True, exist_ok=True)
        with self.place.log.open("a") as output:
            output.write(f"[testbed] {text}\n")


def _terminated_state(exit_code: int, reason: str, started_at: str, message: str = "") -> Object:
    ended: Object = {
        "exitCode": exit_code,
        "reason": reason,
        "startedAt": started_at,
        "finishedAt": timestamp(),
    }
    return {"terminated": {**ended, "message": message} if message else ended}
