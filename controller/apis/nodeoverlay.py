"""NodeOverlay, `karpenter.sh/v1alpha1`: what instance types cost and hold, corrected by hand."""

from __future__ import annotations

from controller.apis.conditions import Condition
from controller.apis.meta import ObjectMeta, Wire
from controller.apis.pods import Quantities
from controller.apis.taints import Requirement

MOST_PRICE = 1e6
"""In $/h; what is said to cost more is a slip, and sums of such prices are no numbers."""


class NodeOverlaySpec(Wire):
    """Which instance types are meant, and what is true of them.

    `price` replaces the price ($ per hour, decimal); `price_adjustment` changes it, by
    `+0.1` $ per hour or by `-10%`; `capacity` adds extended resources. Where overlays
    meet, the heaviest wins.
    """

    requirements: list[Requirement] = []
    price: str | None = None
    price_adjustment: str | None = None
    capacity: Quantities = {}
    weight: int = 0


class NodeOverlayStatus(Wire):
    """What the controller found."""

    conditions: list[Condition] = []


class NodeOverlay(Wire):
    """A NodeOverlay."""

    metadata: ObjectMeta
    spec: NodeOverlaySpec
    status: NodeOverlayStatus = NodeOverlayStatus()
