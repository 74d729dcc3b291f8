"""The simulated cluster: its nodes and pods, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import msgspec

from bench.parity import worlds
from bench.parity.worlds import Object, World
from bench.trace.workloads import Member, Size, Workload
from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import (
    CONSOLIDATABLE,
    DISRUPTION_REASON,
    DRIFTED,
    INITIALIZED,
    LAUNCHED,
    REGISTERED,
)
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.workloads import DaemonSet, PodDisruptionBudget
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.resources import CPU, MEMORY, PODS, parse_resources
from controller.disruption.applying import launched_node
from controller.disruption.methods.rollout import AMI_DRIFT
from controller.disruption.pods import DISRUPTED
from controller.offline.instancetypes import from_rows
from controller.scheduling.results import NewNode
from controller.state.nodes import StateNode
from controller.state.overlays import with_fee
from controller.state.snapshot import Snapshot

START = datetime(2026, 1, 5, tzinfo=UTC)
"""Start time of every trace: a Monday."""

Market = tuple[str, str, str]
"""What an offering belongs to: instance type, zone and capacity type."""


def moment(now: float) -> datetime:
    """Return a time of the trace, in seconds, as a datetime."""
    return START + timedelta(seconds=now)


FURNISHED = 180.0
"""Seconds of a trace in which the pods that it begins with are bound.

