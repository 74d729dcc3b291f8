"""The AWS cloud provider, composed of one module for each AWS resource."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    ADDRESSES_LEFT,
    LAUNCH_SUCCEEDED,
    OFFERINGS_ACCEPTED,
    WITHIN_QUOTAS,
    ZONES_IN_USE,
    EC2NodeClass,
    SelectorTerm,
)
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import quantities
from controller.apis.wording import first_three
from controller.aws.bootstrap import kubelet
from controller.aws.bootstrap.imagevolumes import with_images
from controller.aws.cluster import VERSION_PERIOD, ClusterFacts
from controller.aws.drift import AMI_DRIFT, drift_reason, static_drift_reason
from controller.aws.errors import PROFILE_INVALID, RequestError
from controller.aws.instances import Instances
from controller.aws.instancetypes.catalogue import Limits
from controller.aws.instancetypes.discoveredcapacity import DiscoveredCapacity
from controller.aws.instancetypes.expecteddevices import Drivers
from controller.aws.instancetypes.offerings import PERIOD as TYPES_PERIOD
from controller.aws.instancetypes.offerings import RETRY as TYPES_RETRY
from controller.aws.instancetypes.offerings import DescribedTypes, InstanceTypes
from controller.aws.instancetypes.pricing import PERIOD as PRICES_PERIOD
from controller.aws.instancetypes.pricing import RETRY as PRICES_RETRY
from controller.aws.instancetypes.pricing import Pricing
from controller.aws.instancetypes.reservations import Reservations
from controller.aws.interruption.instancestatus import PERIOD as STATUS_PERIOD
from controller.aws.interruption.instancestatus import InstanceStatuses
from controller.aws.interruption.messages import Interruptions
from controller.aws.launching.launcher import Launcher
from controller.aws.launching.launchfailures import LaunchFailures
from controller.aws.launching.launchtemplates import LaunchTemplates
from controller.aws.network.placementgroups import PlacementGroups
from controller.aws.network.securitygroups import SecurityGroups
from controller.aws.network.subnets import Subnets
from controller.aws.network.zonalshift import PERIOD as SHIFT_PERIOD
from controller.aws.network.zonalshift import ZonalShift
from controller.aws.nodeclass.amis import AMIs
from controller.aws.nodeclass.instanceprofiles import COLLECT_PERIOD, InstanceProfiles
from controller.aws.nodeclass.status import Caveat, NodeClasses
from controller.aws.ratelimits import Paced
from controller.aws.session import Aws, ReadOnly, Session
from controller.aws.unavailable import CapacityMark, QuotaMark, Unavailable, class_key
from controller.aws.verification import Verification
from controller.cloudprovider.errors import (
    CloudProviderError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
)
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import Instance, Notice, RepairPolicy
from controller.constraints.resources import MEMORY
from controller.options import GATE_DISABLED, Options, gate_disabled
from controller.telemetry.logs import ChangeMonitor

SWEEP = 10.0
"""Seconds between two checks for idle launch templates and outdated data."""

PRICES_PATIENCE = 10.0
"""Seconds for which the first decision waits for prices; then it uses those of the release."""

LEGACY_REPAIR_POLICIES = (
    RepairPolicy("Ready", "False", timedelta(minutes=30)),
    RepairPolicy("Ready", "Unknown", timedelta(minutes=30)),
    RepairPolicy("AcceleratedHardwareReady", "False", timedelta(minutes=10)),
    RepairPolicy("StorageReady", "False", timedelta(minutes=30)),
    RepairPolicy("NetworkingReady", "False", timedelta(minutes=30)),
    RepairPolicy("KernelReady", "False", timedelta(minutes=30)),
    RepairPolicy("ContainerRuntimeReady", "False", timedelta(minutes=30)),
)
"""The policies of Karpenter until 1.14."""

FATAL_GPU_FAULTS = "64|74|79|119|120"
GPU_FAULTS_OF_A_BOOT = "46|48|54|62|63|95|109|110|136|140|143|155|156|158"
"""NVIDIA XID errors after which a node is repaired sooner. The EKS node monitoring agent writes the
XID to the reason of the condition. A reboot clears `GPU_FAULTS_OF_A_BOOT`."""

REPAIR_POLICIES = (
    *(
        replace(one, toleration=timedelta(minutes=30), drain_bound=timedelta(minutes=10))
        for one in LEGACY_REPAIR_POLICIES
    ),
    *(
        RepairPolicy(
            "AcceleratedHardwareReady",
            "False",
            timedelta(minutes=10),
            reasons=f"XID({faults})",
            drain_bound=timedelta(minutes=5),
            reboots=reboots,
        )
        for faults, reboots in ((GPU_FAULTS_OF_A_BOOT, True), (FATAL_GPU_FAULTS, False))
    ),
)
"""The policies of Karpenter 1.15."""

log = logging.getLogger(__name__)


class AWSCloudProvider:
    """Implements `CloudProvider` for EC2.

    `cluster_dns` is the IP address of the cluster's DNS service, empty if unknown. `start` loads
    instance types and prices, and takes over launch templates of earlier processes. `run` refreshes
    this data. A replica calls both while it leads or observes (`DISRUPTION_MODE=observe`).
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
        paced = Paced(aws or Session())
        aws = ReadOnly(paced) if self._observes else paced
        gates, aws_gates = options.feature_gates, options.aws_feature_gates
        are_allocated = not options.ignore_dra_requests
        drivers = Drivers(
            nvidia=aws_gates.dra_nvidia_gpu and are_allocated,
            efa=aws_gates.dra_efa and are_allocated,
        )
        name, installation = options.cluster_name, options.installation_tag
        self.aws = aws
        self._clock = clock
        self._changes = ChangeMonitor()
        self._evaluates = aws_gates.node_class_cel
        self._offers_reserved = gates.reserved_capacity
        self._shifts_zones = options.enable_zonal_shift
        self._repairs_as_before = options.legacy_node_repair
        self._reboots = aws_gates.reboot_for_repair
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
        self._groups = SecurityGroups(
            aws, period=options.security_group_refresh_interval.total_seconds(), clock=clock
        )
        self._reservations = Reservations(aws, clock=clock)
        self._placements = PlacementGroups(aws, clock=clock)
        self.templates = LaunchTemplates(
            aws, name, installation=installation, delay=paced.delay, clock=clock
        )
        self._profiles = InstanceProfiles(
            aws, name, installation=installation, isolated=options.isolated_vpc, clock=clock
        )
        self._refusals = LaunchFailures(clock=clock)
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
        self._described = DescribedTypes(aws)
        self._discovered_capacity = DiscoveredCapacity(clock=clock)
        self._types = InstanceTypes(
            region=aws.region,
            cluster=self._cluster,
            limits=Limits(
                options.vm_memory_overhead_percent,
                options.reserved_enis,
                options.prefix_delegation,
            ),
            described=self._described,
            pricing=self.pricing,
            unavailable=self._unavailable,
            reservations=self._reservations,
            subnets=self._subnets,
            shift=self._shift,
            discovered_capacity=self._discovered_capacity,
            groups=self._placements,
            drivers=drivers,
            offers_reserved=gates.reserved_capacity,
            clock=clock,
        )
        self._launcher = Launcher(
            aws=aws,
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
            amis=AMIs(
                aws,
                period=options.ami_refresh_interval.total_seconds(),
                alias_period=options.ssm_refresh_interval.total_seconds(),
                clock=clock,
            ),
            subnets=self._subnets,
            groups=self._groups,
            profiles=self._profiles,
            reservations=self._reservations,
            placements=self._placements,
            verify=self._verification.verify,
            caveats=self._caveats,
            reserved_capacity=gates.reserved_capacity,
            invalid_expression=self._types.invalid_expression,
            expressions=self._evaluates,
            shares_gpus=aws_gates.dra_nvidia_gpu,
        )

    # Start and background work.

    async def start(self) -> None:
        """Load instance types and prices, and adopt existing launch templates.

        Raises:
            CloudProviderError: EC2 returned no instance types, which every decision needs.

        """
        await self._wait_until_loaded()
        if self._shifts_zones:
            await self._try(self._shift.refresh)
        if not self._observes:
            await self._try(self.templates.hydrate)

    async def run(self) -> None:
        """Refresh cached data and delete unused launch templates until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._every(SWEEP, self._refresh))
            tasks.create_task(self._every(VERSION_PERIOD, self._cluster.refresh))
            if not self._observes:
                tasks.create_task(self._every(SWEEP, self.templates.sweep))
                tasks.create_task(self._every(COLLECT_PERIOD, self.collect_profiles))
                tasks.create_task(
                    self._every(STATUS_PERIOD, lambda: self._statuses.refresh(datetime.now(UTC)))
                )
            if self._shifts_zones:
                tasks.create_task(self._every(SHIFT_PERIOD, self._shift.refresh))

    @property
    def region(self) -> str:
        """The AWS region of the instance types and prices."""
        return self.aws.region

    @property
    def price_error(self) -> str:
        """Why on-demand or spot prices could not be read; empty if they were."""
        return "; ".join(self.pricing.problems.values())

    async def shutdown(self) -> None:
        """Start no more calls, and wait for those in progress."""
        await self.aws.shutdown()

    async def collect_profiles(self) -> None:
        """Delete this installation's profiles that no EC2NodeClass and no instance uses."""
        await self._profiles.collect(self._instances.profiles)

    # The methods of the port `CloudProvider`.

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every instance type that the EC2NodeClass can launch; the list is cached.

        An instance type with a share of a GPU counts as having no GPU, unless `node_pool` requires
        it or its family. Prices include the volume with container images that `node_pool` adds.

        Raises:
            NodeClassNotReadyError: the subnets or AMIs are not resolved yet, or `spec.kubelet` is
                invalid.

        """
        self._require_resolved(node_class)
        await self._wait_until_loaded()
        if node_pool is None:
            return self._types.of(node_class)
        template = node_pool.spec.template
        images = with_images(node_class, template.metadata.annotations or {})
        own = template.metadata.labels or {}
        return self._types.of(images.node_class, template.spec.requirements, own)

    def _require_resolved(self, node_class: EC2NodeClass) -> None:
        if not node_class.status.subnets or not node_class.status.amis:
            raise NodeClassNotReadyError(
                f"EC2NodeClass {node_class.metadata.name} is not ready: its subnets and AMIs are "
                "not resolved yet"
            )
        settings = node_class.spec.kubelet
        wrong = kubelet.problems(settings)
        closed = "" if self._evaluates else kubelet.gate_problems(settings)
        if wrong or closed:
            raise NodeClassNotReadyError("; ".join(wrong) or closed)

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the NodeClaim's instance; repeated calls return the same instance.

        Arguments and errors are those of `Launcher.launch`.
        """
        await self._wait_until_loaded()
        try:
            instance = await self._launcher.launch(claim, node_class, types)
        except CloudProviderError as exc:
            self._record_refusal(node_class, exc)
            raise
        self._refusals.record_success(node_class.metadata.name)
        return instance

    def _record_refusal(self, node_class: EC2NodeClass, error: CloudProviderError) -> None:
        """Drop cached validations of the EC2NodeClass that the refused launch disproves."""
        self._refusals.record_failure(node_class.metadata.name, error)
        if error.reason == PROFILE_INVALID:
            self._profiles.forget(node_class)
        if error.reason == PROFILE_INVALID or error.reason.startswith("Unauthorized"):
            self._verification.forget()

    async def terminate(self, provider_id: str) -> None:
        """Terminate the instance.

        Raises:
            NodeClaimNotFoundError: the instance does not exist or is terminated.

        """
        try:
            ended = await self._instances.terminate(provider_id)
        except NodeClaimNotFoundError:
            reservation = self._in_reservation.pop(provider_id, "")
            if reservation:
                self._reservations.mark_terminated(reservation)
            raise
        if ended is not None and ended.reserved_by:
            self._in_reservation[provider_id] = ended.reserved_by

    async def reboot(self, provider_id: str) -> None:
        """Reboot the instance; errors as in `Instances.reboot`."""
        await self._instances.reboot(provider_id)

    async def get(self, provider_id: str) -> Instance:
        """Return one instance; errors as in `Instances.get`."""
        return (await self._instances.get(provider_id)).instance

    async def launched_for(self, claim: NodeClaim) -> Instance | None:
        """Return the NodeClaim's instance, or None; calls close together share a request."""
        return await self._launcher.launched_for(claim)

    async def instances(self) -> Sequence[Instance]:
        """Return every instance of the cluster's NodeClaims that is not terminated."""
        return await self._instances.all()

    async def expiring_reservations(self, reservation_ids: Collection[str]) -> Collection[str]:
        """Return those of the capacity reservations that end soon.

        These are capacity blocks that end within 40 minutes.
        """
        found = await self._reservations.find([SelectorTerm(id=i) for i in reservation_ids])
        now = datetime.now(UTC)
        return [reservation.id for reservation in found if reservation.is_expiring(now)]

    async def tag(self, provider_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance."""
        await self._instances.tag(provider_id, tags)

    async def resolve(self, node_class: EC2NodeClass, *, now: datetime) -> EC2NodeClass:
        """Return the EC2NodeClass with its current status."""
        await self._wait_until_loaded()
        return await self._classes.resolve(node_class, now=now)

    async def release(self, node_class: EC2NodeClass) -> None:
        """Delete the launch templates and instance profiles of the EC2NodeClass."""
        await self.templates.release(node_class.metadata.name)
        await self._profiles.release(node_class)

    async def drift_reason(self, claim: NodeClaim, node_class: EC2NodeClass) -> str | None:
        """Return why the instance has drifted from its EC2NodeClass, or None.

        Raises:
            CloudProviderError: drift cannot be determined, because EC2 does not describe the
                instance, or the EC2NodeClass is not ready or does not offer its type.

        """
        self._require_resolved(node_class)
        if static := static_drift_reason(claim, node_class):
            return static
        name = claim.metadata.labels.get(labels.INSTANCE_TYPE, "")
        every = await self.instance_types(node_class)
        instance_type = next((t for t in every if t.name == name), None)
        if instance_type is None:
            if self._types.has_no_image(node_class, name):
                return AMI_DRIFT
            raise CloudProviderError(
                f"NodeClaim {claim.metadata.name}: cannot determine drift: EC2NodeClass "
                f"{node_class.metadata.name} has no offering of its instance type {name!r}"
            )
        spec = node_class.spec
        instance = await self._instances.get(claim.status.provider_id)
        selected = frozenset(r.id for r in node_class.status.capacity_reservations)
        if instance.reserved_by and instance.reserved_by not in selected:
            # The status may be older than the selection of the reservation.
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
        """Wait up to 20 s for messages of the interruption queue, and return them as notices."""
        return await self._interruptions.notices()

    async def status_notices(self) -> Sequence[Notice]:
        """Return the unacknowledged findings of the last instance status check."""
        return self._statuses.unacknowledged_notices()

    async def acknowledge(self, notice: Notice) -> None:
        """Acknowledge a notice; if it is a message of the interruption queue, delete it there."""
        if not self._statuses.acknowledge(notice):
            await self._interruptions.acknowledge(notice)

    def shifted_zones(self) -> frozenset[str]:
        """Return the IDs of the zones from which ARC has shifted the cluster away."""
        return self._shift.away

    def mark_unavailable(self, instance_type: str, zone: str, capacity_type: str) -> None:
        """Mark an offering as unavailable for 3 minutes, or longer after repeated marks."""
        self._unavailable.mark(instance_type, zone, capacity_type)

    def record_capacity(self, claim: NodeClaim, capacity: Mapping[str, str | int | float]) -> None:
        """Record the memory capacity of a node, by instance type and AMI."""
        name = claim.metadata.labels.get(labels.INSTANCE_TYPE, "")
        memory = quantities.parse(capacity.get(MEMORY, 0))
        self._discovered_capacity.record(name, claim.status.image_id, memory)

    def repair_policies(self) -> Sequence[RepairPolicy]:
        """Return the unhealthy conditions of the kubelet and of the EKS node monitoring agent."""
        if self._repairs_as_before:
            return LEGACY_REPAIR_POLICIES
        if self._reboots:
            return REPAIR_POLICIES
        return [replace(policy, reboots=False) for policy in REPAIR_POLICIES]

    def _caveats(self, node_class: EC2NodeClass) -> Iterator[Caveat]:
        if self.pricing.caveat:
            yield Caveat("PricesCurrent", "PricesOutdated", self.pricing.caveat)
        if node_class.spec.capacity_reservation_selector_terms and not self._offers_reserved:
            yield Caveat(
                "CapacityReservationsReady",
                GATE_DISABLED,
                gate_disabled("spec.capacityReservationSelectorTerms", "ReservedCapacity"),
            )
        refusal = self._refusals.last(node_class.metadata.name)
        if refusal is not None:
            yield Caveat(
                LAUNCH_SUCCEEDED, refusal.reason, f"The last launch failed: {refusal.message}"
            )
        exceeded = self._unavailable.exceeded_quotas()
        if exceeded:
            yield Caveat(WITHIN_QUOTAS, "QuotaExceeded", "; ".join(map(_quota, exceeded)))
        refused = self._unavailable.refused_by_reason(class_key(node_class))
        if refused:
            yield Caveat(
                OFFERINGS_ACCEPTED,
                "OfferingsRefused",
                "; ".join(itertools.starmap(_refused_offerings, refused.items())),
            )
        subnets = node_class.status.subnets
        full = [f"{s.id} ({s.zone})" for s in subnets if self._subnets.is_full(s.id)]
        if full:
            yield Caveat(
                ADDRESSES_LEFT,
                "SubnetsFull",
                f"{len(full)} of {len(subnets)} subnets have no free IP addresses, so no nodes are "
                f"launched there: {', '.join(full)}; free addresses, or select other subnets with "
                "spec.subnetSelectorTerms",
            )
        away = self._shift.away
        shifted = sorted({f"{s.zone} ({s.zone_id})" for s in subnets if s.zone_id in away})
        if shifted:
            yield Caveat(
                ZONES_IN_USE,
                "ZonalShift",
                f"ARC has shifted traffic away from {', '.join(shifted)}: until the shift ends, "
                "no nodes are launched or terminated there",
            )

    async def _wait_until_loaded(self) -> None:
        """Wait until instance types and prices are loaded; concurrent callers share one load.

        Later calls return at once: `_refresh` updates the data.
        """
        if self._is_ready:
            return
        async with self._loading:
            if self._is_ready:
                return
            if self._first_prices is None:
                self._first_prices = asyncio.create_task(self._try(self._refresh_prices))
            await self._refresh_types()
            await self._try(self._cluster.get)
            await asyncio.wait({self._first_prices}, timeout=PRICES_PATIENCE)
            self._is_ready = True

    async def _refresh(self) -> None:
        """Update data that is due; on failure the last known data stays in use."""
        if self._clock() >= self._types_due:
            await self._try(self._refresh_types)
        if self._clock() >= self._prices_due:
            await self._try(self._refresh_prices)

    async def _refresh_types(self) -> None:
        self._types_due = self._clock() + TYPES_RETRY
        if await self._described.refresh():
            self._types_due = self._clock() + TYPES_PERIOD

    async def _refresh_prices(self) -> None:
        self._prices_due = self._clock() + PRICES_RETRY
        if await self.pricing.refresh():
            self._prices_due = self._clock() + PRICES_PERIOD
        for prices, problem in self.pricing.problems.items():
            if self._changes.has_changed(f"prices, {prices}", problem):
                log.warning(
                    "failed to update prices; keeping the last known ones",
                    extra={prices: problem},
                )

    async def _every(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        """Repeat the work at an interval, also after failures."""
        while True:
            await asyncio.sleep(seconds)
            await self._try(work)

    async def _try(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Do optional work; return whether it succeeded.

        A failure must not end this process, because the next leader would fail, too. It is logged
        only when it changes.
        """
        try:
            await work()
        except Exception as exc:
            if self._changes.has_changed(repr(exc)):
                _log_failure(exc)
            return False
        return True


def _quota(mark: QuotaMark) -> str:
    return (
        f"the account's quota of {mark.quota} instances, {mark.capacity_type}, leaves less than "
        f"{mark.cpus} vCPUs: instance types of this size or larger are not launched for some "
        "minutes. Request a quota increase in Service Quotas, or allow other instance types in "
        "the NodePools"
    )


def _refused_offerings(reason: str, marks: Sequence[CapacityMark]) -> str:
    named = [f"{mark.instance_type} ({mark.zone}, {mark.capacity_type})" for mark in marks]
    return (
        f"EC2 refuses {first_three(named)} for this EC2NodeClass: {reason}. Joiner launches other "
        "offerings for some minutes"
    )


def _log_failure(exc: Exception) -> None:
    if isinstance(exc, RequestError):
        log.error(
            "a request to AWS is invalid and was not sent; this is a bug of Joiner: please report "
            "it, with the error",
            extra={"error": str(exc)},
        )
    elif isinstance(exc, CloudProviderError):
        log.warning("a periodic call to AWS failed; retrying", extra={"error": str(exc)})
    else:
        log.error(
            "a periodic task failed with an unexpected error, please report it; retrying",
            exc_info=exc,
        )
