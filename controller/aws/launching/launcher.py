"""Launches exactly one EC2 instance for each NodeClaim.

The ClientToken of a launch is derived from the NodeClaim's UID. If the controller stops after EC2
has received the request, the next process sends the same request and gets the same instance. Prices
and unavailable offerings are not persisted, so the next process may send a different request. EC2
rejects that request, and the launcher finds the instance by its NodeClaim tag.

Equal NodeClaims that are launched at the same time share a call, as in Karpenter. Its ClientToken
is derived from all their UIDs, so the same NodeClaims get the same instances again. If the
controller stops before their status names the instances, the next process may launch other sets of
them, which get new instances. Garbage collection terminates those that no NodeClaim names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec
import tenacity
from cachetools import LRUCache, TTLCache

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodeclasscauses import causes
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.quantities import MILLI, format_quantity
from controller.apis.kubernetes.taints import Requirement
from controller.aws.batching import Batcher
from controller.aws.bootstrap.imagevolumes import with_images
from controller.aws.cluster import ClusterFacts, EksCluster
from controller.aws.errors import (
    FLEET_QUOTA,
    LAUNCH_TEMPLATE_NOT_FOUND,
    NO_ADDRESSES,
    SPOT_ROLE_MISSING,
    TOKEN_REUSED,
    VCPU_QUOTA,
    AwsError,
    FleetError,
    launch_failure,
)
from controller.aws.instances import Described, Instances, as_launched, provider_id
from controller.aws.instancetypes.catalogue import EFA
from controller.aws.instancetypes.offerings import RESERVATION_ID, InstanceTypes
from controller.aws.instancetypes.reservations import Reservations
from controller.aws.launching import fleet
from controller.aws.launching.candidates import (
    NITRO_SANDBOX,
    WRITTEN_TEMPLATES,
    Writer,
    market,
    wants_efa,
)
from controller.aws.launching.fleet import FleetResult, LaunchCandidate, Launched
from controller.aws.launching.launchfilters import UNAVAILABLE, filter_choices
from controller.aws.launching.launchtemplates import LaunchTemplate, LaunchTemplates
from controller.aws.network.placementgroups import PlacementGroup, PlacementGroups
from controller.aws.network.subnets import Subnet, Subnets
from controller.aws.nodeclass import nodeclasstags
from controller.aws.quotas import quota_of
from controller.aws.session import Aws
from controller.aws.unavailable import Unavailable, class_key
from controller.cloudprovider.compatibility import choices, node_labels
from controller.cloudprovider.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
    NodeClassNotReadyError,
    NodeClassUnknownError,
)
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.cloudprovider.provider import Instance
from controller.constraints.requirements import read
from controller.constraints.resources import CPU, PODS, Resources, parse_resources

TENANCY = f"{labels.AWS_GROUP}/instance-tenancy"

LISTED_AFTER = 20.0
"""Seconds after which an instance that EC2 does not list counts as not launched.

EC2's lists are consistent sooner.
"""

IDLE_SECONDS = 0.035
"""Seconds without another equal NodeClaim after which a call is made, as in Karpenter."""

MAX_INSTANCES = 1000
"""The greatest number of instances that EC2 launches by one call."""

REMEMBERED_SECONDS = 3600.0
"""Seconds for which this process remembers its launches."""

TEMPLATE_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Delays in seconds before each retry after EC2 did not find the launch template.

The first retry is immediate: an idle template was deleted and is created again. The others wait
because EC2 does not find a new template at once. The delays also apply if EC2 has no capacity and
the request omitted offerings.
"""


LAUNCH_ANNOTATIONS = (
    labels.MIN_VALUES_RELAXED,
    labels.PRICE_OVERLAY_APPLIED,
    labels.IMAGE_SNAPSHOT,
    labels.FAST_IMAGE_PULL,
    labels.REQUESTED_DRA_DRIVERS,
)
"""The annotations of a NodeClaim on which its launch depends."""

Offered = tuple[InstanceType, Offering, Subnet]
"""An instance type, the offering that EC2 may choose, and the subnet that it would launch into."""


