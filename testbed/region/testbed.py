"""The parts of the testbed, started in order and stopped in reverse order.

The process that runs a `Testbed` owns it: a test, a demo, or the supervisor that
`python -m testbed up` leaves in the background. The owner writes its state to `state.json` in
its directory. `status`, `down` and a second `up` read it there.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from testbed.environment import CHECKOUT, cache_directory
from testbed.processes import binaries, owned
from testbed.processes.background import Background
from testbed.progress import SILENCE, Progress
from testbed.region.cluster import Cluster

CLOUD_READY_SECONDS = 60.0
"""Timeout for the cloud to print its URL, in seconds; the cloud needs about 3."""


class Part(StrEnum):
    """The parts of a testbed, in the order of their start."""

    CLUSTER = "cluster"
    CLOUD = "cloud"
    WORKLOADS = "workloads"
    VOLUMES = "volumes"
    KUBELETS = "kubelets"


class Phase(StrEnum):
    """The phase of a testbed's life."""

    STARTING = "starting"
    READY = "ready"
    BROKEN = "broken"
    STOPPING = "stopping"


class StateUnreadableError(RuntimeError):
    """A testbed's directory has no readable state."""


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the owner of a testbed records for other processes."""

    phase: Phase
    owner: str
    """`owned.identity` of the owner."""

    began: datetime
    parts: list[Part]
    """The parts that are ready."""

    pids: dict[str, int]
    """Process name → process ID, for all parts that are processes."""

    ports: dict[str, int]
    environment: dict[str, str]
    problem: str = ""

    @property
    def owner_pid(self) -> int:
        """The process ID of the owner."""
        return int(self.owner.partition("@")[0])

    @property
    def is_owned(self) -> bool:
        """Whether the owner still runs."""
        return owned.identity(self.owner_pid) == self.owner


def state_directory(name: str) -> Path:
    """Return the directory of a testbed, by name; two checkouts never share one."""
    place = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:8]
    return cache_directory() / "testbeds" / f"{CHECKOUT.name}-{place}-{name}"


def read_state(directory: Path) -> State | None:
    """Return the state that the owner recorded, or None if there is no testbed.

    Raises `StateUnreadableError` if the directory exists without a readable state.
    """
    if not directory.exists():
        return None
    file = directory / "state.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=State)
    except FileNotFoundError as exc:
        raise StateUnreadableError(f"{directory} holds no state.json") from exc
    except msgspec.DecodeError as exc:
        raise StateUnreadableError(f"{file} cannot be parsed: {exc}") from exc


@dataclass(kw_only=True)
class CloudProcess:
    """The test cloud as a separate process on a free loopback port."""

    directory: Path
    arguments: Mapping[str, str]
    url: str = field(default="", init=False)
    process: owned.Process = field(init=False)

    def __post_init__(self) -> None:
        options = [f"--{name}={value}" for name, value in self.arguments.items()]
        self.process = owned.Process(
            name="cloud",
            command=[sys.executable, "-m", "testbed.cloud", "--port=0", *options],
            directory=self.directory,
            environment={**os.environ, "PYTHONPATH": _python_path()},
            log=self.directory / "cloud.log",
            pipe_output=True,
        )

    def start(self) -> None:
        """Start the process; return once it printed its URL. Raises `owned.ProcessFailedError`."""
        self.process.start()
        said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, args=(said,), daemon=True).start()
        try:
            line = said.get(timeout=CLOUD_READY_SECONDS)
            self.url = str(json.loads(line)["url"])
        except queue.Empty:
            raise self._failure(f"said nothing for {CLOUD_READY_SECONDS:.0f} s") from None
        except (ValueError, KeyError, TypeError):
            self.process.check()
            raise self._failure(f"said {line!r} in place of its URL") from None

    def stop(self) -> None:
        """Stop the process."""
        self.process.stop()

    def check(self) -> None:
        """Raise `owned.ProcessFailedError` if the process has exited."""
        self.process.check()

    def _listen(self, said: queue.Queue[str]) -> None:
        """Pass on the first line of output, or an empty one at the end; log later lines."""
        running = self.process.running
        with self.process.log.open("a") as log:
            for number, line in enumerate((running and running.stdout) or ()):
                if number:
                    log.write(line)
                else:
                    said.put(line)
        if running:
            running.wait()
        said.put("")

    def _failure(self, what: str) -> owned.ProcessFailedError:
        return owned.ProcessFailedError(f"the cloud {what}:\n{owned.log_tail(self.process.log)}")


@dataclass(kw_only=True)
class Testbed:
    """A small region: every part up to and including `until`, all in `directory`.

    The directory must not exist before, and does not exist after.
    """

    __test__: ClassVar[bool] = False  # pytest would take the class for a test because of its name

    directory: Path
    cluster_name: str = "joiner"
    region: str = "us-west-2"
    has_eks_cluster: bool = True
    """Whether EKS has the cluster from the start; if False, a client creates it."""

    join_delay_seconds: float = 1.0
    """Seconds from a running instance to its Node; 20 to 40 in AWS."""

    ready_delay_seconds: float = 0.5
    """Shortest time in seconds from a Node's creation until pods can be scheduled on it."""

    system_node_count: int = 2
    """The number of system nodes, at most three: the first is in zone a, the second in zone b."""

    until: Part = Part.KUBELETS
    progress: Progress = SILENCE
    cluster: Cluster = field(init=False)
    cloud: CloudProcess | None = field(default=None, init=False)
    _began: datetime = field(init=False)
    _ready: list[Part] = field(default_factory=list, init=False)
    _parts: list[CloudProcess | Background] = field(default_factory=list, init=False)
    _is_owner: bool = field(default=False, init=False)
    _written_pids: dict[str, int] = field(default_factory=dict, init=False)
    _owned: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def __post_init__(self) -> None:
        self.directory = self.directory.absolute()
        self.cluster = Cluster(
            directory=self.directory / "cluster", name=self.cluster_name, progress=self.progress
        )

    def start(self) -> None:
        """Start all parts; return once all are ready. Stops everything if a part fails.

        Raises `FileExistsError` if the directory exists, and any error of a part.
        """
        self._began = datetime.now(UTC)
        try:
            self._owned.enter_context(owned.temporary_directory(self.directory))
            self._is_owner = True
            self._write_state(Phase.STARTING)
            for part, start in self._starters().items():
                start()
                self._ready.append(part)
                self._write_state(Phase.STARTING)
                if part is self.until:
                    break
            self._write_state(Phase.READY)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything, in reverse order. Does nothing if nothing was started."""
        if self._is_owner and self.directory.exists():
            self._write_state(Phase.STOPPING)
        self._is_owner = False
        self._owned.close()
        self._ready.clear()
        self._parts.clear()
        self.cloud = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def environment(self) -> dict[str, str]:
        """Return the variables that point kubectl, AWS clients or Pulumi to this region."""
        variables = {"KUBECONFIG": str(self.cluster.kubeconfig)}
        if self.cloud:
            variables |= {
                "AWS_ENDPOINT_URL": self.cloud.url,
                "AWS_REGION": self.region,
                "AWS_DEFAULT_REGION": self.region,
                "AWS_ACCESS_KEY_ID": "testing",
                "AWS_SECRET_ACCESS_KEY": "testing",
                # A proxy for external traffic must not apply to loopback.
                "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1"))),
            }
        return variables

    def check(self) -> None:
        """Raise the error of a part that has stopped unexpectedly, and record it in the state.

        If a component of the cluster was restarted, record its new process ID.
        """
        try:
            self.cluster.check()
            if self.cluster.pids != self._written_pids:
                self._write_state(Phase.READY)
            for part in self._parts:
                part.check()
        except RuntimeError as exc:
            self._write_state(Phase.BROKEN, problem=str(exc))
            raise

    def _starters(self) -> dict[Part, Callable[[], None]]:
        return {
            Part.CLUSTER: self._start_cluster,
            Part.CLOUD: self._start_cloud,
            Part.WORKLOADS: self._start_workloads,
            Part.VOLUMES: self._start_volumes,
            Part.KUBELETS: self._start_kubelets,
        }

    def _start_cluster(self) -> None:
        self._owned.enter_context(self.cluster)

    def _start_cloud(self) -> None:
        cloud = CloudProcess(
            directory=self.directory,
            arguments={
                "cluster-name": self.cluster_name,
                "cluster-endpoint": self.cluster.server,
                "cluster-ca": self.cluster.ca_data,
                "region": self.region,
                "kubernetes-version": self._kubernetes_version(),
                "oidc-issuer": self.cluster.issuer,
                "kubeconfig": str(self.cluster.kubeconfig),
                "account": "cluster" if self.has_eks_cluster else "empty",
            },
        )
        self._start("test cloud", cloud)
        self.cloud = cloud

    def _start_workloads(self) -> None:
        from testbed.workloads import Workloads

        workloads = Workloads(
            self.cluster.kubeconfig,
            self._cloud_url,
            self.directory / "workloads",
            checkout=CHECKOUT,
            cluster_name=self.cluster_name,
            region=self.region,
            node_count=self.system_node_count,
        )
        self._start("system nodes", workloads)

    def _start_volumes(self) -> None:
        from testbed.nodes.volumes import VolumeDriver

        self._start("volume driver", VolumeDriver(self.cluster.kubeconfig))

    def _start_kubelets(self) -> None:
        from testbed.nodes.kubelets import Kubelets

        kubelets = Kubelets(
            self.cluster.kubeconfig,
            self._cloud_url,
            cluster_name=self.cluster_name,
            join_delay_seconds=self.join_delay_seconds,
            ready_delay_seconds=self.ready_delay_seconds,
        )
        self._start("kubelets", kubelets)

    def _start(self, title: str, part: CloudProcess | Background) -> None:
        with self.progress.stage(title):
            self._owned.callback(part.stop)
            part.start()
            self._parts.append(part)

    @property
    def _cloud_url(self) -> str:
        return self.cloud.url if self.cloud else ""

    def _kubernetes_version(self) -> str:
        return ".".join(binaries.kubernetes_version().removeprefix("v").split(".")[:2])

    def _write_state(self, phase: Phase, problem: str = "") -> None:
        pids = dict(self.cluster.pids)
        self._written_pids = dict(pids)
        ports = dict(self.cluster.ports)
        if self.cloud and self.cloud.process.pid:
            pids["cloud"] = self.cloud.process.pid
            ports["cloud"] = int(self.cloud.url.rsplit(":", 1)[1].rstrip("/"))
        state = State(
            phase=phase,
            owner=owned.identity(os.getpid()) or "",
            began=self._began,
            parts=list(self._ready),
            pids=pids,
            ports=ports,
            environment=self.environment(),
            problem=problem,
        )
        fresh = self.directory / ".state.json"
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        fresh.rename(self.directory / "state.json")


def _python_path() -> str:
    """Return a PYTHONPATH with which child processes can import this checkout anywhere."""
    return os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