A pod that is bound by then counts as having started a week before.
"""

LONG_AGO = 7 * 24 * 3600.0


@dataclass(eq=False)
class Node:
    """One instance.

    It is `up` once it accepts pods, `leaving` once it is marked for disruption, and `draining` once
    its NodeClaim is deleted. Prices are in $/h, times in seconds of the trace. The parameter `wait`
    of methods is the NodePool's `consolidateAfter`, None for `Never`.
    """

    state: StateNode
    """The state of the node while it is up and has no other condition."""

    market: Market
    image: str
    price: float
    launched: float
    allocatable: Size
    """Its allocatable capacity, less the requests of daemons."""

    cpu: int
    memory: int
    slots: int
    """Remaining number of pods that fit on it; `cpu` and `memory` are the remaining capacity."""

    up: bool = False
    leaving: bool = False
    draining: bool = False
    interrupted: bool = False
    ended: float | None = None
    drifted: float | None = None
    initialized: float | None = None
    last_pod_event: float | None = None
    nominated_until: float = 0.0
    pods: dict[str, Member] = field(default_factory=dict)
    promised: dict[str, Member] = field(default_factory=dict)
    """Pending pods that are nominated for it, by key."""

    _view: tuple[tuple[object, ...], StateNode, Object | None, Object] | None = None

    @property
    def name(self) -> str:
        """The name of the Node and of its NodeClaim."""
        return self.state.name

    @property
    def pool(self) -> str:
        """The name of the NodePool."""
        return self.state.node_pool

    @property
    def zone(self) -> str:
        """The zone of the instance."""
        return self.market[1]

    @property
    def open(self) -> bool:
        """Whether the node accepts new pods."""
        return self.up and not self.leaving

    def quiet_at(self, wait: timedelta | None) -> float | None:
        """Return when the node will have had no pod changes for `wait`; None if never."""
        if self.initialized is None or wait is None:
            return None
        since = self.initialized if self.last_pod_event is None else self.last_pod_event
        return since + wait.total_seconds()

    def is_quiet(self, now: float, wait: timedelta | None) -> bool:
        """Whether the node has had no pod changes for `wait`; False if that is None."""
        quiet_at = self.quiet_at(wait)
        return quiet_at is not None and quiet_at <= now

    def state_node(self, now: float, wait: timedelta | None) -> StateNode:
        """Return the node as the controller sees it.

        `wait` is `consolidateAfter` of its NodePool; None stands for `Never`.
        """
        return self._as_seen(now, wait)[1]

    def wires(self, now: float, wait: timedelta | None) -> tuple[Object | None, Object]:
        """Return the Node and the NodeClaim as JSON-ready values.

        The Node is None if the instance has not joined yet.
        """
        return self._as_seen(now, wait)[2:]

    def _as_seen(
        self, now: float, wait: timedelta | None
    ) -> tuple[tuple[object, ...], StateNode, Object | None, Object]:
        consolidatable = self.is_quiet(now, wait)
        key = (self.up, self.leaving, consolidatable, self.drifted, self.last_pod_event,
               now < self.nominated_until)  # fmt: skip
        if self._view is None or self._view[0] != key:
            self._view = (
                key,
                *self._render(consolidatable, nominated=now < self.nominated_until),
            )
        return self._view

    def _render(
        self, consolidatable: bool, *, nominated: bool
    ) -> tuple[StateNode, Object | None, Object]:
        node, claim = self.state.node, self.state.claim
        assert node is not None
        assert claim is not None
        since = {LAUNCHED: self.launched}
        if self.initialized is not None:
            since |= dict.fromkeys((REGISTERED, INITIALIZED, "Ready"), self.initialized)
        if consolidatable:
            since[CONSOLIDATABLE] = self.launched
        if self.drifted is not None:
            since[DRIFTED] = self.drifted
        if self.leaving:
            since[DISRUPTION_REASON] = self.launched
        found = [
            Condition(
                type=one,
                status="True",
                reason=AMI_DRIFT if one == DRIFTED else one,
                last_transition_time=moment(at),
            )
            for one, at in since.items()
        ]
        event = None if self.last_pod_event is None else moment(self.last_pod_event)
        status = msgspec.structs.replace(
            claim.status, conditions=found, last_pod_event_time=event,
            node_name=self.name if self.up else "",
            image_id=self.image,
        )  # fmt: skip
        claim = msgspec.structs.replace(claim, status=status)
        if not self.up:
            births = (labels.REGISTERED, labels.INITIALIZED, labels.HOSTNAME)
            kept = {k: v for k, v in claim.metadata.labels.items() if k not in births}
            metadata = msgspec.structs.replace(claim.metadata, labels=kept)
            claim = msgspec.structs.replace(claim, metadata=metadata)
        elif self.leaving:
            taints = [*node.spec.taints, DISRUPTED]
            node = msgspec.structs.replace(
                node, spec=msgspec.structs.replace(node.spec, taints=taints)
            )
        state = StateNode(
            node=node if self.up else None, claim=claim, deleting=self.leaving, nominated=nominated
        )
        return state, self._node(state, nominated=nominated), self._claim(state)

    def _node(self, state: StateNode, *, nominated: bool) -> Object | None:
        if state.node is None:
            return None
        written: Object = to_wire(state.node)
        if nominated:
            # A nomination is in the controller's memory and protects the node from disruption.
            written["metadata"]["annotations"] = {labels.DO_NOT_DISRUPT: "true"}
        return _as_deleting(written) if self.leaving else written

    def _claim(self, state: StateNode) -> Object:
        written: Object = to_wire(state.claim)
        return _as_deleting(written) if self.leaving else written


def _as_deleting(written: Object) -> Object:
    metadata = {
        **written["metadata"],
        "deletionTimestamp": written["metadata"]["creationTimestamp"],
        "finalizers": [labels.TERMINATION_FINALIZER],
    }
    return {**written, "metadata": metadata}


@dataclass(eq=False, kw_only=True)
class Cluster:
    """The whole state of the cluster at one simulated moment."""

    types: Sequence[Object]
    """The instance types for sale, in the format of recorded worlds."""

    pools: Sequence[Object]
    node_price: float = 0.0
    """What a node costs besides its instance, in $/h. Joiner counts it, Karpenter does not."""

    workloads: dict[str, Workload] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    waiting: dict[str, Member] = field(default_factory=dict)
    closed: set[Market] = field(default_factory=set)
    """Offerings that are unavailable now."""

    now: float = 0.0
    revision: int = 0
    """Incremented with every change that a controller would observe."""

    cost: float = 0.0
    """Cost of the nodes that have ended, in $."""

    hours: float = 0.0
    """Total lifetime of the nodes that have ended, in hours."""

    daemon_set: Object = field(default_factory=worlds.daemon_set)
    made: int = 0
    image: int = 1
    """Version of the AMI that new nodes run."""

    def __post_init__(self) -> None:
        self.node_pools = {
            one["metadata"]["name"]: msgspec.convert(one, NodePool) for one in self.pools
        }
        self._daemons = msgspec.convert(self.daemon_set, DaemonSet)
        asked = self._daemons.spec.template.spec.containers[0].resources.requests
        self._daemon = parse_resources(asked)
        self._bought = with_fee(from_rows(list(self.types)).all, self.node_price)
        self._offer: tuple[frozenset[Market], tuple[InstanceType, ...], list[Object]] | None = None
        self.waits = {
            name: durations.parse(pool.spec.disruption.consolidate_after)
            for name, pool in self.node_pools.items()
        }

    # Instance types and offerings.

    def offer(self) -> tuple[InstanceType, ...]:
        """Return the instance types, with the offerings that are unavailable now marked so."""
        return self._current_offer()[1]

    def _current_offer(self) -> tuple[frozenset[Market], tuple[InstanceType, ...], list[Object]]:
        closed = frozenset(self.closed)
        if self._offer is None or self._offer[0] != closed:
            types = tuple(
                replace(
                    one,
                    offerings=tuple(self._with_availability(one.name, o) for o in one.offerings),
                )
                for one in self._bought
            )
            rows = [
                {**row, "offerings": [
                    {**o, "available": o["available"] and (
                        row["name"], o["requirements"][labels.ZONE],
                        o["requirements"][labels.CAPACITY_TYPE]) not in closed}
                    for o in row["offerings"]
                ]}
                for row in self.types
            ]  # fmt: skip
            self._offer = closed, types, rows
        return self._offer

    def _with_availability(self, name: str, offering: Offering) -> Offering:
        market = name, offering.zone, offering.capacity_type
        return replace(offering, available=False) if market in self.closed else offering

    # Nodes.

    def launch(self, new: NewNode, replaces: Iterable[str] = ()) -> Node:
        """Launch and return the cheapest node that `new` allows; it is not up yet.

        Its NodeClaim records the nodes that it `replaces`, as a controller's does.

        Raises:
            ValueError: every allowed offering is unavailable.

        """
        self.made += 1
        pool = self.node_pools[new.node_pool]
        name = f"node-{self.made:05d}"
        state = launched_node(name, new, pool, self.offer(), moment(self.now))
        if (replaced := sorted(replaces)) and state.claim is not None:
            annotations = {**state.claim.metadata.annotations, labels.REPLACES: ",".join(replaced)}
            metadata = msgspec.structs.replace(state.claim.metadata, annotations=annotations)
            claim = msgspec.structs.replace(state.claim, metadata=metadata)
            state = replace(state, claim=claim)
        carried = state.labels
        market = (
            carried[labels.INSTANCE_TYPE], carried[labels.ZONE], carried[labels.CAPACITY_TYPE]
        )  # fmt: skip
        instance_type = next(one for one in self.offer() if one.name == market[0])
        price = next(
            one.price
            for one in instance_type.offerings
            if (one.zone, one.capacity_type) == market[1:]
        )
        allocatable = instance_type.allocatable
        size = Size(
            allocatable[CPU] - self._daemon[CPU], allocatable[MEMORY] - self._daemon[MEMORY]
        )
        node = Node(
            state,
            market,
            f"ami-{self.image}",
            price,
            self.now,
            size,
            cpu=size.cpu,
            memory=size.memory,
            slots=allocatable[PODS] // 1000 - 1,
        )
        self.nodes[name] = node
        self.revision += 1
        return node

    def open(self, node: Node) -> None:
        """Let a node accept pods."""
        node.up, node.initialized = True, self.now
        self.revision += 1

    def end(self, node: Node) -> None:
        """Terminate a node; it must not have pods."""
        assert not node.pods
        node.ended = self.now
        self.cost += node.price * (self.now - node.launched) / 3600
        self.hours += (self.now - node.launched) / 3600
        del self.nodes[node.name]
        self.revision += 1

    @property
    def rate(self) -> float:
        """The total price of all current nodes, in $/h."""
        return sum(one.price for one in self.nodes.values())

    def totals(self) -> tuple[float, float]:
        """Return the cost in $ and the node-hours until now."""
        running = [(one.price, self.now - one.launched) for one in self.nodes.values()]
        return (
            self.cost + sum(price * life for price, life in running) / 3600,
            self.hours + sum(life for _, life in running) / 3600,
        )

    # Pods.

    def bind(self, member: Member, node: Node) -> None:
        """Bind a pending pod to a node."""
        del self.waiting[member.key]
        self.nominate(member, None)
        size = member.workload.size
        node.cpu -= size.cpu
        node.memory -= size.memory
        node.slots -= 1
        node.pods[member.key] = member
        node.last_pod_event = self.now
        member.node = node.name
        # Pods that a trace begins with count as having started long ago.
        started = self.now if self.now > FURNISHED else self.now - LONG_AGO
        status = msgspec.structs.replace(
            member.seen.status, phase="Running", conditions=[], start_time=moment(started)
        )
        spec = msgspec.structs.replace(member.seen.spec, node_name=node.name)
        member.see(spec=spec, status=status)
        self.revision += 1

    def nominate(self, member: Member, node: Node | None) -> None:
        """Set the node for which a pending pod is nominated, or clear it."""
        if member.nominated and (before := self.nodes.get(member.nominated)) is not None:
            before.promised.pop(member.key, None)
        member.nominated = node.name if node is not None else ""
        if node is not None:
            node.promised[member.key] = member

    def leave(self, member: Member) -> None:
        """Mark a pod as terminating: it keeps its capacity until it is gone."""
        member.leaving, member.ready = True, False
        del member.workload.pods[member.name]
        self.revision += 1
        if not member.node:
            del self.waiting[member.key]
            self.nominate(member, None)
            return
        metadata = msgspec.structs.replace(
            member.seen.metadata, deletion_timestamp=moment(self.now), finalizers=["kubernetes"]
        )
        member.see(metadata=metadata)
        self.nodes[member.node].last_pod_event = self.now

    def vanish(self, member: Member) -> None:
        """Release the capacity of a pod that has terminated."""
        node = self.nodes[member.node]
        del node.pods[member.key]
        size = member.workload.size
        node.cpu += size.cpu
        node.memory += size.memory
        node.slots += 1
        node.last_pod_event = self.now
        self.revision += 1

    def running_pods(self) -> Iterator[Member]:
        """Yield the pods that occupy capacity, including terminating ones."""
        for node in self.nodes.values():
            yield from node.pods.values()

    # The cluster as a controller sees it.

    def snapshot(self) -> Snapshot:
        """Return the cluster as a snapshot for the engine."""
        types = self.offer()
        return Snapshot(
            nodes=tuple(
                one.state_node(self.now, self.waits[one.pool]) for one in self.nodes.values()
            ),
            pods=tuple(one.seen for one in self.running_pods()),
            node_pools=tuple(self.node_pools.values()),
            instance_types=dict.fromkeys(self.node_pools, types),
            daemon_sets=(self._daemons,),
            pod_disruption_budgets=tuple(self._budgets()),
        )

    def world(self, *, waiting: Iterable[Member] = (), without: Iterable[str] = ()) -> World:
        """Return the cluster as a world.

        The `waiting` pods are pending there even if they run, and the nodes in `without` are
        left out.
        """
        gone = frozenset(without)
        asked = {one.key: one for one in waiting}
        nodes = [one for one in self.nodes.values() if one.name not in gone]
        written = [one.wires(self.now, self.waits[one.pool]) for one in nodes]
        there = {one.name for one in nodes}
        return {
            "pods": [
                *(to_wire(one.as_pending()) if one.node else one.wire() for one in asked.values()),
                *(
                    one.wire()
                    for one in self.running_pods()
                    if one.key not in asked and one.node in there
                ),
            ],
            "nodes": [node for node, _ in written if node is not None],
            "nodeClaims": [claim for _, claim in written],
            "nodePools": list(self.pools),
            "daemonSets": [self.daemon_set],
            "podDisruptionBudgets": [to_wire(one) for one in self._budgets()],
            "instanceTypes": self._current_offer()[2],
        }

    def _budgets(self) -> Iterator[PodDisruptionBudget]:
        for workload in self.workloads.values():
            if (budget := workload.budget()) is not None:
                yield budget
