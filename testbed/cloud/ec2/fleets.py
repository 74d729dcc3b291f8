"""CreateFleet of type `instant`, and RunInstances: which capacity pools serve a launch.

Every pair of launch template and override is a candidate. `Errors` in the answer lists the
candidates that cannot be launched. Instances come from the other candidates, in the order of
the allocation strategy, until the target capacity is met.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.cloud.ec2 import launchtemplates
from testbed.cloud.ec2.instances import as_api
from testbed.cloud.ec2.launching import ENDLESS, Plan, available_capacity, launch, resolve
from testbed.cloud.operations import operation
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.inventory import Instance
from testbed.cloud.state.world import World

REMEMBERED = 10_000
"""Number of client tokens that are remembered for idempotency."""

UNRANKED = 1e12
"""Priority of an override that has none: after every other."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A capacity pool that could serve the fleet."""

    plan: Plan
    available: int
    priority: float
    order: int
    reported: Mapping[str, Any]
    """`LaunchTemplateAndOverrides` in the answer."""


@operation("ec2", "CreateFleet")
def create_fleet(world: World, call: Call) -> Mapping[str, Any]:
    """Launch the target capacity from the capacity pools that the allocation strategy prefers."""
    if call.get("Type", "maintain") != "instant":
        raise AwsError(
            "NotImplementedInTestCloud",
            "The testbed's cloud implements CreateFleet for type instant only.",
            status=501,
        )
    _refuse_what_is_not_honoured(call)
    return once(world, call, lambda: _create_fleet(world, call))


def _refuse_what_is_not_honoured(call: Call) -> None:
    """Raise AwsError for parameters that the test cloud does not implement.

    Ignoring such a parameter would let the caller believe that EC2 honored it.
    """
    wishes = set()
    for config in call.get("LaunchTemplateConfigs", []):
        for override in config.get("Overrides") or []:
            wishes |= {"InstanceRequirements", "MaxPrice", "WeightedCapacity"} & set(override)
    for options in ("SpotOptions", "OnDemandOptions"):
        given = call.get(options, {})
        wishes |= {"MaxTotalPrice", "MinTargetCapacity"} & set(given)
        wishes |= {given.get("AllocationStrategy", "lowest-price")} - RANKINGS.keys()
    wishes |= {"TargetCapacityUnitType"} & set(call.get("TargetCapacitySpecification", {}))
    if wishes:
        raise AwsError(
            "NotImplementedInTestCloud",
            f"The testbed's cloud does not implement {min(wishes)} of ec2:CreateFleet.",
            status=501,
        )


def once(world: World, call: Call, act: Any) -> Mapping[str, Any]:
    """Return the answer of `act`, called once per client token.

    A repeated token gets the first answer. Raises AwsError if a repeated token comes with different
    parameters.
    """
    token = call.get("ClientToken")
    if not token or call.get("DryRun"):
        answer: Mapping[str, Any] = act()
        return answer
    key = (call.operation, token)
    if key in world.answers:
        asked, answer = world.answers[key]
        if asked != call.parameters:
            raise AwsError(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in "
                "previous request(s).",
            )
        return answer
    answer = act()
    world.answers[key] = (call.parameters, answer)
    while len(world.answers) > REMEMBERED:
        del world.answers[next(iter(world.answers))]
    return answer


def _create_fleet(world: World, call: Call) -> Mapping[str, Any]:
    target = call.require("TargetCapacitySpecification")
    capacity_type = target.get("DefaultTargetCapacityType") or "on-demand"
    wanted = int(target["TotalTargetCapacity"])
    options = call.get("SpotOptions" if capacity_type == "spot" else "OnDemandOptions", {})
    errors: list[dict[str, Any]] = []
    candidates = list(_candidates(world, call, capacity_type, errors))
    call.stop_if_dry_run()
    ordered = sorted(candidates, key=RANKINGS[options.get("AllocationStrategy", "lowest-price")])
    fleet = f"fleet-{uuid.uuid4()}"
    answered = _fill(world, call, ordered, wanted, fleet=fleet)
    fleet_tags = launchtemplates.tags_for(call.get("TagSpecifications"), "fleet")
    return {
        "FleetId": fleet,
        "Errors": [{**error, "Lifecycle": capacity_type} for error in errors],
        "Instances": answered,
        "Tags": fleet_tags,
    }


