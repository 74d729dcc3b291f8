"""NodeOverlay, `karpenter.sh/v1alpha1`: overrides of the price and capacity of instance types."""

from __future__ import annotations

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import KubernetesObject, Wire
from controller.apis.kubernetes.pods import Quantities
from controller.apis.kubernetes.taints import Requirement

EFFECTIVE = "joiner.dev/Effective"
"""A condition that is False while a valid NodeOverlay changes no offering; absent otherwise."""

MAX_PRICE = 1e6
"""Maximum price in $/h; a higher one is a mistake, and sums of such prices may not be finite."""


class NodeOverlaySpec(Wire):
    """The selected instance types, and their price and capacity.

    `price` replaces the price ($/h, decimal). `price_adjustment` changes it by an amount such as
    `+0.1` ($/h) or a percentage such as `-10%`. `capacity` adds extended resources. If overlays
    conflict, the one with the highest `weight` wins.
    """

    requirements: list[Requirement] = []
    price: str | None = None
    price_adjustment: str | None = None
    capacity: Quantities = {}
    weight: int = 0


class NodeOverlayStatus(Wire):
    """The observed state of a NodeOverlay."""

    conditions: list[Condition] = []


class NodeOverlay(KubernetesObject):
    """A NodeOverlay object."""

    spec: NodeOverlaySpec
    status: NodeOverlayStatus = NodeOverlayStatus()
