"""An in-memory implementation of `CloudProvider`, for tests of its callers.

    cloud = FakeCloud(clock=lambda: now)
    cloud.exhaust(capacity_type="spot")          # no spot capacity anywhere
    cloud.fail("launch", CreateError("no"), times=2)
    instance = await cloud.launch(claim, node_class)
    cloud.interrupt(instance.provider_id)        # the next `notices` returns a notice

`instances_by_id` holds the instances by provider ID. A test may read it, add an instance without a
NodeClaim, or remove one as a user of the console would (`vanish`).
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    AMIStatus,
    EC2NodeClass,
    EC2NodeClassStatus,
    SecurityGroupStatus,
    SubnetStatus,
)
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.conditions import roll_up, with_condition
from controller.apis.kubernetes.quantities import format_quantity, parse
from controller.apis.kubernetes.taints import Requirement
from controller.cloudprovider.compatibility import choices, node_labels
from controller.cloudprovider.errors import (
    CloudProviderError,
    InsufficientCapacityError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
)
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.cloudprovider.provider import STATUS_KINDS, Instance, Notice, RepairPolicy
from controller.constraints.resources import Resources, parse_resources

REGION = "us-west-2"
ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def make_instance_type(
    name: str,
    *,
    cpu: str = "2",
    memory: str = "8Gi",
    pods: int = 29,
    arch: str = "amd64",
    zones: Sequence[str] = ZONES,
    capacity_types: Sequence[str] = (labels.ON_DEMAND, labels.SPOT),
    price: float | None = None,
    resources: Mapping[str, str] | None = None,
    attributes: Mapping[str, str] | None = None,
) -> InstanceType:
    """Return an instance type; by default 0.024 $/h per CPU and 0.006 per GiB, spot 40 % of it."""
    family, _, size = name.partition(".")
    if price is None:
        price = 0.024 * parse(cpu) / 1e3 + parse(memory) / 1e3 / 2**30 * 0.006
    carried = {
        labels.INSTANCE_TYPE: name,
        labels.ARCH: arch,
        labels.OS: "linux",
        labels.REGION: REGION,
        f"{labels.AWS_GROUP}/instance-family": family,
        f"{labels.AWS_GROUP}/instance-size": size,
        f"{labels.AWS_GROUP}/instance-category": family[:1],
        f"{labels.AWS_GROUP}/instance-cpu": cpu,
        **(attributes or {}),
    }
    return InstanceType(
        name=name,
        requirements=(
            *(Requirement(key=k, operator="In", values=[v]) for k, v in carried.items()),
            Requirement(key=labels.ZONE, operator="In", values=list(zones)),
            Requirement(key=labels.CAPACITY_TYPE, operator="In", values=list(capacity_types)),
        ),
        offerings=tuple(
            Offering(
                {labels.ZONE: zone, labels.CAPACITY_TYPE: capacity_type},
                instance_price=price * (0.4 if capacity_type == labels.SPOT else 1.0),
            )
            for capacity_type in capacity_types
            for zone in zones
        ),
        capacity=parse_resources(
            {
                "cpu": cpu,
                "memory": memory,
                "pods": pods,
                "ephemeral-storage": "20Gi",
                **(resources or {}),
            }
        ),
        overhead=parse_resources({"cpu": "80m", "memory": "600Mi"}),
    )


DEFAULT_TYPES = (
    make_instance_type("c5.large", cpu="2", memory="4Gi", pods=29),
    make_instance_type("m5.large", cpu="2", memory="8Gi", pods=29),
    make_instance_type("m5.xlarge", cpu="4", memory="16Gi", pods=58),
    make_instance_type("m6g.xlarge", cpu="4", memory="16Gi", pods=58, arch="arm64"),
    make_instance_type("r5.2xlarge", cpu="8", memory="64Gi", pods=58),
    make_instance_type("m5.4xlarge", cpu="16", memory="64Gi", pods=234),
    make_instance_type(
        "g4dn.xlarge", cpu="4", memory="16Gi", price=0.526, resources={"nvidia.com/gpu": "1"}
    ),
)


class _Turn:
    """Awaitable that lets the event loop run other tasks once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def _one_turn() -> None:
    await _Turn()


