"""The values of the annotations `joiner.dev/…` that users set, and what applies if one is invalid.

Annotations have no schema, so the API server accepts every value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controller.apis import labels

DISRUPTION_MODES = ("act", "recommend", "observe")


def amount(text: str | None) -> float | None:
    """Return the amount that a text states, finite and at least 0; None if it states none."""
    try:
        value = math.nan if text is None else float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < math.inf else None


@dataclass(frozen=True, slots=True)
class _Rule:
    """Which values an annotation may have, and what applies in place of an invalid one."""

    accepted: str
    accepts: Callable[[str], bool]
    otherwise: str


def _is_amount(text: str) -> bool:
    return amount(text) is not None


def _is_true_or_false(text: str) -> bool:
    return text in ("true", "false")


def _amount_rule(unit: str, otherwise: str) -> _Rule:
    return _Rule(f"an amount in {unit} of at least 0", _is_amount, otherwise)


OF_NODE_POOLS: Mapping[str, _Rule] = {
    labels.DISRUPTION_MODE: _Rule(
        "act, recommend or observe", DISRUPTION_MODES.__contains__, "observe applies"
    ),
    labels.NODE_PRICE_PER_HOUR: _amount_rule("$/h", "NODE_PRICE_PER_HOUR applies"),
    labels.PREFERENCE_PRICE: _amount_rule("$/h", "consolidation keeps the preferences of pods"),
}
"""The rule of each annotation of a NodePool."""

OF_TEMPLATES: Mapping[str, _Rule] = {
    labels.FAST_IMAGE_PULL: _Rule("true or false", _is_true_or_false, "false applies"),
}
"""The rule of each annotation of a NodePool's template.

`joiner.dev/image-snapshot` has a condition of the NodePool instead.
"""

OF_PODS: Mapping[str, _Rule] = {
    labels.EVICTION_PRICE: _amount_rule("$", "DISRUPTION_EVICTION_PRICE applies"),
    labels.PREFERENCE_PRICE: _amount_rule("$/h", "consolidation keeps the pod's preferences"),
    labels.SURGE: _Rule("true or false", _is_true_or_false, "false applies"),
}
"""The rule of each annotation of a pod."""

OF_DISRUPTIONS: Mapping[str, _Rule] = {
    labels.APPROVED: _Rule(
        "true or false",
        lambda text: approval(text) is not None,
        "the Disruption is neither approved nor declined",
    ),
}
"""The rule of each annotation of a Disruption."""


def approval(text: str | None) -> bool | None:
    """Return whether a value of `joiner.dev/approved` approves or declines; None if neither."""
    return {"true": True, "false": False}.get((text or "").strip().lower())


def invalid_values(annotations: Mapping[str, str], rules: Mapping[str, _Rule]) -> list[str]:
    """Return a sentence for each annotation whose value is invalid: the value and what applies."""
    return [
        f"Invalid {key} annotation: {annotations[key]!r} is not {rule.accepted}; {rule.otherwise}"
        for key, rule in rules.items()
        if key in annotations and not rule.accepts(annotations[key])
    ]
