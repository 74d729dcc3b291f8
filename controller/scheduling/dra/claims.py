"""The claims of pods, and the devices of existing nodes that can be allocated to them.

The devices of an allocated claim are in use. If all pods that use the claim are leaving their
nodes, its devices count as free, and the claim can be allocated again.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from controller.apis import labels
from controller.apis.kubernetes.devices import ResourceClaim, ResourceSlice
from controller.apis.kubernetes.pods import Pod, PodResourceClaim
from controller.constraints.resources import parse_resources
from controller.scheduling.arrays import Indices
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.dra.allocation import Pick, allocate
from controller.scheduling.dra.devices import (
    AllocatableDevice,
    AllocatedDevices,
    Inventory,
    UsableDevices,
    expected_devices,
)
from controller.scheduling.pods.classes import PodClass
from controller.scheduling.pods.devicerequests import (
    EVERYWHERE,
    AllocationError,
    ClaimRequests,
    DeviceRequests,
    Reach,
    reach_of,
    read_claim,
)
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot

ClaimLocation = Reach | str
"""Where a shared claim can be used: within a reach, or on the new node of this description."""


@dataclass(slots=True)
class Allocations:
    """The devices allocated to `count` pods on one node, as picks (see `Pick`).

    `own` has, for each pod, the picks for the claims that only this pod uses. `shared` has the
    picks for each claim that the pods share, by the claim's key.
    """

    count: int = 0
    own: list[tuple[Pick, ...]] = field(default_factory=list)
    shared: dict[str, tuple[Pick, ...]] = field(default_factory=dict)

    @property
    def picks(self) -> list[Pick]:
        """All picks, of shared claims first."""
        return [pick for picks in (*self.shared.values(), *self.own) for pick in picks]


class DeviceClaims:
    """The claims of pending pods, and the devices that are free for them."""

    def __init__(self, pods: Sequence[Pod], snapshot: Snapshot, catalog: Catalog) -> None:
        """Read the claims of a solve's pods, and the existing allocations."""
        self._claims = {claim.metadata.key: claim for claim in snapshot.resource_claims}
        self._classes = {
            device_class.metadata.name: device_class for device_class in snapshot.device_classes
        }
        self._types = {instance_type.name: instance_type for instance_type in catalog.types}
        self._nodes = {node.name: node for node in snapshot.nodes if not node.deleting}
        self._pods = {pod.key: pod for pod in pods if pod.spec.resource_claims}
        self._leaving = _leaving_keys(self._pods.values(), snapshot.pods)
        expected = self._expected_pods(snapshot.pods)
        self._users = _users((*self._pods.values(), *expected))
        self.taint_rules = snapshot.device_taint_rules
        self.inventory = Inventory(
            (
                resource_slice
                for resource_slice in snapshot.resource_slices
                if self._is_on_staying_node(resource_slice)
            ),
            self.taint_rules,
        )
        self.allocated = self._allocated_before()
        self.shared_claim_locations: dict[str, ClaimLocation] = {}
        self.errors: dict[bytes, str] = {}
        """Per signature, the last error of an allocation. Too few devices are not an error."""
        self._read_claims: dict[bytes, ClaimRequests] = {}
        self._common: dict[str, ClaimRequests] = {}
        self._usable_known: dict[str, UsableDevices] = {}
        self._unservable: set[tuple[str, bytes]] = set()
        self._held: defaultdict[tuple[str, bytes], list[tuple[Pick, ...]]] = defaultdict(list)
        for pod in expected:
            self._expect(pod)

    def fork(self) -> DeviceClaims:
        """Return an independent copy of the claims and their allocations."""
        fork = copy.copy(self)
        fork.allocated = self.allocated.fork()
        fork.shared_claim_locations = dict(self.shared_claim_locations)
        fork.errors, fork._unservable = dict(self.errors), set(self._unservable)
        fork._held = defaultdict(list, {key: list(held) for key, held in self._held.items()})
        return fork

    def _expected_pods(self, pods: Iterable[Pod]) -> list[Pod]:
        """Return the pods with claims that are bound to, or nominated for, nodes that stay."""
        return [
            pod
            for pod in pods
            if pod.spec.resource_claims
            and pod.spec.node_name in self._nodes
            and pod.key not in self._pods
        ]

    def split_by_claims(self, pod_class: PodClass) -> tuple[list[PodClass], dict[str, str]]:
        """Split a class by its pods' claims; also return the pods that cannot run yet, and why.

        Pods with a claim template have claims of their own, some of which may be allocated already.
        """
        parts: defaultdict[bytes, list[str]] = defaultdict(list)
        device_requests: dict[bytes, DeviceRequests] = {}
        failed: dict[str, str] = {}
        for key in pod_class.keys:
            try:
                device_requests_of_pod = self._device_requests(self._pods[key])
            except ValueError as exc:
                failed[key] = str(exc)
                continue
            parts[device_requests_of_pod.signature].append(key)
            device_requests.setdefault(device_requests_of_pod.signature, device_requests_of_pod)
        return [
            replace(pod_class, keys=keys, device_requests=device_requests[signature])
            for signature, keys in parts.items()
        ], failed

    def fitting_counts(
        self, device_requests: DeviceRequests, names: Sequence[str], fitting: Indices, most: int
    ) -> Indices:
        """Return how many of the pods each node can take, limited by its devices.

        Args:
            device_requests: The claims of one pod.
            names: The names of the nodes (nodes).
            fitting: How many of the pods each node can take otherwise (nodes).
            most: The maximum number of pods to try per node.

        """
        limited = fitting.copy()
        for index in np.flatnonzero(fitting).tolist():
            limit = min(int(fitting[index]), most)
            allocations = self._on_node(names[index], device_requests, limit, self.allocated.fork())
            limited[index] = allocations.count
        return limited

    def put(self, device_requests: DeviceRequests, name: str, most: int) -> int:
        """Allocate devices to at most `most` pods placed on a node; return the number served."""
        allocations = self._on_node(name, device_requests, most, self.allocated)
        self.record_locations(allocations, Reach(name))
        self._held[(name, device_requests.signature)].extend(allocations.own)
        return allocations.count

    def release_last(self, device_requests: DeviceRequests, name: str, count: int) -> None:
        """Release the own claims of the last `count` pods with these requests on a node."""
        held = self._held[(name, device_requests.signature)]
        for picks in (held.pop() for _ in range(min(count, len(held)))):
            self.release(picks)

    def release(self, picks: Iterable[Pick]) -> None:
        """Mark the devices of these picks as free again."""
        for pick in picks:
            if pick.consumes:
                self.allocated.remove(pick.device, pick.share)
        # Nodes that could not serve some requests before may be able to now.
        self._unservable.clear()

    def record_locations(self, allocations: Allocations, location: ClaimLocation) -> None:
        """Record the nodes on which the shared claims of an allocation can be used."""
        for key, picks in allocations.shared.items():
            # A device that belongs to no node can be used from every node in its reach.
            devices = [pick.device for pick in picks]
            if all(device.is_published and not device.reach.node for device in devices):
                met = tuple(
                    sorted({part for device in devices for part in device.reach.labels}, key=str)
                )
                self.shared_claim_locations[key] = Reach(labels=met)
            else:
                self.shared_claim_locations[key] = location

    def serve(
        self,
        device_requests: DeviceRequests,
        usable: UsableDevices,
        allocated: AllocatedDevices,
        most: int,
        located: Iterable[str] = (),
    ) -> Allocations:
        """Allocate devices to at most `most` pods on one node and record them in `allocated`.

        Args:
            device_requests: The claims of one pod.
            usable: The devices that the node can use.
            allocated: The allocated devices, updated in place.
            most: The maximum number of pods.
            located: The keys of shared claims that are allocated already.

        Raises:
            AllocationError: a selector fails, or there are too many combinations to try.

        """
        allocations = Allocations()
        missing = [key for key in device_requests.common if key not in located]
        while allocations.count < most:
            if not missing and not device_requests.own:
                allocations.count = most
                break
            to_serve = [*(self._common[key] for key in missing), *device_requests.own]
            try:
                picks = allocate(to_serve, usable, allocated)
            except AllocationError:
                if allocations.count:
                    break  # The pods before this one are served.
                raise
            if picks is None:
                break
            for index, key in enumerate(missing):
                allocations.shared[key] = tuple(pick for pick in picks if pick.claim == index)
            allocations.own.append(tuple(pick for pick in picks if pick.claim >= len(missing)))
            allocations.count += 1
            missing = []
        return allocations

    def to_allocate(self, device_requests: DeviceRequests) -> list[ClaimRequests]:
        """Return the claims that are not allocated yet, shared claims first."""
        return [*(self._common[key] for key in device_requests.common), *device_requests.own]

    def usable(self, node: StateNode) -> UsableDevices:
        """Return the published and the expected devices that a node can use.

        The devices of its instance type are expected until the node is initialized. They are left
        out if their driver has already published devices of the node.
        """
        cached = self._usable_known.get(node.name)
        if cached is None:
            cached = self.inventory.on(node.name, _labels(node))
            if not node.initialized:
                published = {
                    device.driver for device in cached.devices if device.reach.node == node.name
                }
                expected = self.expected_devices(
                    node.labels.get(labels.INSTANCE_TYPE, ""), node.name
                )
                rest = tuple(device for device in expected if device.driver not in published)
                cached = UsableDevices(cached.devices + rest, cached.error)
            self._usable_known[node.name] = cached
        return cached

    def expected_devices(self, type_name: str, node: str) -> tuple[AllocatableDevice, ...]:
        """Return the devices that drivers will publish on a node of an instance type.

        The result is empty for an unknown type. `node` is the node in the keys of the devices.
        """
        instance_type = self._types.get(type_name)
        if instance_type is None:
            return ()
        return expected_devices(instance_type.dynamic_resources, node, self.taint_rules)

    def _on_node(
        self, name: str, device_requests: DeviceRequests, most: int, allocated: AllocatedDevices
    ) -> Allocations:
        """Allocate devices of an existing node to at most `most` pods, in `allocated`.

        An error is recorded in `errors`. A node that serves no pod is not searched again for the
        same requests until devices are released.
        """
        if (name, device_requests.signature) in self._unservable:
            return Allocations()
        node = self._nodes[name]
        locations = self.shared_claim_locations
        shared = [locations[key] for key in device_requests.common if key in locations]
        met = _labels(node)
        if not all(
            isinstance(reach, Reach) and reach.includes(name, met)
            for reach in (*device_requests.reach, *shared)
        ):
            return Allocations()
        try:
            allocations = self.serve(
                device_requests, self.usable(node), allocated, most, self.shared_claim_locations
            )
        except AllocationError as exc:
            self.errors[device_requests.signature] = f"node {name}: {exc}"
            allocations = Allocations()
        if not allocations.count and most:
            self._unservable.add((name, device_requests.signature))
        return allocations

    def _expect(self, pod: Pod) -> None:
        """Reserve devices for a pod that was nominated for a node and has none allocated yet."""
        try:
            self.put(self._device_requests(pod), pod.spec.node_name, 1)
        except ValueError:
            return  # The error is reported if the pod becomes pending again.

    def _device_requests(self, pod: Pod) -> DeviceRequests:
        """Return the devices that a pod claims.

        Raises:
            AllocationError: a claim is missing, being deleted or malformed.
            ValueError: the node selector of an allocation is malformed.

        """
        own: list[tuple[bytes, ClaimRequests]] = []
        common: list[str] = []
        reach: list[Reach] = []
        for key, of_pod in _claims_of(pod):
            claim = self._claims.get(key)
            if claim is None:
                raise AllocationError(_not_found(key, of_pod))
            if claim.metadata.is_deleting:
                raise AllocationError(f"ResourceClaim {key} is being deleted")
            allocation = claim.status.allocation
            if allocation is not None and not self._is_free(claim):
                selector = allocation.node_selector
                reach.append(EVERYWHERE if selector is None else reach_of(selector))
                continue
            read = self._read(claim)
            if self._users[key] > 1:
                self._common[key] = read[1]
                common.append(key)
            else:
                own.append(read)
        signature = repr(
            ([text for text, _ in own], sorted(common), [str(allowed) for allowed in reach])
        )
        return DeviceRequests(
            own=tuple(requests for _, requests in own),
            common=tuple(sorted(common)),
            reach=tuple(reach),
            signature=signature.encode(),
        )

    def _read(self, claim: ResourceClaim) -> tuple[bytes, ClaimRequests]:
        text = msgspec.msgpack.encode(claim.spec, order="deterministic")
        if text not in self._read_claims:
            try:
                self._read_claims[text] = read_claim(claim.spec, self._classes)
            except AllocationError as exc:
                raise AllocationError(f"ResourceClaim {claim.metadata.key}: {exc}") from exc
        return text, self._read_claims[text]

    def _is_on_staying_node(self, resource_slice: ResourceSlice) -> bool:
        """Whether the ResourceSlice belongs to a node that stays, or to no node."""
        owners = [
            ref.name for ref in resource_slice.metadata.owner_references if ref.kind == "Node"
        ]
        return all(name in self._nodes for name in (*owners, resource_slice.spec.node_name) if name)

    def _is_free(self, claim: ResourceClaim) -> bool:
        """Whether all pods that use an allocated claim are leaving their nodes."""
        users = claim.status.reserved_for
        return bool(users) and all(
            user.resource == "pods" and f"{claim.metadata.namespace}/{user.name}" in self._leaving
            for user in users
        )

    def _allocated_before(self) -> AllocatedDevices:
        """Return the devices of the claims that are allocated and stay allocated."""
        allocated = AllocatedDevices()
        for key in sorted(self._claims):
            claim = self._claims[key]
            if claim.status.allocation is None or self._is_free(claim):
                continue
            for result in claim.status.allocation.devices.results:
                device_key = ("", result.driver, result.pool, result.device)
                device = self.inventory.by_key.get(device_key)
                if device is not None and not result.admin_access:
                    amounts = parse_resources(result.consumed_capacity)
                    allocated.add(device, {device.full(name): n for name, n in amounts.items()})
        return allocated


