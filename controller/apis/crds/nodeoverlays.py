"""The CustomResourceDefinition of NodeOverlay."""

from __future__ import annotations

from typing import Any

from controller.apis.crds import fragments
from controller.apis.crds.definitions import AGE, Column, condition, definition
from controller.apis.crds.schemas import INT32, Schema, fields, integer, rule, string
from controller.apis.kinds import NODE_OVERLAY


def node_overlay() -> dict[str, Any]:
    """Return the CustomResourceDefinition of NodeOverlay."""
    return definition(
        NODE_OVERLAY,
        "Overrides the price or adds to the capacity of instance types in scheduling.",
        spec=_spec(),
        status=fields("The observed state of the overlay.", conditions=fragments.conditions()),
        category="karpenter",
        short_names=["overlays"],
        columns=[
            Column("Ready", condition("Ready")),
            AGE,
            Column("Weight", ".spec.weight", "integer", wide=True),
        ],
    )


def _spec() -> Schema:
    return fields(
        "The instance types that the overlay matches, and what it changes.",
        required=["requirements"],
        capacity=fragments.quantities(
            "Extended resources that are added to the capacity of the instance types.",
            rules=[
                rule(
                    "self.all(x, !(x in ['cpu', 'memory', 'ephemeral-storage', 'pods']))",
                    "invalid resource restricted",
                )
            ],
        ),
        price=string("Price of the instance types, in $ per hour.", pattern=r"^\d+(\.\d+)?$"),
        priceAdjustment=string(
            "Change of the price: an amount in $ per hour (+0.1, -0.1) or in percent (+10%, -10%).",
            pattern=r"^([+-](\d*\.?\d+)|\+\d*\.?\d+%|-\d{1,2}(\.\d+)?%|-100%)$",
        ),
        requirements=fragments.requirements(
            "Requirements on the labels of the instance types that the overlay matches. They are "
            "ANDed.",
            key_rules=fragments.key_rules("self", domains=fragments.OVERLAY_DOMAINS),
            min_values=False,
            of_overlay=True,
        ),
        weight=integer(
            "Priority among overlays that match the same instance type: the greater weight wins. "
            "If unset, the weight is 0.",
            form=INT32,
            minimum=1,
            maximum=10000,
        ),
        rules=[
            rule(
                "!has(self.price) || !has(self.priceAdjustment)",
                "cannot set both 'price' and 'priceAdjustment'",
            )
        ],
    )
