"""The schema of NodePools."""

from __future__ import annotations

from typing import Any

from controller.apis.crds import fragments
from controller.apis.crds.definitions import AGE, Column, condition, definition
from controller.apis.crds.schemas import (
    INT32,
    INT64,
    Schema,
    array,
    default_of,
    fields,
    integer,
    mapping,
    rule,
    string,
)
from controller.apis.kinds import NODE_POOL
from controller.apis.nodepool import MOST_WEIGHT, Budget, DisruptionPolicy, NodePoolStatus

_CRON = (
    r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$"
)


def node_pool() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    return definition(
        NODE_POOL,
        "Says what nodes may be made, and when they may go.",
        spec=_spec(),
        status=_status(),
        category="karpenter",
        scale={"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.nodes"},
        columns=[
            Column("NodeClass", ".spec.template.spec.nodeClassRef.name"),
            Column("Nodes", ".status.nodes"),
            Column("Ready", condition("Ready")),
            AGE,
            Column("Weight", ".spec.weight", "integer", wide=True),
            Column("CPU", ".status.resources.cpu", wide=True),
            Column("Memory", ".status.resources.memory", wide=True),
        ],
    )


def _spec() -> Schema:
    return fields(
        "What the user asks for.",
        required=["template"],
        disruption=_disruption(),
        limits=fragments.quantities(
            "How much the pool's nodes may have in total, by resource; `nodes` counts them."
        ),
        replicas=integer(
            "Makes the pool static: it keeps this many nodes, whether or not pods need them.",
            form=INT64,
            minimum=0,
        ),
        template=_template(),
        weight=integer(
            "Pools of greater weight are tried first; left out, it is 0.",
            form=INT32,
            minimum=1,
            maximum=MOST_WEIGHT,
        ),
        rules=[
            rule(
                "has(self.replicas) == has(oldSelf.replicas)",
                "a pool stays static (with replicas) or dynamic (without): make another pool",
            ),
            rule(
                "!has(self.replicas) || !has(self.limits) || self.limits.all(x, x == 'nodes')",
                "a static pool (with replicas) may only limit `nodes`",
            ),
            rule(
                "!has(self.replicas) || !has(self.weight)",
                "a static pool (with replicas) has no weight: pods do not choose it",
            ),
        ],
    )


def _disruption() -> Schema:
    return fields(
        "When nodes of the pool may be removed or replaced.",
        default={"consolidateAfter": default_of(DisruptionPolicy, "consolidateAfter")},
        budgets=_budgets(),
        consolidateAfter=string(
            "How long no pod may come or go before a node is looked at; Never: it is not.",
            pattern=fragments.DURATION_OR_NEVER,
            default=default_of(DisruptionPolicy, "consolidateAfter"),
        ),
        consolidationPolicy=string(
            "Which nodes are looked at: empty ones, or all whose pods could be served for less. "
            "Balanced weighs the saving against the pods that move.",
            enum=["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"],
            default=default_of(DisruptionPolicy, "consolidationPolicy"),
        ),
    )


def _budgets() -> Schema:
    budget = fields(
        "One bound.",
        required=["nodes"],
        duration=string(
            "How long the bound holds from each start in `schedule`, such as 1h30m.",
            pattern=r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$",
        ),
        nodes=string(
            "How many nodes of the pool may be on their way out: a number, or a share.",
            pattern=r"^((100|[0-9]{1,2})%|[0-9]+)$",
            default=default_of(Budget, "nodes"),
        ),
        reasons=array(
            "Which disruptions the bound is for; left out, all.",
            string("A reason.", enum=["Underutilized", "Empty", "Drifted"]),
            maximum=50,
            kind="set",
        ),
        schedule=string(
            "When the bound begins to hold, in UTC: five cron fields or @daily and the like.",
            pattern=_CRON,
        ),
    )
    return array(
        "How many nodes may be disrupted at once; where several hold, the least counts.",
        budget,
        default=[
            {"nodes": default_of(Budget, "nodes")} for _ in default_of(DisruptionPolicy, "budgets")
        ],
        maximum=50,
        kind="atomic",
        rules=[
            rule(
                "self.all(x, has(x.schedule) == has(x.duration))",
                "a budget's schedule and duration go together: set both or neither",
            )
        ],
    )


def _template() -> Schema:
    return fields(
        "The template of the pool's nodes.",
        required=["spec"],
        metadata=fields(
            "What every node of the pool carries.",
            annotations=mapping("Annotations of every node.", {"type": "string"}),
            labels=mapping(
                "Labels of every node.",
                string("A label's value.", maximum=63, pattern=fragments.LABEL_VALUE),
                maximum=100,
                atomic=True,
                rules=[
                    rule(f"self.all(x, {key_rule['rule']})", key_rule["message"])
                    for key_rule in fragments.key_rules(
                        "x", domains=fragments.RESERVED_DOMAINS, pool_owned=True
                    )
                ],
            ),
        ),
        spec=fields(
            "What every NodeClaim of the pool starts from.",
            required=["nodeClassRef", "requirements"],
            expireAfter=fragments.expire_after(),
            nodeClassRef=fragments.node_class_reference(
                rules=[
                    rule(
                        f"self.{name} == oldSelf.{name}",
                        f"nodeClassRef.{name} cannot be changed: make another pool",
                    )
                    for name in ("group", "kind")
                ]
            ),
            requirements=fragments.requirements(
                "What nodes of the pool may be, as terms over labels; all must hold.",
                key_rules=fragments.key_rules(
                    "self", domains=fragments.RESERVED_DOMAINS, pool_owned=True
                ),
            ),
            startupTaints=fragments.taints(
                "Taints that something else takes off once the node is prepared; pods need not "
                "tolerate them to be placed."
            ),
            taints=fragments.taints("Taints of every node."),
            terminationGracePeriod=fragments.termination_grace_period(),
        ),
    )


def _status() -> Schema:
    return fields(
        "What the controller found.",
        conditions=fragments.conditions(),
        nodeClassObservedGeneration=integer(
            "The generation of the node class the pool was last seen with.", form=INT64
        ),
        nodes=integer(
            "How many nodes the pool has.", form=INT64, default=default_of(NodePoolStatus, "nodes")
        ),
        resources=fragments.quantities("What the pool's nodes have in total."),
    )
