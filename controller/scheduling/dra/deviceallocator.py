"""The device allocation of one solve. No claim is read before a pod of the solve claims devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from controller.apis.kubernetes.pods import Pod
from controller.apis.labels import REQUESTED_DRA_DRIVERS
from controller.apis.wording import with_count
from controller.constraints.requirements import Requirements, contradiction, text
from controller.scheduling.arrays import Indices
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.dra.claims import DeviceClaims
from controller.scheduling.dra.nodes import DeviceNodes
from controller.scheduling.pods.devicerequests import DeviceRequests
from controller.scheduling.pods.groups import PendingGroup, PodGroup
from controller.scheduling.results import MAX_REASONS, PoolCause
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot


class DeviceAllocator:
    """The devices of one solve, and their allocation to claims."""

    def __init__(self, pods: Sequence[Pod], snapshot: Snapshot, catalog: Catalog) -> None:
        self._pods, self._snapshot, self._catalog = pods, snapshot, catalog
        self.has_claims = False
        """Whether a pod of the solve claims devices."""

    @cached_property
    def claims(self) -> DeviceClaims:
        """The claims of the pods, and the devices allocated to them."""
        self.has_claims = True
        return DeviceClaims(self._pods, self._snapshot, self._catalog)

    @cached_property
    def nodes(self) -> DeviceNodes:
        """The devices of nodes that can be launched."""
        return DeviceNodes(self.claims, self._catalog)

    def fork(self) -> DeviceAllocator:
        """Return an independent copy of the devices and their allocations."""
        fork = DeviceAllocator(self._pods, self._snapshot, self._catalog)
        if self.has_claims:
            fork.has_claims = True
            fork.claims = self.claims.fork()
            fork.nodes = self.nodes.fork(fork.claims)
        return fork

    @property
    def queries(self) -> Sequence[Requirements]:
        """The requirements about devices that variants must distinguish."""
        return self.nodes.queries if self.has_claims else ()

    def fitting_counts(
        self, pending: PendingGroup, nodes: Sequence[StateNode], fitting: Indices
    ) -> Indices:
        """Return the number of pods that fit on each node, limited by its devices.

        `fitting` is that number without regard to devices (nodes).
        """
        device_requests = pending.pod_class.device_requests
        if device_requests is None:
            return fitting
        return self.claims.fitting_counts(
            device_requests, [node.name for node in nodes], fitting, pending.number
        )

    def put(self, pending: PendingGroup, node: StateNode, most: int) -> int:
        """Allocate devices to at most `most` pods placed on a node.

        Returns the number of pods that were served; all of them if they claim no devices.
        """
        device_requests = pending.pod_class.device_requests
        return (
            most if device_requests is None else self.claims.put(device_requests, node.name, most)
        )

    def release_last(self, pending: PendingGroup, node: StateNode, count: int) -> None:
        """Release the devices of the last `count` pods, which leave the node again."""
        if pending.pod_class.device_requests is not None:
            self.claims.release_last(pending.pod_class.device_requests, node.name, count)

    def release(self, pod_group: PodGroup) -> None:
        """Release the devices of a pod group for which no node was found."""
        if self.has_claims:
            self.nodes.release(pod_group)

    def annotations(self, pod_groups: Iterable[PodGroup]) -> dict[str, str]:
        """Return the NodeClaim annotation that names the drivers of the allocated devices.

        These drivers must publish their devices before the node is initialized.
        """
        drivers = self.nodes.drivers(pod_groups) if self.has_claims else ()
        return {REQUESTED_DRA_DRIVERS: ",".join(drivers)} if drivers else {}

    def causes(self, device_requests: DeviceRequests) -> tuple[str, ...]:
        """Return, per NodePool, why none of its instance types provides the devices.

        NodePools with a suitable instance type are left out.
        """
        error = self.claims.errors.get(device_requests.signature)
        causes = [f"devices: {error}"] if error else []
        for reach in device_requests.reach:
            if reach.node:
                causes.append(f"the pod's devices are on node {reach.node}, which cannot run it")
                return tuple(causes)
        found = contradiction(*(dict(reach.labels) for reach in device_requests.reach))
        if found is not None:
            key, one, other = found
            sides = f"nodes with {key} {text(one)}, others only from nodes with {key} {text(other)}"
            return (*causes, f"some of the pod's devices are accessible only from {sides}")
        for number, pool in enumerate(self._catalog.pools):
            rows = set(self._catalog.row_of[self._catalog.pool_of == number].tolist())
            reasons = Counter(self.nodes.cause(device_requests, row) for row in sorted(rows))
            if rows and not reasons[""]:
                ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS]
                listed = ", ".join(f"{count} {reason}" for reason, count in ranked)
                types = with_count(len(rows), "instance type")
                causes.append(PoolCause.of(pool.name, f"{types}: {listed}"))
        for key in device_requests.common:
            location = self.claims.shared_claim_locations.get(key)
            if location is not None:
                node = location if isinstance(location, str) else location.node
                causes.append(
                    f"ResourceClaim {key} is in use on {node or 'devices that are not accessible'}"
                )
        return tuple(causes)
