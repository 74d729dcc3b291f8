"""What pods claim of devices, and what of it the nodes that exist can give.

Devices that a claim was given are taken, unless all who use the claim are on the move:
then it can be allocated anew, and what it held is free.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from controller.apis import labels
from controller.apis.devices import ResourceClaim, ResourceSlice
from controller.apis.pods import Pod, PodResourceClaim
from controller.constraints.resources import parsed
from controller.scheduling.devices.allocation import (
    AllocationError,
    Equipment,
    Pick,
    Wanted,
    allocated,
    wanted,
)
from controller.scheduling.devices.devices import (
    EVERYWHERE,
    Device,
    Inventory,
    Ledger,
    Offer,
    Reach,
    promised,
    reach_of,
)
from controller.scheduling.encoding.encoding import Catalog, Indices
from controller.scheduling.encoding.shapes import Shape
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot

Home = Reach | str
"""Where a common claim can be used: within a reach, or on the new node of this number."""


@dataclass(slots=True)
class Served:
    """What pods were given: each one (`own`), and the claims that they share (`homes`)."""

    count: int = 0
    own: list[tuple[Pick, ...]] = field(default_factory=list)
    homes: dict[str, tuple[Pick, ...]] = field(default_factory=dict)

    @property
    def picks(self) -> list[Pick]:
        """All that was given."""
        return [pick for picks in (*self.homes.values(), *self.own) for pick in picks]


class DeviceClaims:
    """The claims of the pods that wait, and the devices left for them."""

    def __init__(self, pods: Sequence[Pod], snapshot: Snapshot, catalog: Catalog) -> None:
        """Read the claims of a solve's pods, and what was given before."""
        self._claims = {_key(one): one for one in snapshot.resource_claims}
        self._classes = {one.metadata.name: one for one in snapshot.device_classes}
        self._pods = {pod.key: pod for pod in pods if pod.spec.resource_claims}
        bound = {one.key for one in snapshot.pods if one.spec.node_name}
        self._moving = {
            pod.key for pod in self._pods.values() if pod.spec.node_name or pod.key in bound
        }
        self._nodes = {one.name: one for one in snapshot.nodes if not one.deleting}
        expected = [
            pod
            for pod in snapshot.pods
            if pod.spec.resource_claims
            and pod.spec.node_name in self._nodes
            and pod.key not in self._pods
        ]
        everyone = (*self._pods.values(), *expected)
        self._users = Counter(key for pod in everyone for key in {name for name, _ in _named(pod)})
        self.inventory = Inventory(one for one in snapshot.resource_slices if self._is_here(one))
        self.ledger = self._given()
        self.homes: dict[str, Home] = {}
        self.troubles: dict[bytes, str] = {}
        """Per signature of equipment, what keeps a node from giving it, but for want of devices."""
        self._types = {one.name: one for one in catalog.types}
        self._wanted: dict[bytes, Wanted] = {}
        self._common: dict[str, Wanted] = {}
        self._offers: dict[str, Offer] = {}
        self._hopeless: set[tuple[str, bytes]] = set()
        self._held: defaultdict[tuple[str, bytes], list[tuple[Pick, ...]]] = defaultdict(list)
        for pod in expected:
            self._expect(pod)

    def shapes(self, shape: Shape) -> tuple[list[Shape], dict[str, str]]:
        """Part a shape by what its pods' claims are like; with pods that cannot run yet, and why.

        Pods of a template have claims of their own; some may be allocated, others not.
        """
        parts: defaultdict[bytes, list[str]] = defaultdict(list)
        equipment: dict[bytes, Equipment] = {}
        failed: dict[str, str] = {}
        for key in shape.keys:
            try:
                found = self._equipment(self._pods[key])
            except ValueError as exc:
                failed[key] = str(exc)
                continue
            parts[found.signature].append(key)
            equipment.setdefault(found.signature, found)
        return [
            replace(
                shape,
                character=shape.character + signature,
                keys=keys,
                equipment=equipment[signature],
            )
            for signature, keys in parts.items()
        ], failed

    def room(self, equipment: Equipment, names: Sequence[str], room: Indices, most: int) -> Indices:
        """Return how many of such pods each node has devices for, of those it has room for."""
        found = room.copy()
        for index in np.flatnonzero(room).tolist():
            limit = min(int(room[index]), most)
            served = self._on_node(names[index], equipment, limit, self.ledger.fork())
            found[index] = served.count
        return found

    def put(self, equipment: Equipment, name: str, most: int) -> int:
        """Give devices to at most so many pods that go to a node; return how many got theirs."""
        served = self._on_node(name, equipment, most, self.ledger)
        self.settle(served, Reach(name))
        self._held[(name, equipment.signature)].extend(served.own)
        return served.count

    def take_off(self, equipment: Equipment, name: str, count: int) -> None:
        """Give back what the last so many such pods of a node had to themselves."""
        held = self._held[(name, equipment.signature)]
        for picks in (held.pop() for _ in range(min(count, len(held)))):
            self.give_back(picks)

    def give_back(self, picks: Iterable[Pick]) -> None:
        """Hold devices for free again."""
        for pick in picks:
            if pick.takes:
                self.ledger.give_back(pick.device, pick.share)
        self._hopeless.clear()

    def settle(self, served: Served, home: Home) -> None:
        """Keep in mind where claims are that others share."""
        for key, picks in served.homes.items():
            # A device that belongs to no node can be used from all that reach it.
            apart = [pick.device for pick in picks]
            if all(one.is_published and not one.reach.node for one in apart):
                met = tuple(sorted({part for one in apart for part in one.reach.labels}, key=str))
                self.homes[key] = Reach(labels=met)
            else:
                self.homes[key] = home

    def serve(
        self,
        equipment: Equipment,
        offer: Offer,
        ledger: Ledger,
        most: int,
        homes: Iterable[str] = (),
    ) -> Served:
        """Give devices to at most so many pods on one node; claims in `homes` are there already.

        Raises:
            AllocationError: it cannot be told whether there are enough.

        """
        served = Served()
        missing = [key for key in equipment.common if key not in homes]
        while served.count < most:
            if not missing and not equipment.own:
                served.count = most
                break
            asked = [*(self._common[key] for key in missing), *equipment.own]
            try:
                picks = allocated(asked, offer, ledger)
            except AllocationError:
                if served.count:
                    break  # those before have theirs
                raise
            if picks is None:
                break
            for place, key in enumerate(missing):
                served.homes[key] = tuple(pick for pick in picks if pick.claim == place)
            served.own.append(tuple(pick for pick in picks if pick.claim >= len(missing)))
            served.count += 1
            missing = []
        return served

    def asked(self, equipment: Equipment) -> list[Wanted]:
        """Return the claims that are still to be allocated."""
        return [*(self._common[key] for key in equipment.common), *equipment.own]

    def offer(self, node: StateNode) -> Offer:
        """Return what a node can use: what is published, and what it will have once it is ready."""
        known = self._offers.get(node.name)
        if known is None:
            known = self.inventory.on(node.name, _labels(node))
            if not node.initialized:
                shown = {one.driver for one in known.devices if one.reach.node == node.name}
                coming = self.promised(node.labels.get(labels.INSTANCE_TYPE, ""), node.name)
                rest = tuple(one for one in coming if one.driver not in shown)
                known = Offer(known.devices + rest, known.flaw)
            self._offers[node.name] = known
        return known

    def promised(self, type_name: str, place: str) -> tuple[Device, ...]:
        """Return what a node of a type will have; nothing where that is malformed."""
        found = self._types.get(type_name)
        return promised(found.dynamic_resources, place) if found is not None else ()

    def _on_node(self, name: str, equipment: Equipment, most: int, ledger: Ledger) -> Served:
        if (name, equipment.signature) in self._hopeless:
            return Served()
        node = self._nodes[name]
        given = [self.homes[key] for key in equipment.common if key in self.homes]
        met = _labels(node)
        if not all(
            isinstance(one, Reach) and one.includes(name, met) for one in (*equipment.reach, *given)
        ):
            return Served()
        try:
            served = self.serve(equipment, self.offer(node), ledger, most, self.homes)
        except AllocationError as exc:
            self.troubles[equipment.signature] = f"node {name}: {exc}"
            served = Served()
        if not served.count and most:
            self._hopeless.add((name, equipment.signature))
        return served

    def _expect(self, pod: Pod) -> None:
        """Set devices aside for a pod that was promised a node and is not allocated any yet."""
        try:
            self.put(self._equipment(pod), pod.spec.node_name, 1)
        except ValueError:
            return  # it will be told when it waits again

    def _equipment(self, pod: Pod) -> Equipment:
        own: list[tuple[bytes, Wanted]] = []
        common: list[str] = []
        reach: list[Reach] = []
        for key, of_pod in _named(pod):
            claim = self._claims.get(key)
            if claim is None:
                raise AllocationError(_missing(key, of_pod))
            if claim.metadata.is_deleting:
                raise AllocationError(f"resource claim {key} is being deleted")
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
        signature = repr(([text for text, _ in own], sorted(common), [str(one) for one in reach]))
        return Equipment(
            own=tuple(one for _, one in own),
            common=tuple(sorted(common)),
            reach=tuple(reach),
            signature=signature.encode(),
        )

    def _read(self, claim: ResourceClaim) -> tuple[bytes, Wanted]:
        text = msgspec.msgpack.encode(claim.spec, order="deterministic")
        if text not in self._wanted:
            try:
                self._wanted[text] = wanted(claim.spec, self._classes)
            except AllocationError as exc:
                raise AllocationError(f"resource claim {_key(claim)}: {exc}") from exc
        return text, self._wanted[text]

    def _is_here(self, one: ResourceSlice) -> bool:
        """Whether the slice belongs to a node that stays, or to none."""
        owners = [ref.name for ref in one.metadata.owner_references if ref.kind == "Node"]
        return all(name in self._nodes for name in (*owners, one.spec.node_name) if name)

    def _is_free(self, claim: ResourceClaim) -> bool:
        """Whether all who use an allocated claim are on the move."""
        users = claim.status.reserved_for
        return bool(users) and all(
            one.resource == "pods" and f"{claim.metadata.namespace}/{one.name}" in self._moving
            for one in users
        )

    def _given(self) -> Ledger:
        ledger = Ledger()
        for key in sorted(self._claims):
            claim = self._claims[key]
            if claim.status.allocation is None or self._is_free(claim):
                continue
            for one in claim.status.allocation.devices.results:
                place = ("", one.driver, one.pool, one.device)
                device = self.inventory.by_key.get(place)
                if device is not None and not one.admin_access:
                    amounts = parsed(one.consumed_capacity)
                    ledger.take(device, {device.full(name): n for name, n in amounts.items()})
        return ledger


def _key(claim: ResourceClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def _named(pod: Pod) -> list[tuple[str, PodResourceClaim]]:
    """Return the claims of a pod by key, each once; its status names those made for it."""
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    found: dict[str, PodResourceClaim] = {}
    for one in pod.spec.resource_claims:
        name = one.resource_claim_name
        if name is None and one.name in made:
            name = made[one.name]
            if name is None:
                continue  # the template's controller has found that none is needed
        found.setdefault(f"{pod.metadata.namespace}/{name or ''}", one)
    return list(found.items())


def _missing(key: str, of_pod: PodResourceClaim) -> str:
    if of_pod.resource_claim_name is None and key.endswith("/"):
        template = of_pod.resource_claim_template_name
        return f"resource claim {of_pod.name} has not been made from template {template} yet"
    return f"resource claim {key} does not exist"


def _labels(node: StateNode) -> Mapping[str, str]:
    return {labels.HOSTNAME: node.name, **node.labels}
