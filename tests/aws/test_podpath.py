"""The path of a pod's CPU request through the controller, from the watch to CreateFleet.

One pod is read from a watch (its creation, and that it is unschedulable), batched, encoded for the
solver's process, solved (here in the same process), and its NodeClaim is launched by CreateFleet on
the test cloud. A profiler looks at each call of a function in `controller`.

What counts is a module that has the request in hand: one of its functions takes or returns the
amount of CPU. The amount is the quantity, the number of thousandths, or a row of an array with it;
alone, or at most three levels down in collections and value objects. So the row in a list of pod
groups counts. A whole pod that is passed on does not count: its quantity is six levels down. The
receiver of a method (`self`) does not count either.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from datetime import timedelta
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest

from controller.apis.kinds import POD, Kind
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.pods import Pod
from controller.aws.provider import AWSCloudProvider
from controller.kube import decoding, watching
from controller.manager.cloud.metered import MeteredCloud
from controller.manager.cloud.overlaid import OverlaidCloud
from controller.manager.solver import solving
from controller.manager.solver.solving import TimedSolve, WorldSolver
from controller.manager.watches import Watches
from controller.reconcilers.newnodes.registrationbackoff import RegistrationBackoff
from controller.reconcilers.provisioning.batchwindow import BatchWindow
from controller.reconcilers.provisioning.provisioner import Provisioner
from controller.scheduling.settings import Settings
from controller.state.spreads import DefaultSpreads
from controller.telemetry.market import Market
from tests.aws.builders import ready
from tests.aws.conftest import Region
from tests.builders import changed, make_nodepool, make_pod
from tests.reconcilers.world import Unprepared, World, make_lifecycle

MILLICORES = 1733
"""A prime, so that no other amount is equal by chance."""

QUANTITY = f"{MILLICORES}m"
LEVELS = 3
SHORT = timedelta(milliseconds=1)

PATH = (
    "kube.watching",
    "kube.decoding",
    "manager.solver.solving",
    "scheduling.pods.classes",
    "constraints.resources",
    "apis.kubernetes.quantities",
    "scheduling.problem",
    "scheduling.arrays",
    "scheduling.catalog.minvalues",
    "scheduling.catalog.launchoptions",
    "scheduling.placement.domains",
    "scheduling.placement.eligibility",
    "scheduling.pods.groups",
    "scheduling.solver",
    "scheduling.placement.placer",
    "scheduling.packing.purchasing",
    "scheduling.packing.formulation",
    "scheduling.packing.problem",
    "scheduling.packing.packer",
    "scheduling.nodeclaims",
    "scheduling.results",
    "reconcilers.provisioning.provisioner",
    "reconcilers.provisioning.assignment",
    "reconcilers.newnodes.writer",
    "reconcilers.newnodes.claims",
    "aws.launching.launcher",
    "cloudprovider.compatibility",
)
"""The modules that have the request in hand, in the order of the path. More than 27 are too many to
follow: before a change adds one, simplify the path."""

ONCE = ("amount", "in_resize", "parsed_requests", "_signature", "_pod_class", "format_quantity")
"""Functions that read the request, or write it, and that a pod needs only once."""


@pytest.fixture(scope="module")
def families() -> Collection[str]:
    """Return one family: the profiler takes as long as there are instance types."""
    return ["m5"]


class Events:
    """An API server that lists no pod, and whose watch has these lines."""

    def __init__(self, *lines: bytes) -> None:
        self._lines = lines

    async def pages(self, kind: Kind[Any]) -> AsyncGenerator[decoding.Page[Any], None]:
        yield decoding.Page(decoding.ListMeta(resource_version="7"), [])

    async def stream(
        self, kind: Kind[Any], params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        for line in self._lines:
            yield line
        await asyncio.Event().wait()


class SameProcess:
    """Runs the functions of the solver's process in this process."""

    async def solve_all(self, calls: Iterator[Any], *, seconds: float) -> Any:
        return [function(*arguments) for function, arguments in calls][-1]