@dataclass(slots=True)
class Attempts:
    """The attempts of this process to launch one NodeClaim.

    `number` is that of the current attempt. `doubted_since` is when EC2 first rejected its repeated
    call, in seconds of the clock, while EC2 did not list the instance of the call.
    """

    number: int = 0
    doubted_since: float | None = None
    instance: Instance | None = None
    omitted: frozenset[str] = frozenset()
    """Names of the launch templates that the current attempt omits.

    A repeated call must omit them too, or EC2 rejects it because of its ClientToken.
    """

    def start_next(self) -> None:
        """Start the next attempt, because repeating the current one cannot succeed."""
        self.number += 1
        self.omitted = frozenset()


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `Launcher.launch` for the NodeClaim with a UID, and its attempts."""

    uid: str
    claim: NodeClaim = field(compare=False)
    node_class: EC2NodeClass = field(compare=False)
    types: Sequence[InstanceType] | None = field(compare=False)
    attempts: Attempts = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """The content of a CreateFleet request, and the IP addresses that an instance reserves."""

    claim: NodeClaim
    node_class: EC2NodeClass
    capacity_type: str
    candidates: Sequence[LaunchCandidate]
    tags: Mapping[str, str]
    cluster: EksCluster
    market: str = ""
    tenancy: str = "default"
    group: PlacementGroup | None = None
    partition: str = ""
    """Partition of the placement group that the launch requires; empty if EC2 chooses."""

    addresses: Mapping[str, int]
    count: int
    """The number of instances to launch."""

    omitted: frozenset[str]
    """Names of the launch templates that the request omits because of EC2's rate limit."""

    def reserved_addresses(self, used: Mapping[str, int]) -> dict[str, int]:
        """Return the number of IP addresses that the launch reserves, by subnet ID.

        `used` is the number of launched instances by subnet ID; their addresses are subtracted.
        """
        return {s: n * (self.count - used.get(s, 0)) for s, n in self.addresses.items()}


class _TemplateGoneError(CreateError):
    """A launch template was deleted between its creation and its use."""

    reason = "LaunchTemplateNotFound"


class _TokenReusedError(CreateError):
    """An earlier process made another request for the same NodeClaims."""


class _OfferingsOmittedError(InsufficientCapacityError):
    """EC2 has no capacity for the request, which omitted offerings because of the rate limit."""