@dataclass(frozen=True, slots=True)
class Pool:
    """The offerings that a test selects; None matches any value."""

    instance_type: str | None = None
    zone: str | None = None
    capacity_type: str | None = None

    def has(self, instance_type: str, zone: str, capacity_type: str) -> bool:
        """Whether an offering is selected."""
        return (
            self.instance_type in (None, instance_type)
            and self.zone in (None, zone)
            and self.capacity_type in (None, capacity_type)
        )


class FakeCloud:
    """Implements `CloudProvider` in memory and records every call in `calls`.

    A terminated instance stays, as `deleting`, for `shutdown_calls` further calls of `terminate` or
    `get`, and then no longer exists. `notices` awaits `idle` if there is no notice.
    """

    name = "fake"

    def __init__(
        self,
        instance_types: Iterable[InstanceType] = DEFAULT_TYPES,
        *,
        clock: Callable[[], datetime] = lambda: EPOCH,
        shutdown_calls: int = 0,
        idle: Callable[[], Awaitable[None]] = _one_turn,
    ) -> None:
        self.types = tuple(instance_types)
        self.clock = clock
        self.shutdown_calls = shutdown_calls
        self.instances_by_id: dict[str, Instance] = {}
        self.calls: list[tuple[str, str]] = []
        self.drift: dict[str, str] = {}
        self.not_ready: dict[str, tuple[str, str, str]] = {}
        self.pending: list[Notice] = []
        self.acknowledged: list[Notice] = []
        self.released: list[str] = []
        self.exhausted: set[Pool] = set()
        self.unavailable: set[Pool] = set()
        self.away: set[str] = set()
        self.ending_reservations: set[str] = set()
        self.recorded_capacity: dict[str, dict[str, str | int | float]] = {}
        self._idle = idle
        self._faults: dict[str, list[CloudProviderError]] = {}
        self._claims: dict[str, str] = {}
        self._closing: dict[str, int] = {}
        self._numbers = itertools.count(1)

    # Methods with which a test sets up the cloud.

    def exhaust(
        self,
        instance_type: str | None = None,
        zone: str | None = None,
        capacity_type: str | None = None,
    ) -> None:
        """Remove the capacity of the selected offerings; None matches any value."""
        self.exhausted.add(Pool(instance_type, zone, capacity_type))

    def restock(self) -> None:
        """Restore all capacity, and mark every offering as available."""
        self.exhausted.clear()
        self.unavailable.clear()

    def fail(self, call: str, error: CloudProviderError, *, times: int = 1) -> None:
        """Raise the error from the next `times` calls of this name."""
        self._faults.setdefault(call, []).extend([error] * times)

    def vanish(self, provider_id: str) -> None:
        """Remove an instance without a notice."""
        del self.instances_by_id[provider_id]

    def interrupt(self, provider_id: str, kind: str = "spot_interrupted") -> Notice:
        """Add a notice about an instance."""
        instance_id = provider_id.rpartition("/")[2]
        notice = Notice(
            kind, (instance_id,), receipt=f"receipt-{next(self._numbers)}", sent_at=self.clock()
        )
        self.pending.append(notice)
        return notice

    def set_unready(
        self, node_class: str, *, condition: str = "SubnetsReady", reason: str, message: str
    ) -> None:
        """Make `resolve` return this condition of the NodeClass as False."""
        self.not_ready[node_class] = (condition, reason, message)

    def count(self, call: str) -> int:
        """Return the number of calls of this name."""
        return sum(1 for name, _ in self.calls if name == call)

    # The methods of the port `CloudProvider`.

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return the instance types.

        Offerings are unavailable after `exhaust` or `mark_unavailable`, until `restock`.

        Raises:
            NodeClassNotReadyError: `set_unready` was called for the NodeClass.

        """
        await self._record_call("instance_types", node_class.metadata.name)
        if node_class.metadata.name in self.not_ready:
            raise NodeClassNotReadyError(self.not_ready[node_class.metadata.name][2])
        return tuple(self._as_known(instance_type) for instance_type in self.types)

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the cheapest instance that meets the NodeClaim, once per UID.

        Raises:
            InsufficientCapacityError: no compatible offering is available.

        """
        await self._record_call("launch", claim.metadata.name)
        launched = self._claims.get(claim.metadata.uid)
        if launched is not None and launched in self.instances_by_id:
            return self.instances_by_id[launched]
        chosen = choices(
            types if types is not None else (self._as_known(t) for t in self.types),
            claim.spec.requirements,
            parse_resources(claim.spec.resources.requests),
        )
        if not chosen:
            raise InsufficientCapacityError(
                f"no offering that is compatible with {claim.metadata.name} is available"
            )
        instance_type, offering = min(
            ((choice.instance_type, o) for choice in chosen for o in choice.offerings),
            key=lambda pair: (pair[1].price, pair[0].name, pair[1].zone),
        )
        instance = self._instance(claim, node_class, instance_type, offering)
        self.instances_by_id[instance.provider_id] = instance
        self._claims[claim.metadata.uid] = instance.provider_id
        return instance

    async def terminate(self, provider_id: str) -> None:
        """Terminate an instance; raise NodeClaimNotFoundError once it no longer exists."""
        await self._record_call("terminate", provider_id)
        instance = self._existing_instance(provider_id)
        self.instances_by_id[provider_id] = replace(instance, deleting=True)
        self._closing.setdefault(provider_id, self.shutdown_calls)

    async def reboot(self, provider_id: str) -> None:
        """Record the reboot of an instance; the test sets the new boot ID of its node.

        Raises:
            NodeClaimNotFoundError: the instance does not exist.

        """
        await self._record_call("reboot", provider_id)
        self._existing_instance(provider_id)

    async def get(self, provider_id: str) -> Instance:
        """Return one instance; raise NodeClaimNotFoundError if it does not exist."""
        await self._record_call("get", provider_id)
        return self._existing_instance(provider_id)

    async def launched_for(self, claim: NodeClaim) -> Instance | None:
        """Return this installation's instance with the NodeClaim's tag, or None."""
        await self._record_call("launched_for", claim.metadata.name)
        own = (i for i in self.instances_by_id.values() if i.is_ours)
        return next(
            (i for i in own if i.tags.get(labels.TAG_NODECLAIM) == claim.metadata.name), None
        )

    async def instances(self) -> Sequence[Instance]:
        """Return every instance that still exists."""
        await self._record_call("instances", "")
        return tuple(self.instances_by_id.values())

    async def expiring_reservations(self, reservation_ids: Collection[str]) -> Collection[str]:
        """Return which of the capacity reservations are in `ending_reservations`."""
        await self._record_call("expiring_reservations", ",".join(sorted(reservation_ids)))
        return self.ending_reservations & set(reservation_ids)

    async def tag(self, provider_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance; raise NodeClaimNotFoundError if it does not exist."""
        await self._record_call("tag", provider_id)
        instance = self._existing_instance(provider_id)
        self.instances_by_id[provider_id] = replace(instance, tags={**instance.tags, **tags})

    async def resolve(self, node_class: EC2NodeClass, *, now: datetime) -> EC2NodeClass:
        """Return the EC2NodeClass as ready, or with the condition that `set_unready` set."""
        await self._record_call("resolve", node_class.metadata.name)
        generation = node_class.metadata.generation
        unready = self.not_ready.get(node_class.metadata.name)
        conditions = list(node_class.status.conditions)
        for condition in (
            "AMIsReady",
            "SubnetsReady",
            "SecurityGroupsReady",
            "InstanceProfileReady",
            "ValidationSucceeded",
        ):
            failed = unready is not None and unready[0] == condition
            conditions = with_condition(
                conditions,
                condition,
                "False" if failed else "True",
                reason=unready[1] if unready and failed else "",
                message=unready[2] if unready and failed else "",
                generation=generation,
                now=now,
            )
        dependents = [c.type for c in conditions if c.type != "Ready"]
        status = EC2NodeClassStatus(
            subnets=[
                SubnetStatus(id=f"subnet-{zone[-1]}", zone=zone, zone_id=_zone_id(zone))
                for zone in ZONES
            ],
            security_groups=[SecurityGroupStatus(id="sg-1", name="nodes")],
            amis=[AMIStatus(id="ami-1", name="image")],
            instance_profile=node_class.spec.instance_profile or node_class.spec.role or "profile",
            conditions=roll_up(conditions, dependents, generation=generation, now=now),
        )
        return msgspec.structs.replace(node_class, status=status)

    async def release(self, node_class: EC2NodeClass) -> None:
        """Record that the resources of the EC2NodeClass were deleted."""
        await self._record_call("release", node_class.metadata.name)
        self.released.append(node_class.metadata.name)

    async def drift_reason(self, claim: NodeClaim, node_class: EC2NodeClass) -> str | None:
        """Return the reason in `drift` for the NodeClaim's provider ID, or None."""
        await self._record_call("drift_reason", claim.metadata.name)
        return self.drift.get(claim.status.provider_id)

    async def notices(self) -> Sequence[Notice]:
        """Return the interruption notices; each is returned until it is acknowledged."""
        await self._record_call("notices", "")
        if not self._pending_notices(from_checks=False):
            await self._idle()
        return self._pending_notices(from_checks=False)

    async def status_notices(self) -> Sequence[Notice]:
        """Return the notices of status checks; each is returned until it is acknowledged."""
        await self._record_call("status_notices", "")
        return self._pending_notices(from_checks=True)

    def _pending_notices(self, *, from_checks: bool) -> tuple[Notice, ...]:
        return tuple(n for n in self.pending if (n.kind in STATUS_KINDS) == from_checks)

    async def acknowledge(self, notice: Notice) -> None:
        """Remove a notice and record it as acknowledged."""
        await self._record_call("acknowledge", notice.receipt)
        self.pending = [n for n in self.pending if n.receipt != notice.receipt]
        self.acknowledged.append(notice)

    def shifted_zones(self) -> frozenset[str]:
        """Return the zone IDs in `away`."""
        return frozenset(self.away)

    def mark_unavailable(self, instance_type: str, zone: str, capacity_type: str) -> None:
        """Mark an offering as unavailable until `restock`."""
        self.unavailable.add(Pool(instance_type, zone, capacity_type))

    def record_capacity(self, claim: NodeClaim, capacity: Mapping[str, str | int | float]) -> None:
        """Record the capacity of a NodeClaim's node."""
        self.recorded_capacity[claim.metadata.name] = dict(capacity)

    def repair_policies(self) -> Sequence[RepairPolicy]:
        """Return policies for `Ready`, and one for `AcceleratedHardwareReady`.

        The latter has a shorter toleration, and does not limit the drain.
        """
        half_an_hour = timedelta(minutes=30)
        return (
            RepairPolicy("Ready", "False", half_an_hour, drain_bound=timedelta(minutes=10)),
            RepairPolicy("Ready", "Unknown", half_an_hour, drain_bound=timedelta(minutes=10)),
            RepairPolicy("AcceleratedHardwareReady", "False", timedelta(minutes=10)),
        )

    async def _record_call(self, call: str, subject: str) -> None:
        self.calls.append((call, subject))
        await _Turn()
        faults = self._faults.get(call)
        if faults:
            raise faults.pop(0)

    def _existing_instance(self, provider_id: str) -> Instance:
        instance = self.instances_by_id.get(provider_id)
        if instance is None:
            raise NodeClaimNotFoundError(f"{provider_id} does not exist")
        if provider_id in self._closing:
            if self._closing[provider_id] == 0:
                del self.instances_by_id[provider_id], self._closing[provider_id]
                raise NodeClaimNotFoundError(f"{provider_id} is terminated")
            self._closing[provider_id] -= 1
        return instance

    def _as_known(self, instance_type: InstanceType) -> InstanceType:
        closed = self.exhausted | self.unavailable
        if not closed:
            return instance_type
        return replace(
            instance_type,
            offerings=tuple(
                replace(o, available=False)
                if any(p.has(instance_type.name, o.zone, o.capacity_type) for p in closed)
                else o
                for o in instance_type.offerings
            ),
        )

    def _instance(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        instance_type: InstanceType,
        offering: Offering,
    ) -> Instance:
        pool = claim.metadata.labels.get(labels.NODEPOOL, "")
        own = {labels.NODEPOOL: pool, labels.EC2NODECLASS: node_class.metadata.name}
        return Instance(
            provider_id=f"aws:///{offering.zone}/i-{next(self._numbers):017x}",
            instance_type=instance_type.name,
            zone=offering.zone,
            capacity_type=offering.capacity_type,
            image_id="ami-1",
            launched_at=self.clock(),
            hostname=f"node-of-{claim.metadata.name}",
            labels={**node_labels(instance_type, offering), **{k: v for k, v in own.items() if v}},
            tags={**own, labels.TAG_NODECLAIM: claim.metadata.name},
            capacity=_quantities(instance_type.capacity),
            allocatable=_quantities(instance_type.allocatable),
        )


def _quantities(resources: Resources) -> dict[str, str]:
    return {name: format_quantity(amount, name) for name, amount in resources.items() if amount}


def _zone_id(zone: str) -> str:
    return f"usw2-az{ZONES.index(zone) + 1}"