def has_request(value: object, levels: int = LEVELS) -> bool:
    """Whether a value is the request, or has it at most so many levels down."""
    match value:
        case bool():
            return False
        case str():
            return QUANTITY in value
        case bytes() | msgspec.Raw():
            return QUANTITY.encode() in bytes(value)
        case int() | float():
            return value in (MILLICORES, MILLICORES / 1000)
        case np.ndarray():
            return value.dtype.kind in "fiu" and bool((value == MILLICORES).any())
    return levels > 0 and any(has_request(part, levels - 1) for part in parts(value))


def parts(value: object) -> list[object]:
    """Return what a collection or a value object contains."""
    match value:
        case Mapping():
            return list(value.values())
        case list() | tuple() | set() | frozenset():
            return list(value)
        case msgspec.Struct():
            return [getattr(value, name) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value):
        return [getattr(value, each.name, None) for each in dataclasses.fields(value)]
    return []


class Trace:
    """The functions of the controller that take or return the request, and their calls."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.calls: Counter[str] = Counter()
        """How often each function took the request, by its name."""

    def __enter__(self) -> Trace:
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _look(self, frame: FrameType, event: str, result: object) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith("controller.") or module == "controller.apiserver.fake":
            return
        code = frame.f_code
        if event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            given = [frame.f_locals.get(name) for name in names if name != "self"]
            if any(map(has_request, given)):
                self.calls[code.co_name] += 1
                self.modules.add(module.removeprefix("controller."))
        elif event == "return" and has_request(result):
            self.modules.add(module.removeprefix("controller."))
        if event == "call" and code.co_name == "in_resize":
            self.calls["in_resize"] += 1


class Scenario:
    """A controller that schedules and launches on request, on the test cloud."""

    def __init__(self, provider: AWSCloudProvider) -> None:
        self.world = world = World()
        cloud = OverlaidCloud(provider, world.cluster)
        world.ports = dataclasses.replace(
            world.ports, cloud=MeteredCloud(cloud, world.metrics, Market())
        )
        self.provisioner = Provisioner(
            ports=world.ports,
            solve=TimedSolve(
                solver=WorldSolver(SameProcess()),  # type: ignore[arg-type]
                spreads=DefaultSpreads((), world.cluster),
                settings=Settings(),
                time_limit=timedelta(seconds=10),
            ),
            batch_window=BatchWindow(SHORT, SHORT),
            nomination=timedelta(seconds=20),
            registration_backoff=RegistrationBackoff(world.ports, world.registrations),
        )
        self.lifecycle = make_lifecycle(world, Unprepared())
        self.watches = Watches(world.api, world.cluster)

    async def round(self) -> None:
        """Run the provisioner once."""
        self.provisioner.batch_window.nudge("changed")
        await self.provisioner.run_once()

    async def watch(self, pod: Pod) -> None:
        """Read the events of a pod: it is created, and then found unschedulable."""
        created = changed(pod, status={"conditions": []}, metadata={"resource_version": "0"})
        events = {"ADDED": created, "MODIFIED": pod}
        lines = [
            msgspec.json.encode({"type": type_, "object": to_wire(seen)})
            for type_, seen in events.items()
        ]
        async for change in watching.follow(Events(*lines), POD):
            self.watches.take(POD, change)
            if change.type == "MODIFIED":
                return


async def test_a_cpu_request_passes_only_these_modules_and_is_read_once(
    provider: AWSCloudProvider, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A cluster that this process has received would be in the way of other tests of solvers.
    monkeypatch.setattr(solving, "_CACHES", solving._Caches())
    scenario = Scenario(provider)
    world = scenario.world
    world.seed(await ready(provider), make_nodepool())
    await scenario.round()  # reads the instance types, as before the first pod
    pod = make_pod("pod", requests={"cpu": QUANTITY, "memory": "3Gi"})

    with Trace() as trace:
        await scenario.watch(pod)
        await scenario.round()
    world.api.seed(pod)
    world.see()
    (claim,) = world.claims()
    with trace:
        await scenario.lifecycle.reconcile(claim.metadata.name)

    assert len(region.instances()) == 1
    assert trace.modules == set(PATH)
    assert len(PATH) <= 28
    assert {name: trace.calls[name] for name in ONCE} == dict.fromkeys(ONCE, 1)
    assert trace.calls["vector"] == 2, "one row of the pod, and one of its node's total"