@dataclass(kw_only=True)
class Launcher:
    """Launches one EC2 instance per NodeClaim."""

    aws: Aws
    cluster: ClusterFacts
    types: InstanceTypes
    subnets: Subnets
    templates: LaunchTemplates
    instances: Instances
    unavailable: Unavailable
    reservations: Reservations
    groups: PlacementGroups
    installation: str
    reserved_capacity: bool
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._attempts: TTLCache[str, Attempts] = TTLCache(math.inf, REMEMBERED_SECONDS, self.clock)
        self._batchers: TTLCache[Hashable, Batcher[Request, Instance | CloudProviderError]] = (
            TTLCache(math.inf, REMEMBERED_SECONDS, self.clock)
        )
        self._written: LRUCache[bytes, LaunchTemplate] = LRUCache(WRITTEN_TEMPLATES)

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the NodeClaim's instance, or return it if it has already been launched.

        Args:
            claim: the NodeClaim.
            node_class: the EC2NodeClass that the NodeClaim refers to.
            types: the instance types of the EC2NodeClass with NodeOverlays applied; None to use
                those of the catalogue.

        Raises:
            InsufficientCapacityError: no offering that meets the NodeClaim is available now.
            NodeClassNotReadyError: the EC2NodeClass cannot launch instances.
            NodeClassUnknownError: the EC2NodeClass has not been reconciled yet.
            CreateError: the launch failed; `reason` is the cause.

        """
        attempts = self._of(claim)
        if attempts.instance is not None:
            return attempts.instance
        require_ready(node_class)
        request = Request(claim.metadata.uid, claim, node_class, types, attempts)
        outcome: Instance | CloudProviderError | None
        if _may_be_reserved(claim, node_class):
            # A reservation may not have enough instances left for several NodeClaims.
            outcome = (await self._launch_together([request]))[request]
        else:
            outcome = await self._batcher(request).get(request)
        if not isinstance(outcome, Instance):
            assert outcome is not None
            raise outcome
        return outcome

    async def launched_for(self, claim: NodeClaim) -> Instance | None:
        """Return this installation's instance of a NodeClaim, or None.

        It is for NodeClaims whose status does not name their instance yet.
        """
        return self._of(claim).instance or await self.instances.launched_for(claim.metadata.name)

    def _batcher(self, request: Request) -> Batcher[Request, Instance | CloudProviderError]:
        return self._batchers.setdefault(
            _content(request.claim),
            Batcher(self._launch_together, idle=IDLE_SECONDS, size=MAX_INSTANCES),
        )

    async def _launch_together(
        self, requests: Sequence[Request]
    ) -> Mapping[Request, Instance | CloudProviderError]:
        """Launch the instances of equal NodeClaims by one call.

        If EC2 launches fewer instances, the last requests get the error.

        Raises:
            CloudProviderError: the call failed.

        """
        instances, errors = await self._launch_once(requests)
        launched = dict(zip(requests, instances, strict=False))
        for request, instance in launched.items():
            # Here: a caller may have been cancelled.
            request.attempts.instance = instance
            self.instances.record_launch(instance)
        failure = launch_failure(errors)
        return {request: launched.get(request, failure) for request in requests}

    def held(self, plan: LaunchPlan) -> AbstractContextManager[None]:
        """Keep the launch templates of a plan from being deleted while the launch uses them."""
        return self.templates.held(candidate.template for candidate in plan.candidates)

    def _of(self, claim: NodeClaim) -> Attempts:
        return self._attempts.setdefault(claim.metadata.uid, Attempts())

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(
            (_TemplateGoneError, _OfferingsOmittedError, _TokenReusedError)
        ),
        wait=tenacity.wait_chain(*map(tenacity.wait_fixed, TEMPLATE_PAUSES)),
        stop=tenacity.stop_after_attempt(1 + len(TEMPLATE_PAUSES)),
        reraise=True,
    )
    async def _launch_once(
        self, requests: Sequence[Request]
    ) -> tuple[Sequence[Instance], Sequence[FleetError]]:
        """Return the instances of one call, and EC2's errors; there is an instance, or an error."""
        every = [request.attempts for request in requests]
        token = fleet.client_token((r.claim.metadata.uid, r.attempts.number) for r in requests)
        claim, node_class = requests[0].claim, requests[0].node_class
        plan = await self.plan(
            claim,
            node_class,
            requests[0].types,
            omitted=frozenset().union(*(attempts.omitted for attempts in every)),
            shared=token if len(requests) > 1 else "",
            count=len(requests),
        )
        for attempts in every:
            attempts.omitted = plan.omitted
        self.subnets.reserve_addresses(plan.reserved_addresses({}))
        used: Counter[str] = Counter()
        try:
            with self.held(plan):
                response = await self._call_fleet(plan, token, every)
            used.update(each.candidate.subnet_id for each in response.launched)
        except AwsError as exc:
            if exc.code == TOKEN_REUSED:
                if plan.count == 1:
                    return [await self._recover_launch(plan, every[0])], ()
                _start_next(every)
                raise _TokenReusedError(str(exc), reason=exc.reason) from exc
            if exc.code in LAUNCH_TEMPLATE_NOT_FOUND:
                self.templates.forget(c.template.name for c in plan.candidates)
                raise _TemplateGoneError(str(exc), reason=exc.reason) from exc
            refused = FleetError(exc.code, str(exc))
            self._mark_refused([refused], plan)
            raise launch_failure([refused]) from exc
        finally:
            self.subnets.release_addresses(plan.reserved_addresses(used))
        for subnet_id in used.elements():
            self.subnets.use_address(subnet_id)
        return [self._instance(plan, each) for each in response.launched], response.errors

    async def _call_fleet(
        self, plan: LaunchPlan, token: str, every: Iterable[Attempts]
    ) -> FleetResult:
        context = plan.node_class.spec.context
        if plan.claim.metadata.annotations.get(labels.MIN_VALUES_RELAXED) == "true":
            context = None
        response = await self.aws.call(
            "ec2",
            "create_fleet",
            **fleet.request(
                plan.candidates,
                capacity_type=plan.capacity_type,
                token=token,
                tags=plan.tags,
                context=context,
                market=plan.market,
                by_priority=labels.PRICE_OVERLAY_APPLIED in plan.claim.metadata.annotations,
                count=plan.count,
            ),
        )
        result = fleet.read(response, plan.candidates)
        self._mark_refused(result.errors, plan)
        if not result.launched:
            # EC2 repeats the result for the same client token, so the next attempt needs another.
            _start_next(every)
            if any(e.code in LAUNCH_TEMPLATE_NOT_FOUND for e in result.errors):
                self.templates.forget(c.template.name for c in plan.candidates)
                raise _TemplateGoneError("the launch template is gone")
            failure = launch_failure(result.errors)
            if plan.omitted and failure.reason == InsufficientCapacityError.reason:
                raise _OfferingsOmittedError(str(failure)) from failure
            raise failure
        for each in result.launched:
            if plan.capacity_type == labels.RESERVED:
                offered = each.candidate.offering.requirements
                self.reservations.mark_launched(offered[RESERVATION_ID])
            instance_type = each.candidate.instance_type
            cpus = instance_type.capacity[CPU] // MILLI
            self.unavailable.record_launch(instance_type.name, cpus, plan.capacity_type)
        return result

    def _mark_refused(self, errors: Iterable[FleetError], plan: LaunchPlan) -> None:
        """Mark the refused offerings as unavailable, so that the next request omits them."""
        for error in errors:
            self._avoid(error, plan)

    def _avoid(self, error: FleetError, plan: LaunchPlan) -> None:
        if error.code == SPOT_ROLE_MISSING:
            self.unavailable.mark_capacity_type(labels.SPOT)
        elif error.code == FLEET_QUOTA:
            for capacity_type in (labels.ON_DEMAND, labels.SPOT, labels.RESERVED):
                self.unavailable.mark_capacity_type(capacity_type)
        elif error.code in VCPU_QUOTA:
            self._mark_quotas(error, plan)
        elif error.code == NO_ADDRESSES:
            for candidate in _refused_candidates(error, plan):
                self.subnets.mark_full(candidate.subnet_id)
        elif error.is_full_group and plan.group is not None:
            for candidate in _refused_candidates(error, plan):
                self.unavailable.mark_group(plan.group.id, candidate.offering.zone)
        elif error.is_insufficient_capacity or error.is_about_offering:
            self._mark_pools(error, plan)

    def _mark_pools(self, error: FleetError, plan: LaunchPlan) -> None:
        """Mark as unavailable the instance types by zone, or the reservations, that EC2 refused."""
        group = plan.group.part(plan.partition) if plan.group else ""
        pools = {(c.instance_type.name, c.offering.zone) for c in _refused_candidates(error, plan)}
        if plan.capacity_type != labels.RESERVED:
            for instance_type, zone in pools:
                if error.is_insufficient_capacity:
                    self.unavailable.mark(instance_type, zone, plan.capacity_type, group=group)
                else:
                    self.unavailable.mark_refused(
                        instance_type,
                        zone,
                        plan.capacity_type,
                        node_class=class_key(plan.node_class),
                        reason=f"{error.code}: {error.message}",
                    )
            return
        for candidate in plan.candidates:
            if candidate.instance_type.name in {name for name, _ in pools}:
                offered = candidate.offering.requirements
                self.reservations.mark_unavailable(offered[RESERVATION_ID])

    def _mark_quotas(self, error: FleetError, plan: LaunchPlan) -> None:
        """Mark the quotas as exhausted for the smallest refused number of vCPUs and above."""
        least: dict[str, int] = {}
        for candidate in _refused_candidates(error, plan):
            refused = candidate.instance_type
            quota, cpus = quota_of(refused.name), refused.capacity[CPU] // MILLI
            least[quota] = min(cpus, least.get(quota, cpus))
        for quota, cpus in least.items():
            self.unavailable.mark_quota(plan.capacity_type, quota, cpus)

    async def _recover_launch(self, plan: LaunchPlan, attempts: Attempts) -> Instance:
        """Return the instance that an earlier process launched by the same call.

        Raises:
            CloudProviderError: EC2 does not list it yet. After `LISTED_AFTER` seconds, the next
                call starts a new attempt.

        """
        meta = plan.claim.metadata
        launched = await self.instances.of_claim(meta.name, since=meta.creation_timestamp)
        if launched is not None:
            return self._found(plan, launched)
        now = self.clock()
        if attempts.doubted_since is None:
            attempts.doubted_since = now
        if now - attempts.doubted_since > LISTED_AFTER:
            # EC2's lists are consistent after this time.
            attempts.doubted_since = None
            attempts.start_next()
        raise CloudProviderError(
            f"an earlier process may have launched an instance for NodeClaim {meta.name}; waiting "
            "until EC2 lists it",
            reason="LaunchInDoubt",
        )

    def _found(self, plan: LaunchPlan, launched: Described) -> Instance:
        seen = launched.instance
        for instance_type in self.types.of(
            plan.node_class, plan.claim.spec.requirements, plan.claim.metadata.labels
        ):
            if instance_type.name == seen.instance_type:
                for offering in instance_type.offerings:
                    if (offering.zone, offering.capacity_type) == (seen.zone, seen.capacity_type):
                        known = self._instance_with_labels(plan, instance_type, offering)
                        return as_launched(launched, known)
        return seen

    # The content of the CreateFleet request.

    async def plan(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
        *,
        omitted: frozenset[str] = frozenset(),
        shared: str = "",
        count: int = 1,
    ) -> LaunchPlan:
        """Select the offerings to request for a NodeClaim and create their launch templates.

        `shared` is the ClientToken of a call for `count` NodeClaims; it is a tag of their instances
        instead of the name of the NodeClaim. `omitted` are names of launch templates whose
        offerings the plan leaves out, unless it would have none then. It also leaves out those
        whose launch templates would wait too long for EC2's rate limit, unless the NodeClaim has
        `minValues`.

        Raises:
            InsufficientCapacityError: no offering that meets the NodeClaim is available now.
            NodeClassNotReadyError: the EC2NodeClass cannot launch instances.

        """
        images = with_images(node_class, claim.metadata.annotations)
        node_class = images.node_class
        required = claim.spec.requirements
        relaxed = claim.metadata.annotations.get(labels.MIN_VALUES_RELAXED) == "true"
        known = (
            self.types.of(node_class, required, claim.metadata.labels) if types is None else types
        )
        chosen = filter_choices(
            choices(known, required, _requests(claim)),
            required,
            relaxed=relaxed,
        )
        zones = await self.subnets.for_launch(s.id for s in node_class.status.subnets)
        offered: Sequence[Offered] = [
            (c.instance_type, o, zones[o.zone])
            for c in chosen
            for o in c.offerings
            if o.zone in zones
        ]
        if not offered:
            raise InsufficientCapacityError(UNAVAILABLE)
        offered, partition = _in_one_partition(offered, required)
        cluster = await self.cluster.get()
        group = await self.groups.find(node_class.spec.placement_group_selector)
        tenancy = _tenancy(claim)
        tags = self._tags(claim, node_class, cluster.name)
        write = Writer(
            claim=claim,
            node_class=node_class,
            image_device=images.device,
            cluster=cluster,
            tags=tags,
            group=group,
            partition=partition,
            tenancy=tenancy,
            names_reservations=self.reserved_capacity,
            in_isolated_partition=self.aws.region.startswith(("us-iso", "eu-iso")),
            kubelet=lambda name: self.types.kubelet(node_class, name),
            attachments_with_efa=self.types.attachments_with_efa,
            written=self._written,
        )
        candidates = [write.candidate(*each) for each in offered]
        kept = [c for c in candidates if c.template.name not in omitted] or candidates
        wanted = _most_useful_first(kept)
        is_flexible = not relaxed and any(r.min_values is not None for r in required)
        exist = await self.templates.ensure(wanted, required=len(wanted) if is_flexible else 1)
        kept = [c for c in kept if c.template.name in exist]
        pairs = zip(offered, candidates, strict=True)
        offered = [each for each, c in pairs if c.template.name in exist]
        first = offered[0][1]
        return LaunchPlan(
            claim=claim,
            node_class=node_class,
            capacity_type=first.capacity_type,
            candidates=kept,
            tags={
                **tags,
                **(
                    {labels.SHARED_LAUNCH: shared}
                    if shared
                    else {labels.TAG_NODECLAIM: claim.metadata.name}
                ),
            },
            cluster=cluster,
            market=market(first),
            tenancy=tenancy,
            group=group,
            partition=partition,
            addresses=_addresses(offered),
            count=count,
            omitted=frozenset(c.template.name for c in candidates) - exist,
        )

    def _tags(self, claim: NodeClaim, node_class: EC2NodeClass, cluster: str) -> dict[str, str]:
        refused = nodeclasstags.forbidden(node_class.spec.tags or {})
        if refused:
            raise NodeClassNotReadyError(
                f"EC2NodeClass {node_class.metadata.name}: spec.tags contains restricted tags, "
                f"which only the controller sets: {', '.join(refused)}; remove them"
            )
        pool = claim.metadata.labels.get(labels.NODEPOOL, "")
        return nodeclasstags.launch_tags(node_class, cluster, pool, self.installation)

    # The result of a launch.

    def _instance(self, plan: LaunchPlan, launched: Launched) -> Instance:
        candidate = launched.candidate
        known = self._instance_with_labels(plan, candidate.instance_type, candidate.offering)
        return replace(
            known,
            provider_id=provider_id(candidate.offering.zone, launched.instance_id),
            image_id=candidate.image_id,
            tags=dict(plan.tags),
        )

    def _instance_with_labels(
        self, plan: LaunchPlan, instance_type: InstanceType, offering: Offering
    ) -> Instance:
        node_class = plan.node_class
        carried = node_labels(instance_type, offering)
        if offering.capacity_type != labels.RESERVED:
            carried = {k: v for k, v in carried.items() if k not in labels.RESERVATION_LABELS}
        carried |= {TENANCY: plan.tenancy}
        if plan.group is not None:
            carried[labels.PLACEMENT_GROUP_ID] = plan.group.id
            if plan.group.partition_names:
                carried[labels.PLACEMENT_GROUP_PARTITION] = plan.partition
        pool = plan.tags[labels.NODEPOOL]
        hidden = () if _wants_efa(plan) else (EFA,)
        return Instance(
            provider_id="",
            instance_type=instance_type.name,
            zone=offering.zone,
            capacity_type=offering.capacity_type,
            launched_at=datetime.now(UTC),
            labels={**carried, **({labels.NODEPOOL: pool} if pool else {})},
            annotations={
                **_hashes(node_class),
                labels.INSTANCE_PROFILE_NAME: node_class.status.instance_profile,
            },
            capacity=_quantities(instance_type.capacity, hidden),
            allocatable=_quantities(instance_type.allocatable, hidden),
        )


