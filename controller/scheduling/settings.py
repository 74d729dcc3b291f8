"""What a solve may be told beside the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RESPECT = "Respect"
IGNORE = "Ignore"
STRICT = "Strict"
BEST_EFFORT = "BestEffort"


@dataclass(frozen=True, slots=True)
class Settings:
    """The knobs of a solve; names in capitals are the settings users know."""

    preference_policy: str = RESPECT
    """`PREFERENCE_POLICY`: whether preferences bind until they cannot be met."""

    min_values_policy: str = STRICT
    """`MIN_VALUES_POLICY`: whether `minValues` may be lowered to open a node at all."""

    price_factor: float = 1.5
    """How much dearer than the cheapest a type may be and still stand on the claim, when
    the node is on-demand: a little room for a zone that runs dry."""

    spot_price_factor: float = 2.5
    """The same for spot, where many pools to choose from mean fewer interruptions."""

    max_instance_types: int = 600
    """How many types a claim may name."""

    min_instance_types: int = 20
    """How many types stay on a claim whatever they cost, if they hold the pods."""

    ignore_dra_requests: bool = True
    """`IGNORE_DRA_REQUESTS`: whether pods with resource claims are left alone."""

    refinements: int = 8
    """How many times the answer is taken apart and put together again, at most; 0 takes the
    quickest complete one, and has nothing proven of it."""


def from_names(named: Mapping[str, str]) -> Settings:
    """Read the settings that matter here from the names users know; others are ignored.

    Raises:
        ValueError: a value is not one of those allowed; the message names the setting.

    """
    allowed = {
        "PREFERENCE_POLICY": (RESPECT, IGNORE),
        "MIN_VALUES_POLICY": (STRICT, BEST_EFFORT),
        "IGNORE_DRA_REQUESTS": ("true", "false"),
    }
    for name, values in allowed.items():
        if name in named and named[name] not in values:
            raise ValueError(f"{name}: {named[name]!r} is not one of {', '.join(values)}")
    return Settings(
        preference_policy=named.get("PREFERENCE_POLICY", RESPECT),
        min_values_policy=named.get("MIN_VALUES_POLICY", STRICT),
        ignore_dra_requests=named.get("IGNORE_DRA_REQUESTS", "true") == "true",
    )
