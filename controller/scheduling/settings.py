"""Settings of a solve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RESPECT = "Respect"
IGNORE = "Ignore"
STRICT = "Strict"
BEST_EFFORT = "BestEffort"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a solve; names in capitals are settings of the controller."""

    preference_policy: str = RESPECT
    """`PREFERENCE_POLICY`: with `Respect`, preferences of pods are required until they cannot be
    satisfied; with `Ignore`, they are ignored."""

    min_values_policy: str = STRICT
    """`MIN_VALUES_POLICY`: with `BestEffort`, `minValues` are lowered if otherwise no node could be
    launched; with `Strict`, they are not."""

    price_factor: float = 1.5
    """Greatest price of an instance type on an on-demand NodeClaim, as a multiple of the cheapest.
    With several types the launch succeeds even if a zone has no capacity of some of them."""

    spot_price_factor: float = 2.5
    """Greatest price of an instance type on a spot NodeClaim, as a multiple of the cheapest.
    With more capacity pools to choose from, there are fewer interruptions."""

    max_instance_types: int = 600
    """Greatest number of instance types on a NodeClaim."""

    min_instance_types: int = 20
    """Number of instance types that stay on a NodeClaim at any price, if they hold the pods."""

    ignore_dra_requests: bool = True
    """`IGNORE_DRA_REQUESTS`: whether pods with resource claims are ignored."""

    gangs: bool = False
    """`GANG_SCHEDULING`: whether the pods of a gang are scheduled together or not at all."""

    refinements: int = 8
    """Greatest number of ruin-and-recreate turns. With 0 the solve returns the quickest complete
    packing, and `Results.lower_bound` may be 0."""


def from_names(named: Mapping[str, str]) -> Settings:
    """Return the settings of a solve from settings of the controller; other names are ignored.

    Raises:
        ValueError: a value is not allowed; the message names the setting.

    """
    allowed = {
        "PREFERENCE_POLICY": (RESPECT, IGNORE),
        "MIN_VALUES_POLICY": (STRICT, BEST_EFFORT),
        "IGNORE_DRA_REQUESTS": ("true", "false"),
        "GANG_SCHEDULING": ("true", "false"),
    }
    for name, values in allowed.items():
        if name in named and named[name] not in values:
            raise ValueError(f"{name}: {named[name]!r} is not one of {', '.join(values)}")
    return Settings(
        preference_policy=named.get("PREFERENCE_POLICY", RESPECT),
        min_values_policy=named.get("MIN_VALUES_POLICY", STRICT),
        ignore_dra_requests=named.get("IGNORE_DRA_REQUESTS", "true") == "true",
        gangs=named.get("GANG_SCHEDULING", "false") == "true",
    )