def missing_claim(pod: Pod, existing: Container[str]) -> str:
    """Return a message about the first of a pod's ResourceClaims that does not exist; or empty.

    `existing` has the keys (`namespace/name`) of all ResourceClaims.
    """
    missing = (_not_found(key, of_pod) for key, of_pod in _claims_of(pod) if key not in existing)
    return next(missing, "")


def _leaving_keys(pending: Iterable[Pod], pods: Iterable[Pod]) -> set[str]:
    """Return the keys of pending pods that are bound to a node. They leave it in this solve."""
    bound = {pod.key for pod in pods if pod.spec.node_name}
    return {pod.key for pod in pending if pod.spec.node_name or pod.key in bound}


def _users(pods: Iterable[Pod]) -> Counter[str]:
    """Return the number of pods that use each claim, by key."""
    return Counter(key for pod in pods for key in {name for name, _ in _claims_of(pod)})


def _claims_of(pod: Pod) -> list[tuple[str, PodResourceClaim]]:
    """Return the claims of a pod by key, each once.

    The pod's status names the claims that were created from templates.
    """
    created = {
        status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses
    }
    claims: dict[str, PodResourceClaim] = {}
    for pod_claim in pod.spec.resource_claims:
        name = pod_claim.resource_claim_name
        if name is None and pod_claim.name in created:
            name = created[pod_claim.name]
            if name is None:
                continue  # Kubernetes' claim controller found that no claim is needed.
        claims.setdefault(f"{pod.metadata.namespace}/{name or ''}", pod_claim)
    return list(claims.items())


def _not_found(key: str, of_pod: PodResourceClaim) -> str:
    if of_pod.resource_claim_name is None and key.endswith("/"):
        template = of_pod.resource_claim_template_name
        namespace = key.removesuffix("/")
        return (
            f"ResourceClaim {of_pod.name} is not created from its template {template} yet: check "
            f"that ResourceClaimTemplate {namespace}/{template} exists"
        )
    return f"ResourceClaim {key} not found"


def _labels(node: StateNode) -> Mapping[str, str]:
    return {labels.HOSTNAME: node.name, **node.labels}
