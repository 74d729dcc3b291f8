"""An in-memory cluster and cloud, with a clock that a test advances."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import is_
from typing import Any

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import NODE_POOL, Kind
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import KubernetesObject
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.taints import Taint
from controller.apiserver.fake import Body, FakeApiServer
from controller.apiserver.port import ApiServer, Change
from controller.cloudprovider.fake import FakeCloud
from controller.cloudprovider.provider import CloudProvider, Instance
from controller.reconcilers.clock import Clock
from controller.reconcilers.interruption.handler import NoticeHandler
from controller.reconcilers.interruption.listener import Listener, StatusListener
from controller.reconcilers.newnodes.registrationbackoff import RegistrationBackoff
from controller.reconcilers.nodeclaim.finalization import Finalization
from controller.reconcilers.nodeclaim.lifecycle import Lifecycle, NodePreparation
from controller.reconcilers.ports import Ports
from controller.state.cluster import MIRRORED, Cluster
from controller.state.registrations import Registrations
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import Metrics
from tests.builders import changed, make_node, make_nodeclaim, make_nodepool


def make_ports(
    api: ApiServer, cluster: Cluster, clock: Clock, cloud: CloudProvider | None = None
) -> Ports:
    """Return the ports of reconcilers that act on an API server, by default with a fake cloud."""
    return Ports(
        api=api,
        cloud=cloud or FakeCloud(clock=clock),
        cluster=cluster,
        recorder=Recorder(api, clock),
        metrics=Metrics(),
        clock=clock,
    )


class World:
    """The fakes, the controller's state of the cluster, and methods for changes from outside."""

    def __init__(self, *features: Kind[Any]) -> None:
        """Watch the kinds of these features, in addition to those that are always watched."""
        self.now = datetime(2026, 11, 21, 12, tzinfo=UTC)
        self.api = FakeApiServer(self.clock)
        self.cloud = FakeCloud(clock=self.clock)
        self.cluster = Cluster((*MIRRORED, *features))
        self.ports = make_ports(self.api, self.cluster, self.clock, self.cloud)
        self.metrics, self.recorder = self.ports.metrics, self.ports.recorder
        self._seen: dict[Kind[Any], list[Body]] = {}
        self.registrations = Registrations()
        self.registration_backoff = RegistrationBackoff(self.ports, self.registrations)

    def clock(self) -> datetime:
        return self.now

    def pass_time(self, **duration: float) -> None:
        self.now += timedelta(**duration)

    def seed(self, *objects: KubernetesObject) -> None:
        self.api.seed(*objects)
        self.see()

    def see(self) -> None:
        """Deliver all objects of kinds with changes to the controller's state, as watches would."""
        for kind in self.cluster.mirrored:
            stored = self.api.bodies(kind)  # a write stores a new body
            seen = self._seen.get(kind)
            if seen is None or len(seen) != len(stored) or not all(map(is_, seen, stored)):
                self._seen[kind] = stored
                self._see(kind)

    def _see(self, kind: Kind[KubernetesObject]) -> None:
        self.cluster.apply(kind, Change("RESET"))
        for value in self.api.objects(kind):
            self.cluster.apply(kind, Change("ADDED", value))
        self.cluster.apply(kind, Change("SYNCED"))

    def claim(self, name: str) -> NodeClaim | None:
        return self.api.find(kinds.NODE_CLAIM, name)

    def is_leaving(self, name: str) -> bool:
        """Whether a NodeClaim is being deleted, or is gone."""
        claim = self.claim(name)
        return claim is None or claim.metadata.is_deleting

    def node(self, name: str) -> Node | None:
        return self.api.find(kinds.NODE, name)

    def claims(self) -> list[NodeClaim]:
        return self.api.objects(kinds.NODE_CLAIM)

    def instance_of(self, claim: NodeClaim) -> Instance:
        return self.cloud.instances_by_id[claim.status.provider_id]

    def join(self, claim: NodeClaim, *, ready: bool = True, taints: Sequence[Taint] = ()) -> Node:
        """Register a node for the NodeClaim's instance, as its kubelet would."""
        ready_now = Condition(type="Ready", status="True" if ready else "False", reason="Kubelet")
        node = make_node(
            f"node-of-{claim.metadata.name}",
            provider_id=claim.status.provider_id,
            taints=[Taint(key=labels.UNREGISTERED_TAINT, effect="NoExecute"), *taints],
            conditions=[ready_now],
            status={"capacity": claim.status.capacity, "allocatable": claim.status.allocatable},
        )
        node = changed(node, metadata={"labels": {}})
        self.seed(node)
        return node

    async def events(self, reason: str) -> list[str]:
        """Return the messages of all events with this reason."""
        await self.recorder.flush()
        return [e.message for e in self.api.objects(kinds.EVENT) if e.reason == reason]


class Unprepared:
    """A node preparation that does nothing."""

    async def on_launch(self, claim: NodeClaim) -> None:
        """Do nothing."""

    async def on_join(self, claim: NodeClaim, node: Node) -> bool:
        """Return at once: no node is held back."""
        return False

    async def open_if_ready(self, node: Node) -> None:
        """Do nothing."""


async def launched(world: World, lifecycle: Lifecycle, **spec: Any) -> NodeClaim:
    """Create such a NodeClaim and its NodePool, launch it and return it."""
    if world.cluster.get(NODE_POOL, "default") is None:
        world.seed(make_nodepool())
    world.seed(make_nodeclaim(spec=spec))
    await lifecycle.reconcile("claim")
    claim = world.claim("claim")
    assert claim is not None
    return claim


def make_handler(world: World) -> NoticeHandler:
    """Return the handler of the interruption notices of a world's cloud."""
    return NoticeHandler(world.ports, world.registrations)


def make_listener(world: World) -> Listener:
    """Return the reader of the interruption queue of a world's cloud."""
    return Listener(world.ports, make_handler(world))


def make_status_listener(world: World) -> StatusListener:
    """Return the reader of the EC2 status checks of a world's cloud."""
    return StatusListener(world.ports, make_handler(world))


def make_lifecycle(world: World, preparation: NodePreparation) -> Lifecycle:
    """Return the lifecycle reconciler of a world's NodeClaims, including termination."""
    return Lifecycle(
        ports=world.ports,
        finalization=Finalization(world.ports),
        preparation=preparation,
        registrations=world.registrations,
    )