def require_ready(node_class: EC2NodeClass) -> None:
    """Raise an error unless the EC2NodeClass is ready to launch instances.

    Raises:
        InsufficientCapacityError: the EC2NodeClass is being deleted; delete the NodeClaim.
        NodeClassNotReadyError: it is not ready, or its spec changed after it became ready.
        NodeClassUnknownError: it has not been reconciled yet; retry soon.

    """
    meta = node_class.metadata
    if meta.is_deleting:
        raise InsufficientCapacityError(f"EC2NodeClass {meta.name} is being deleted")
    ready = conditions.find(node_class.status.conditions, "Ready")
    if ready is None or ready.status == "Unknown":
        raise NodeClassUnknownError(f"EC2NodeClass {meta.name} has not been reconciled yet")
    if ready.is_false:
        raise NodeClassNotReadyError(f"EC2NodeClass {meta.name} is not ready: {causes(node_class)}")
    if ready.observed_generation != meta.generation:
        raise NodeClassNotReadyError(
            f"EC2NodeClass {meta.name} has not been reconciled against its latest spec"
        )


def _refused_candidates(error: FleetError, plan: LaunchPlan) -> Iterator[LaunchCandidate]:
    """Yield the candidates of the request that an error applies to.

    An error of the whole request names no instance type, zone or subnet, and applies to all
    candidates. If it marked none, the next request would contain and EC2 would refuse them again.
    """
    for candidate in fleet.cheapest(plan.candidates):
        if (
            error.instance_type in ("", candidate.instance_type.name)
            and error.zone in ("", candidate.offering.zone)
            and error.subnet_id in ("", candidate.subnet_id)
        ):
            yield candidate


