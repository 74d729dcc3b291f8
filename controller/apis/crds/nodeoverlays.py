"""The schema of NodeOverlays."""

from __future__ import annotations

from typing import Any

from controller.apis.crds import fragments
from controller.apis.crds.definitions import AGE, Column, condition, definition
from controller.apis.crds.schemas import INT32, Schema, fields, integer, rule, string
from controller.apis.kinds import NODE_OVERLAY


def node_overlay() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    return definition(
        NODE_OVERLAY,
        "Corrects what instance types cost and hold.",
        spec=_spec(),
        status=fields("What the controller found.", conditions=fragments.conditions()),
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
        "Which instance types are meant, and what is true of them.",
        required=["requirements"],
        capacity=fragments.quantities(
            "Extended resources that a node of the types has.",
            rules=[
                rule(
                    "self.all(x, !(x in ['cpu', 'memory', 'ephemeral-storage', 'pods']))",
                    "cpu, memory, ephemeral-storage and pods are known from the instance type",
                )
            ],
        ),
        price=string("The price, in dollars per hour.", pattern=r"^\d+(\.\d+)?$"),
        priceAdjustment=string(
            "What to add to the price (+0.1, -0.1), or its change in percent (+10%, -10%).",
            pattern=r"^([+-](\d*\.?\d+)|\+\d*\.?\d+%|-\d{1,2}(\.\d+)?%|-100%)$",
        ),
        requirements=fragments.requirements(
            "Which instance types are meant, as terms over labels; all must hold.",
            key_rules=fragments.key_rules("self", domains=fragments.OVERLAY_DOMAINS),
            min_values=False,
            not_in_needs_values=True,
        ),
        weight=integer(
            "Where overlays meet, the greater weight wins; left out, it is 0.",
            form=INT32,
            minimum=1,
            maximum=10000,
        ),
        rules=[
            rule(
                "!has(self.price) || !has(self.priceAdjustment)",
                "price and priceAdjustment exclude one another",
            )
        ],
    )