def _fill(
    world: World, call: Call, ordered: list[Candidate], wanted: int, *, fleet: str
) -> list[dict[str, Any]]:
    answered = []
    for candidate in ordered:
        if wanted < 1:
            break
        try:
            available = available_capacity(world, candidate.plan)
        except AwsError:
            # An earlier candidate of this fleet used the pool's last address or instance.
            continue
        count = min(wanted, available)
        made = launch(
            world,
            candidate.plan,
            count,
            tag_specifications=call.get("TagSpecifications"),
            service_tags={"aws:ec2:fleet-id": fleet},
            token=call.get("ClientToken"),
        )
        wanted -= count
        answered.append(
            {
                "LaunchTemplateAndOverrides": candidate.reported,
                "Lifecycle": candidate.plan.capacity_type,
                "InstanceIds": [instance.identity for instance in made],
                "InstanceType": candidate.plan.instance_type,
            }
        )
    return answered


def _candidates(
    world: World, call: Call, capacity_type: str, errors: list[dict[str, Any]]
) -> Iterator[Candidate]:
    order = 0
    for config in call.require("LaunchTemplateConfigs"):
        specification = config.get("LaunchTemplateSpecification") or {}
        template = launchtemplates.find(world, specification)
        number = template.number(specification.get("Version"))
        named = {
            "LaunchTemplateId": template.identity,
            "LaunchTemplateName": template.name,
            "Version": str(number),
        }
        for override in config.get("Overrides") or [{}]:
            order += 1
            reported = {"LaunchTemplateSpecification": named, "Overrides": override}
            try:
                data = _overridden(template.data(str(number)), override)
                plan = resolve(world, data, capacity_type=capacity_type, template=template.identity)
                reported["Overrides"] = {**override, "AvailabilityZone": plan.zone}
                available = available_capacity(world, plan)
            except AwsError as error:
                errors.append(_error_entry(error.code, error.message, reported))
                continue
            yield Candidate(
                plan, available, float(override.get("Priority", UNRANKED)), order, reported
            )


def _overridden(data: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    names = ("InstanceType", "SubnetId", "ImageId", "AvailabilityZone", "BlockDeviceMappings")
    merged = {**data, **{name: override[name] for name in names if override.get(name)}}
    if override.get("Placement"):
        merged["Placement"] = {**(data.get("Placement") or {}), **override["Placement"]}
    return merged


def _error_entry(code: str, message: str, reported: Mapping[str, Any]) -> dict[str, Any]:
    return {"ErrorCode": code, "ErrorMessage": message, "LaunchTemplateAndOverrides": reported}


def _scarcity(candidate: Candidate) -> int:
    return -min(candidate.available, ENDLESS // 2)


RANKINGS: Mapping[str, Callable[[Candidate], tuple[float, ...]]] = {
    "lowest-price": lambda c: (c.plan.price, c.order),
    "prioritized": lambda c: (c.priority, c.plan.price, c.order),
    "capacity-optimized-prioritized": lambda c: (
        c.priority,
        _scarcity(c),
        c.plan.price,
        c.order,
    ),
    # A nearly empty pool is the first to be interrupted.
    "price-capacity-optimized": lambda c: (float(c.available < 2), c.plan.price, c.order),
}
"""Allocation strategy → the sort key that orders candidates, best first."""


@operation("ec2", "RunInstances")
def run_instances(world: World, call: Call) -> Mapping[str, Any]:
    """Launch `MinCount` to `MaxCount` instances of one configuration, or none."""
    return once(world, call, lambda: _run_instances(world, call))


def _run_instances(world: World, call: Call) -> Mapping[str, Any]:
    data: dict[str, Any] = {}
    template = None
    specification = call.get("LaunchTemplate")
    if specification:
        launch_template = launchtemplates.find(world, specification)
        template = launch_template.identity
        data = dict(launch_template.data(specification.get("Version")))
    own = {k: v for k, v in call.parameters.items() if v is not None and k != "TagSpecifications"}
    data |= own
    market = data.get("InstanceMarketOptions") or {}
    capacity_type = "spot" if market.get("MarketType") == "spot" else "on-demand"
    plan = resolve(world, data, capacity_type=capacity_type, template=template)
    minimum, maximum = int(call.get("MinCount", 1)), int(call.get("MaxCount", 1))
    available = available_capacity(world, plan)
    if available < minimum:
        raise AwsError(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {plan.instance_type} capacity in the "
            f"Availability Zone you requested ({plan.zone}).",
            status=500,
        )
    call.stop_if_dry_run()
    made = launch(
        world,
        plan,
        min(available, maximum),
        tag_specifications=call.get("TagSpecifications"),
        token=call.get("ClientToken"),
    )
    return _reservation(world, made)


def _reservation(world: World, made: list[Instance]) -> dict[str, Any]:
    return {
        "ReservationId": made[0].reservation,
        "OwnerId": as_api(world, made[0])["NetworkInterfaces"][0]["OwnerId"],
        "Groups": [],
        "Instances": [as_api(world, instance) for instance in made],
    }
