"""All that a solve asks about devices. Nothing is read before a pod claims some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from controller.apis.labels import REQUESTED_DRA_DRIVERS
from controller.apis.pods import Pod
from controller.constraints.requirements import Requirements
from controller.scheduling.arrays import Indices, Matrix
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.dra.claims import DeviceClaims
from controller.scheduling.dra.nodes import DeviceNodes
from controller.scheduling.pods.classes import PodClass
from controller.scheduling.pods.devicerequests import DeviceRequests
from controller.scheduling.pods.groups import PendingGroup, PodGroup
from controller.scheduling.results import MOST_REASONS
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot


class DeviceAllocator:
    """The devices of one solve, and who has claimed which."""

    def __init__(self, pods: Sequence[Pod], snapshot: Snapshot, catalog: Catalog) -> None:
        self._pods, self._snapshot, self._catalog = pods, snapshot, catalog
        self.asked = False
        """Whether a pod claims devices."""

    @cached_property
    def _claims(self) -> DeviceClaims:
        self.asked = True
        return DeviceClaims(self._pods, self._snapshot, self._catalog)

    @cached_property
    def _nodes(self) -> DeviceNodes:
        return DeviceNodes(self._claims, self._catalog)

    def fork(self) -> DeviceAllocator:
        """Return the same devices, given out apart from these."""
        fork = DeviceAllocator(self._pods, self._snapshot, self._catalog)
        if self.asked:
            fork.asked = True
            fork._claims = self._claims.fork()
            fork._nodes = self._nodes.fork(fork._claims)
        return fork

    def split_by_claims(self, pod_class: PodClass) -> tuple[list[PodClass], dict[str, str]]:
        """Part a pod class by the claims of its pods; with those that cannot run yet, and why."""
        return self._claims.split_by_claims(pod_class)

    @property
    def queries(self) -> Sequence[Requirements]:
        """What variants must tell apart for the sake of devices."""
        return self._nodes.queries if self.asked else ()

    def alternatives(self, device_requests: DeviceRequests) -> tuple[Requirements, ...]:
        """Return what a new node must be for one such pod; nothing when there can be none."""
        return self._nodes.alternatives(device_requests)

    def room(self, pending: PendingGroup, nodes: Sequence[StateNode], room: Indices) -> Indices:
        """Return how many of the pods each node has devices for, of those it has room for."""
        device_requests = pending.pod_class.device_requests
        if device_requests is None:
            return room
        return self._claims.room(
            device_requests, [node.name for node in nodes], room, pending.number
        )

    def put(self, pending: PendingGroup, node: StateNode, most: int) -> int:
        """Give devices to at most so many pods that go to a node; return how many got theirs."""
        device_requests = pending.pod_class.device_requests
        return (
            most if device_requests is None else self._claims.put(device_requests, node.name, most)
        )

    def take_off(self, pending: PendingGroup, node: StateNode, count: int) -> None:
        """Give back what the last so many pods were given that leave a node again."""
        if pending.pod_class.device_requests is not None:
            self._claims.take_off(pending.pod_class.device_requests, node.name, count)

    def units(
        self, pod_groups: Sequence[PodGroup], variants: Variants, room: Matrix
    ) -> tuple[list[PodGroup], list[PodGroup]]:
        """Bring pod groups together into units (see `nodes`); with those that no node can hold."""
        return self._nodes.units(pod_groups, variants, room)

    def axes(self, pod_groups: Sequence[PodGroup], rows: Indices) -> tuple[Matrix, Matrix]:
        """Return how many devices of each kind pod groups ask for, and how many rows have."""
        return self._nodes.axes(pod_groups, rows)

    def release(self, pod_group: PodGroup) -> None:
        """Give back what was given to a pod group that found no node."""
        if self.asked:
            self._nodes.release(pod_group)

    def annotations(self, pod_groups: Iterable[PodGroup]) -> dict[str, str]:
        """Return what a claim says of the drivers that must show their devices first."""
        drivers = self._nodes.drivers(pod_groups) if self.asked else ()
        return {REQUESTED_DRA_DRIVERS: ",".join(drivers)} if drivers else {}

    def causes(self, device_requests: DeviceRequests) -> tuple[str, ...]:
        """Return, per pool, why none of its types has the devices; pools with such a type are
        left out.
        """
        trouble = self._claims.troubles.get(device_requests.signature)
        causes = [f"devices: {trouble}"] if trouble else []
        for reach in device_requests.reach:
            if reach.node:
                causes.append(f"its devices are on node {reach.node}, which cannot take it")
                return tuple(causes)
        for number, pool in enumerate(self._catalog.pools):
            rows = set(self._catalog.row_of[self._catalog.pool_of == number].tolist())
            reasons = Counter(self._nodes.lacking(device_requests, row) for row in sorted(rows))
            if rows and not reasons[""]:
                ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[
                    :MOST_REASONS
                ]
                told = ", ".join(f"{count} {reason}" for reason, count in ranked)
                causes.append(f"NodePool {pool.name}: {len(rows)} types: {told}")
        for key in device_requests.common:
            location = self._claims.shared_claim_locations.get(key)
            if location is not None:
                place = location if isinstance(location, str) else location.node
                causes.append(
                    f"resource claim {key} is in use on {place or 'devices out of reach'}"
                )
        return tuple(causes)