def _most_useful_first(candidates: Sequence[LaunchCandidate]) -> list[LaunchTemplate]:
    """Return the launch templates: that of the cheapest offering, then those of most offerings."""
    first = fleet.cheapest(candidates)[0].template.name
    uses = Counter(c.template.name for c in candidates)
    return sorted(
        {c.template.name: c.template for c in candidates}.values(),
        key=lambda template: (template.name != first, -uses[template.name], template.name),
    )


def _start_next(every: Iterable[Attempts]) -> None:
    for attempts in every:
        attempts.start_next()


def _content(claim: NodeClaim) -> Hashable:
    """Return everything on which the launch of a NodeClaim depends."""
    written = claim.metadata.annotations
    return (
        msgspec.json.encode(claim.spec),
        tuple(sorted(claim.metadata.labels.items())),
        *(written.get(name) for name in LAUNCH_ANNOTATIONS),
    )


def _may_be_reserved(claim: NodeClaim, node_class: EC2NodeClass) -> bool:
    required = read(claim.spec.requirements).get(labels.CAPACITY_TYPE)
    is_allowed = required is None or required.has(labels.RESERVED)
    return is_allowed and bool(node_class.status.capacity_reservations)


def _hashes(node_class: EC2NodeClass) -> dict[str, str]:
    written = node_class.metadata.annotations
    named = (labels.NODECLASS_HASH, labels.NODECLASS_HASH_VERSION)
    return {name: written[name] for name in named if name in written}


