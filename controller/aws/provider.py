"""The cloud of AWS, put together; each noun of AWS has a module of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from controller.apis import labels, quantities
from controller.apis.ec2nodeclass import (
    ADDRESSES_LEFT,
    LAUNCH_SUCCEEDED,
    WITHIN_QUOTAS,
    ZONES_IN_USE,
    EC2NodeClass,
    SelectorTerm,
)
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodepool import NodePool
from controller.aws import kubelet
from controller.aws.amis import AMIs
from controller.aws.cluster import VERSION_PERIOD, ClusterFacts
from controller.aws.drift import drift_reason
from controller.aws.errors import PROFILE_INVALID, RequestError
from controller.aws.instanceprofiles import COLLECT_PERIOD, InstanceProfiles
from controller.aws.instances import Instances
from controller.aws.instancetypes import Limits
from controller.aws.interruptions import Interruptions
from controller.aws.launching import Launcher
from controller.aws.launchtemplates import LaunchTemplates
from controller.aws.learnedmemory import LearnedMemory
from controller.aws.nodeclasses import Caveat, NodeClasses
from controller.aws.offerings import PERIOD as TYPES_PERIOD
from controller.aws.offerings import RETRY as TYPES_RETRY
from controller.aws.offerings import InstanceTypes, Machines
from controller.aws.placementgroups import PlacementGroups
from controller.aws.pricing import PERIOD as PRICES_PERIOD
from controller.aws.pricing import RETRY as PRICES_RETRY
from controller.aws.pricing import Pricing
from controller.aws.ratelimits import Paced
from controller.aws.refusals import Refusals
from controller.aws.reservations import Reservations
from controller.aws.securitygroups import SecurityGroups
from controller.aws.session import Aws, ReadOnly, Session
from controller.aws.statuses import PERIOD as STATUS_PERIOD
from controller.aws.statuses import InstanceStatuses
from controller.aws.subnets import Subnets
from controller.aws.unavailable import QuotaMark, Unavailable
from controller.aws.verification import Verification
from controller.aws.zonalshift import PERIOD as SHIFT_PERIOD
from controller.aws.zonalshift import ZonalShift
from controller.cloudprovider.errors import (
    CloudProviderError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
)
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import Instance, Notice, RepairPolicy
from controller.constraints.resources import MEMORY
from controller.options import Options

SWEEP = 10.0
"""Seconds between two looks at what has grown old."""

PRICES_PATIENCE = 10.0
"""Seconds for which the first decision waits for prices; then it is made by those that ship."""

log = logging.getLogger(__name__)


class AWSCloudProvider:
    """Implements `CloudProvider` for EC2.

    `cluster_dns` is the address of the cluster's DNS service, empty if unknown. `start`
    loads what every decision needs and takes over what an earlier process left; `run`
    keeps it fresh. Both belong to the leader.
    """

    name = "aws"

    def __init__(
        self,
        options: Options,
        *,
        aws: Aws | None = None,
        cluster_dns: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observes = options.disruption_mode == "observe"
        aws = Paced(aws or Session())
        aws = ReadOnly(aws) if self._observes else aws
        gates = options.feature_gates
        name, installation = options.cluster_name, options.installation_tag
        self.aws = aws
        self._clock = clock
        self._evaluates = options.aws_feature_gates.node_class_cel
        self._shifts_zones = options.enable_zonal_shift
        self._loading = asyncio.Lock()
        self._in_reservation: dict[str, str] = {}
        self._types_due = self._prices_due = float("-inf")
        self._is_ready = False
        self._first_prices: asyncio.Task[bool] | None = None
        self._cluster = ClusterFacts(aws, options, dns=cluster_dns)
        self.pricing = Pricing(aws, isolated=options.isolated_vpc)
        self._unavailable = Unavailable(clock=clock)
        self._subnets = Subnets(
            aws, period=options.subnet_refresh_interval.total_seconds(), clock=clock
        )
        self._groups = SecurityGroups(aws, clock=clock)
        self._reservations = Reservations(aws, clock=clock)
        self._placements = PlacementGroups(aws, clock=clock)
        self.templates = LaunchTemplates(aws, name, installation=installation, clock=clock)
        self._profiles = InstanceProfiles(
            aws, name, installation=installation, isolated=options.isolated_vpc, clock=clock
        )
        self._refusals = Refusals(clock=clock)
        self._interruptions = Interruptions(aws, options.interruption_queue, self._reservations)
        self._statuses = InstanceStatuses(aws)
        self._shift = ZonalShift(aws, self._cluster, self._subnets)
        self._instances = Instances(
            aws,
            name,
            installation=installation,
            shift=self._shift if self._shifts_zones else None,
            clock=clock,
        )
        self._machines = Machines(aws)
        self._learned = LearnedMemory(clock=clock)
        self._types = InstanceTypes(
            aws.region,
            Limits(
                options.vm_memory_overhead_percent,
                options.reserved_enis,
                options.prefix_delegation,
            ),
            machines=self._machines,
            pricing=self.pricing,
            unavailable=self._unavailable,
            reservations=self._reservations,
            subnets=self._subnets,
            shift=self._shift,
            learned=self._learned,
            groups=self._placements,
            clock=clock,
        )
        self._launcher = Launcher(
            aws,
            cluster=self._cluster,
            types=self._types,
            subnets=self._subnets,
            templates=self.templates,
            instances=self._instances,
            unavailable=self._unavailable,
            reservations=self._reservations,
            groups=self._placements,
            installation=installation,
            reserved_capacity=gates.reserved_capacity,
            clock=clock,
        )
        self._verification = Verification(
            aws=aws,
            launcher=self._launcher,
            enabled=not options.disable_dry_run,
            clock=clock,
        )
        self._classes = NodeClasses(
            cluster=self._cluster,
            amis=AMIs(aws, period=options.ami_refresh_interval.total_seconds(), clock=clock),
            subnets=self._subnets,
            groups=self._groups,
            profiles=self._profiles,
            reservations=self._reservations,
            placements=self._placements,
            verify=self._verification.verify,
            caveats=self._caveats,
            reserved_capacity=gates.reserved_capacity,
            inexpressible=self._types.inexpressible,
            expressions=self._evaluates,
        )

    # Life.

    async def start(self) -> None:
        """Load machines and prices, and take over launch templates that exist.

        Raises:
            CloudProviderError: EC2 tells no instance types; nothing could be decided.

        """
        await self._known()
        if self._shifts_zones:
            await _tried(self._shift.refresh)
        if not self._observes:
            await _tried(self.templates.hydrate)

    async def run(self) -> None:
        """Keep what is known fresh and delete idle launch templates, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_every(SWEEP, self._refresh))
            tasks.create_task(_every(VERSION_PERIOD, self._cluster.refresh))
            if not self._observes:
                tasks.create_task(_every(SWEEP, self.templates.sweep))
                tasks.create_task(_every(COLLECT_PERIOD, self.collect_profiles))
                tasks.create_task(
                    _every(STATUS_PERIOD, lambda: self._statuses.refresh(datetime.now(UTC)))
                )
            if self._shifts_zones:
                tasks.create_task(_every(SHIFT_PERIOD, self._shift.refresh))

    async def settle(self) -> None:
        """Begin nothing more, and wait for the calls under way."""
        await self.aws.settle()

    async def collect_profiles(self) -> None:
        """Delete instance profiles that classes have left behind and nobody bears."""
        await self._profiles.collect(self._instances.profiles)

    # The port.

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every type the class could launch; built once, then compared and shared."""
        if not node_class.status.subnets or not node_class.status.amis:
            raise NodeClassNotReadyError(
                f"EC2NodeClass {node_class.metadata.name} has not found its subnets and images yet"
            )
        settings = node_class.spec.kubelet
        wrong = kubelet.problems(settings)
        closed = "" if self._evaluates else kubelet.closed(settings)
        if wrong or closed:
            raise NodeClassNotReadyError("; ".join(wrong) or closed)
        await self._known()
        asked = node_pool.spec.template.spec.requirements if node_pool else ()
        return self._types.of(node_class, asked)

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the claim's instance, once."""
        await self._known()
        try:
            instance = await self._launcher.launch(claim, node_class, types)
        except CloudProviderError as exc:
            self._refused(node_class, exc)
            raise
        self._refusals.succeeded(node_class.metadata.name)
        return instance

    def _refused(self, node_class: EC2NodeClass, error: CloudProviderError) -> None:
        """Let the class be looked at again where a launch shows that it was taken for better."""
        self._refusals.refused(node_class.metadata.name, error)
        if error.reason == PROFILE_INVALID:
            self._profiles.forget(node_class)
        if error.reason == PROFILE_INVALID or error.reason.startswith("Unauthorized"):
            self._verification.forget()

    async def terminate(self, provider_id: str) -> None:
        """Ask for the instance's end; raises NodeClaimNotFoundError once it is gone."""
        try:
            ended = await self._instances.terminate(provider_id)
        except NodeClaimNotFoundError:
            reservation = self._in_reservation.pop(provider_id, "")
            if reservation:
                self._reservations.ended(reservation)
            raise
        if ended is not None and ended.reserved_by:
            self._in_reservation[provider_id] = ended.reserved_by

    async def get(self, provider_id: str) -> Instance:
        """Return one instance."""
        return (await self._instances.get(provider_id)).instance

    async def launched_for(self, claim: NodeClaim) -> Instance | None:
        """Return the instance that bears the claim's tag; questions close together are one."""
        return await self._instances.launched_for(claim.metadata.name)

    async def instances(self) -> Sequence[Instance]:
        """Return every instance of this cluster's claims that is not terminated."""
        return await self._instances.all()

    async def ending(self, reservation_ids: Collection[str]) -> Collection[str]:
        """Return which of these capacity reservations end soon: blocks, 40 minutes before."""
        found = await self._reservations.find([SelectorTerm(id=i) for i in reservation_ids])
        now = datetime.now(UTC)
        return [reservation.id for reservation in found if reservation.is_expiring(now)]

    async def tag(self, provider_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance."""
        await self._instances.tag(provider_id, tags)

    async def resolve(self, node_class: EC2NodeClass, *, now: datetime) -> EC2NodeClass:
        """Return the class with its status found anew."""
        await self._known()
        return await self._classes.resolve(node_class, now=now)

    async def release(self, node_class: EC2NodeClass) -> None:
        """Delete the launch templates and instance profiles made for the class."""
        await self.templates.release(node_class.metadata.name)
        await self._profiles.release(node_class)

    async def drift_reason(self, claim: NodeClaim, node_class: EC2NodeClass) -> str | None:
        """Return why the instance no longer matches its class, or None."""
        await self._known()
        name = claim.metadata.labels.get(labels.INSTANCE_TYPE, "")
        every = await self.instance_types(node_class)
        instance_type = next((t for t in every if t.name == name), None)
        if instance_type is None:
            raise CloudProviderError(
                f"{name!r}, the instance type of {claim.metadata.name}, is not one the class "
                "can launch; whether it drifted cannot be told"
            )
        spec = node_class.spec
        instance = await self._instances.get(claim.status.provider_id)
        selected = frozenset(r.id for r in node_class.status.capacity_reservations)
        if instance.reserved_by and instance.reserved_by not in selected:
            # The class may have been looked at before it was selected.
            terms = spec.capacity_reservation_selector_terms
            selected = frozenset(r.id for r in await self._reservations.find(terms, fresh=True))
        group = await self._placements.find(spec.placement_group_selector)
        return drift_reason(
            claim,
            node_class,
            instance=instance,
            instance_type=instance_type,
            reservations=selected,
            placement_group_id=group.id if group else "",
        )

    async def notices(self) -> Sequence[Notice]:
        """Return what EC2's own checks found, or wait (up to 20 s) for the interruption queue."""
        notices = self._statuses.waiting()
        if notices:
            return notices
        return await self._interruptions.notices()

    async def acknowledge(self, notice: Notice) -> None:
        """Delete a notice's message."""
        if not self._statuses.acknowledge(notice):
            await self._interruptions.acknowledge(notice)

    def avoid(self, instance_type: str, zone: str, capacity_type: str) -> None:
        """Hold an offering for unavailable for three minutes."""
        self._unavailable.mark(instance_type, zone, capacity_type)

    def learn(self, claim: NodeClaim, capacity: Mapping[str, str | int | float]) -> None:
        """Take note of how much memory a node has that runs a type and an image."""
        name = claim.metadata.labels.get(labels.INSTANCE_TYPE, "")
        memory = quantities.parse(capacity.get(MEMORY, 0))
        self._learned.learn(name, claim.status.image_id, memory)

    def repair_policies(self) -> Sequence[RepairPolicy]:
        """Return the conditions of the kubelet and of the EKS node monitoring agent."""
        half_an_hour = timedelta(minutes=30)
        return (
            RepairPolicy("Ready", "False", half_an_hour),
            RepairPolicy("Ready", "Unknown", half_an_hour),
            RepairPolicy("AcceleratedHardwareReady", "False", timedelta(minutes=10)),
            RepairPolicy("StorageReady", "False", half_an_hour),
            RepairPolicy("NetworkingReady", "False", half_an_hour),
            RepairPolicy("KernelReady", "False", half_an_hour),
            RepairPolicy("ContainerRuntimeReady", "False", half_an_hour),
        )

    def _caveats(self, node_class: EC2NodeClass) -> Iterator[Caveat]:
        if self.pricing.caveat:
            yield Caveat("PricesCurrent", "PricesOutdated", self.pricing.caveat)
        refusal = self._refusals.last(node_class.metadata.name)
        if refusal is not None:
            yield Caveat(
                LAUNCH_SUCCEEDED, refusal.reason, f"the last launch failed: {refusal.message}"
            )
        exceeded = self._unavailable.exceeded()
        if exceeded:
            yield Caveat(WITHIN_QUOTAS, "QuotaExceeded", "; ".join(map(_quota, exceeded)))
        subnets = node_class.status.subnets
        full = [f"{s.id} ({s.zone})" for s in subnets if self._subnets.is_full(s.id)]
        if full:
            yield Caveat(
                ADDRESSES_LEFT,
                "SubnetsFull",
                f"{len(full)} of {len(subnets)} subnets have no free address and get no nodes: "
                f"{', '.join(full)}; free some, or let spec.subnetSelectorTerms select others",
            )
        away = self._shift.away
        shifted = sorted({f"{s.zone} ({s.zone_id})" for s in subnets if s.zone_id in away})
        if shifted:
            yield Caveat(
                ZONES_IN_USE,
                "ZonalShift",
                f"ARC has shifted traffic away from {', '.join(shifted)}: until the shift ends no "
                "node is put there, and none there is ended",
            )

    async def _known(self) -> None:
        """Wait until there is something to decide by; whoever comes meanwhile waits for the first.

        Nobody waits for what is known already to be read again: `_refresh` does that.
        """
        if self._is_ready:
            return
        async with self._loading:
            if self._is_ready:
                return
            if self._first_prices is None:
                self._first_prices = asyncio.create_task(_tried(self._refresh_prices))
            await self._machines.refresh()
            self._types_due = self._clock() + TYPES_PERIOD
            await asyncio.wait({self._first_prices}, timeout=PRICES_PATIENCE)
            self._is_ready = True

    async def _refresh(self) -> None:
        """Read anew what is due; what cannot be read stays in use as it was last known."""
        if self._clock() >= self._types_due:
            self._types_due = self._clock() + TYPES_RETRY
            if await _tried(self._machines.refresh):
                self._types_due = self._clock() + TYPES_PERIOD
        if self._clock() >= self._prices_due:
            await _tried(self._refresh_prices)

    async def _refresh_prices(self) -> None:
        self._prices_due = self._clock() + PRICES_RETRY
        if await self.pricing.refresh():
            self._prices_due = self._clock() + PRICES_PERIOD
        for kind, problem in self.pricing.problems.items():
            log.warning("keeping the last known prices", extra={kind: problem})


def _quota(mark: QuotaMark) -> str:
    return (
        f"the account's quota of {mark.quota} instances, {mark.capacity_type}, leaves less than "
        f"{mark.cpus} vCPUs: no larger one is asked for until it is tried again in some minutes; "
        "raise it in Service Quotas, or let pools use other instance types"
    )


async def _every(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Do a piece of work again and again, whatever becomes of it."""
    while True:
        await asyncio.sleep(seconds)
        await _tried(work)


async def _tried(work: Callable[[], Awaitable[object]]) -> bool:
    """Do a piece of work that the rest can do without; return whether it was done.

    What fails here must not end the leader: another one would fail in the same way.
    """
    try:
        await work()
    except RequestError as exc:
        log.error("a request of ours is wrong", extra={"error": str(exc)})
    except CloudProviderError as exc:
        log.warning("will try again", extra={"error": str(exc)})
    except Exception as exc:
        log.error("unexpected error, will try again", exc_info=exc)
    else:
        return True
    return False
