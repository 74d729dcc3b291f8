"""One CreateFleet request and the meaning of its response.

A fleet of type `instant` launches the instance of one NodeClaim, or those of several equal ones.
The request offers EC2 up to 60 instance types in every eligible zone. EC2 chooses by its allocation
strategy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.apis import labels
from controller.aws.errors import FleetError
from controller.aws.launching.launchtemplates import LaunchTemplate
from controller.aws.selectors import tag_list
from controller.cloudprovider.instancetypes import InstanceType, Offering

MOST_OVERRIDES = 300
"""Maximum number of overrides that EC2 accepts in one CreateFleet request."""

CAPACITY_BLOCK = "capacity-block"
INTERRUPTIBLE = "interruptible-capacity-reservation"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCandidate:
    """An offering that EC2 may choose, with its launch template, its AMI and its subnet."""

    instance_type: InstanceType
    offering: Offering
    template: LaunchTemplate
    image_id: str
    subnet_id: str


@dataclass(frozen=True, slots=True)
class Launched:
    """The instance that EC2 launched, and the candidate that it chose."""

    instance_id: str
    candidate: LaunchCandidate


@dataclass(frozen=True, slots=True)
class FleetResult:
    """The parsed CreateFleet response: instances, errors, or both."""

    launched: tuple[Launched, ...]
    errors: tuple[FleetError, ...]


def client_token(attempts: Iterable[tuple[str, int]]) -> str:
    """Return the ClientToken of a call: 40 hexadecimal characters.

    `attempts` are the UIDs of the NodeClaims with the number of their attempt. A new attempt starts
    once repeating the previous one cannot succeed.
    """
    named = ",".join(sorted(f"{uid}/{number}" for uid, number in attempts))
    return hashlib.sha256(named.encode()).hexdigest()[:40]


def cheapest(candidates: Iterable[LaunchCandidate]) -> Sequence[LaunchCandidate]:
    """Return the cheapest candidates for a request, at most `MOST_OVERRIDES`."""
    cheapest_first = sorted(candidates, key=lambda c: (c.offering.price, c.instance_type.name))
    return cheapest_first[:MOST_OVERRIDES]


def request(
    candidates: Sequence[LaunchCandidate],
    *,
    capacity_type: str,
    token: str,
    tags: Mapping[str, str],
    context: str | None = None,
    market: str = "",
    by_priority: bool = False,
    count: int = 1,
) -> dict[str, Any]:
    """Build the CreateFleet parameters; if there are too many candidates, the cheapest are kept.

    `token` is the ClientToken, and `context` is the EC2NodeClass's `spec.context`. `count` is the
    number of instances; EC2 may launch fewer.

    `market` is `capacity-block`, `interruptible-capacity-reservation` or empty. With `by_priority`,
    EC2 chooses by the prices of NodeOverlays (sent as priorities) instead of by its own prices.
    """
    spot = capacity_type == labels.SPOT
    target = CAPACITY_BLOCK if market == CAPACITY_BLOCK else "spot" if spot else "on-demand"
    if market == INTERRUPTIBLE:
        target = "reserved-capacity"
    parameters: dict[str, Any] = {
        "Type": "instant",
        "ClientToken": token,
        "LaunchTemplateConfigs": _configs(cheapest(candidates)),
        "TargetCapacitySpecification": {
            "DefaultTargetCapacityType": target,
            "TotalTargetCapacity": count,
        },
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tag_list(tags)}
            for kind in ("instance", "volume", "fleet")
        ],
    }
    if spot:
        strategy = "capacity-optimized-prioritized" if by_priority else "price-capacity-optimized"
        parameters["SpotOptions"] = {"AllocationStrategy": strategy}
    elif market == INTERRUPTIBLE:
        parameters["ReservedCapacityOptions"] = {"ReservationTypes": [INTERRUPTIBLE]}
    elif market != CAPACITY_BLOCK:
        strategy = "prioritized" if by_priority else "lowest-price"
        parameters["OnDemandOptions"] = {"AllocationStrategy": strategy}
    if context:
        parameters["Context"] = context
    return parameters


def _configs(candidates: Iterable[LaunchCandidate]) -> list[dict[str, Any]]:
    by_template: dict[str, list[dict[str, Any]]] = {}
    for candidate in candidates:
        by_template.setdefault(candidate.template.name, []).append(
            {
                "InstanceType": candidate.instance_type.name,
                "SubnetId": candidate.subnet_id,
                "ImageId": candidate.image_id,
                "AvailabilityZone": candidate.offering.zone,
                "Priority": candidate.offering.instance_price,
            }
        )
    return [
        {
            "LaunchTemplateSpecification": {"LaunchTemplateName": name, "Version": "$Latest"},
            "Overrides": overrides,
        }
        for name, overrides in by_template.items()
    ]


def read(response: Mapping[str, Any], candidates: Iterable[LaunchCandidate]) -> FleetResult:
    """Parse a CreateFleet response; `candidates` are those that the request contained."""
    return FleetResult(
        launched=tuple(_launched_instances(response, list(candidates))),
        errors=tuple(_error(e) for e in response.get("Errors") or []),
    )


def _launched_instances(
    response: Mapping[str, Any], candidates: Sequence[LaunchCandidate]
) -> Iterator[Launched]:
    for group in response.get("Instances") or []:
        if not group.get("InstanceIds"):
            continue
        picked = group.get("LaunchTemplateAndOverrides") or {}
        override = picked.get("Overrides") or {}
        name = (picked.get("LaunchTemplateSpecification") or {}).get("LaunchTemplateName")
        matching = [
            c
            for c in candidates
            if c.instance_type.name == group.get("InstanceType", override.get("InstanceType"))
        ]
        candidate = min(
            matching,
            key=lambda c: (c.subnet_id != override.get("SubnetId"), c.template.name != name),
        )
        for instance_id in group["InstanceIds"]:
            yield Launched(instance_id, candidate)


def _error(entry: Mapping[str, Any]) -> FleetError:
    override = (entry.get("LaunchTemplateAndOverrides") or {}).get("Overrides") or {}
    return FleetError(
        code=entry.get("ErrorCode", ""),
        message=entry.get("ErrorMessage", ""),
        instance_type=override.get("InstanceType", ""),
        zone=override.get("AvailabilityZone", ""),
        subnet_id=override.get("SubnetId", ""),
    )