def _requests(claim: NodeClaim) -> Resources:
    required = parse_resources(claim.spec.resources.requests)
    return {name: amount for name, amount in required.items() if name != NITRO_SANDBOX}


def _wants_efa(plan: LaunchPlan) -> bool:
    return wants_efa(plan.claim) or bool(plan.node_class.spec.network_interfaces)


def _tenancy(claim: NodeClaim) -> str:
    required = read(claim.spec.requirements).get(TENANCY)
    return "default" if required is None or required.has("default") else "dedicated"


def _in_one_partition(
    offered: Sequence[Offered], required: Iterable[Requirement]
) -> tuple[Sequence[Offered], str]:
    """Return the offerings of one partition of a placement group, and the name of the partition.

    If the NodeClaim requires no partition, EC2 chooses: each offering is returned once, with an
    empty name.
    """
    if any(r.key == labels.PLACEMENT_GROUP_PARTITION for r in required):
        first = min(map(_partition, offered), key=lambda name: (len(name), name))
        return [each for each in offered if _partition(each) == first], first
    once: dict[tuple[str, str, str], Offered] = {}
    for instance_type, offering, subnet in offered:
        key = instance_type.name, subnet.id, offering.requirements.get(RESERVATION_ID, "")
        once.setdefault(key, (instance_type, offering, subnet))
    return list(once.values()), ""


def _partition(offered: Offered) -> str:
    return offered[1].requirements.get(labels.PLACEMENT_GROUP_PARTITION, "")


def _addresses(offered: Iterable[Offered]) -> dict[str, int]:
    """Return the number of IP addresses that the smallest instance type would use, by subnet."""
    fewest: dict[str, int] = {}
    for instance_type, _, subnet in offered:
        pods = instance_type.capacity.get(PODS, 0) // MILLI
        fewest[subnet.id] = min(fewest.get(subnet.id, pods), pods)
    return fewest


def _quantities(amounts: Resources, hidden: Iterable[str]) -> dict[str, str]:
    return {
        name: format_quantity(amount, name)
        for name, amount in amounts.items()
        if amount and name not in hidden
    }
