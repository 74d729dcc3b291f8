"""The CustomResourceDefinition of NodePool."""

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
from controller.apis.karpenter.nodepool import MOST_WEIGHT, Budget, DisruptionPolicy, NodePoolStatus
from controller.apis.kinds import NODE_POOL

_CRON = (
    r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$"
)


def node_pool() -> dict[str, Any]:
    """Return the CustomResourceDefinition of NodePool."""
    return definition(
        NODE_POOL,
        "Defines which nodes Joiner may launch for pending pods, and when it may disrupt them.",
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
        "The desired state of the NodePool.",
        required=["template"],
        disruption=_disruption(),
        limits=fragments.quantities(
            "Limits of the total capacity of the NodePool's nodes, by resource; `nodes` limits "
            "their number. A static NodePool may set `nodes` only."
        ),
        replicas=integer(
            "Number of nodes of a static NodePool, which does not scale with pending pods. Needs "
            "the feature gate StaticCapacity.",
            form=INT64,
            minimum=0,
        ),
        template=_template(),
        weight=integer(
            "Priority of the NodePool in scheduling: NodePools of greater weight are tried first. "
            "If unset, the weight is 0.",
            form=INT32,
            minimum=1,
            maximum=MOST_WEIGHT,
        ),
        rules=[
            rule(
                "has(self.replicas) == has(oldSelf.replicas)",
                "Cannot transition NodePool between static (replicas set) and dynamic (replicas "
                "unset) provisioning modes",
            ),
            rule(
                "!has(self.replicas) || !has(self.limits) || self.limits.all(x, x == 'nodes')",
                "only 'limits.nodes' is supported on static NodePools",
            ),
            rule(
                "!has(self.replicas) || !has(self.weight)",
                "'weight' is not supported on static NodePools",
            ),
        ],
    )


def _disruption() -> Schema:
    return fields(
        "When Joiner may disrupt nodes of the NodePool.",
        default={"consolidateAfter": default_of(DisruptionPolicy, "consolidateAfter")},
        budgets=_budgets(),
        consolidateAfter=string(
            "Time without pod events on a node after which Joiner may consolidate it; Never "
            "disables consolidation.",
            pattern=fragments.DURATION_OR_NEVER,
            default=default_of(DisruptionPolicy, "consolidateAfter"),
        ),
        consolidationPolicy=string(
            "Which nodes Joiner may consolidate: WhenEmpty those that run only DaemonSet pods, "
            "WhenEmptyOrUnderutilized also those whose removal or replacement costs less. Balanced "
            "allows the same only if the saved share of the NodePool's cost is at least half the "
            "disrupted share of its pods.",
            enum=["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"],
            default=default_of(DisruptionPolicy, "consolidationPolicy"),
        ),
    )


def _budgets() -> Schema:
    budget = fields(
        "A disruption budget.",
        required=["nodes"],
        duration=string(
            "How long the budget is active after each start of `schedule`, such as 1h30m.",
            pattern=r"^((([0-9]+(h|m))|([0-9]+h[0-9]+m))(0s)?)$",
        ),
        nodes=string(
            "Maximum number of nodes of the NodePool that may be disrupted at once: a number, or "
            "a percentage, rounded up.",
            pattern=r"^((100|[0-9]{1,2})%|[0-9]+)$",
            default=default_of(Budget, "nodes"),
        ),
        reasons=array(
            "Disruption reasons to which the budget applies. If unset, it applies to all.",
            string("A disruption reason.", enum=["Underutilized", "Empty", "Drifted", "Unhealthy"]),
            maximum=50,
            kind="set",
        ),
        schedule=string(
            "When the budget becomes active, in UTC: a cron schedule of five fields, or a macro "
            "such as @daily. If unset, the budget is always active.",
            pattern=_CRON,
        ),
    )
    return array(
        "Disruption budgets. Of the active budgets, the most restrictive applies.",
        budget,
        default=[
            {"nodes": default_of(Budget, "nodes")} for _ in default_of(DisruptionPolicy, "budgets")
        ],
        maximum=50,
        kind="atomic",
        rules=[
            rule(
                "self.all(x, has(x.schedule) == has(x.duration))",
                "'schedule' must be set with 'duration'",
            )
        ],
    )


def _template() -> Schema:
    return fields(
        "Template of the NodePool's NodeClaims.",
        required=["spec"],
        metadata=fields(
            "Metadata of every node of the NodePool.",
            annotations=mapping("Annotations of every node.", {"type": "string"}),
            labels=mapping(
                "Labels of every node.",
                string("Value of the label.", maximum=63, pattern=fragments.LABEL_VALUE),
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
            "Spec of every NodeClaim of the NodePool.",
            required=["nodeClassRef", "requirements"],
            expireAfter=fragments.expire_after(),
            nodeClassRef=fragments.node_class_reference(
                rules=[
                    rule(
                        f"self.{name} == oldSelf.{name}",
                        f"nodeClassRef.{name} is immutable",
                    )
                    for name in ("group", "kind")
                ]
            ),
            requirements=fragments.requirements(
                "Requirements on the labels of the nodes, such as their instance type. They are "
                "ANDed.",
                key_rules=fragments.key_rules(
                    "self", domains=fragments.RESERVED_DOMAINS, pool_owned=True
                ),
            ),
            startupTaints=fragments.taints(
                "Taints of every node at startup, which another component, such as a DaemonSet, "
                "removes. Pods need not tolerate them."
            ),
            taints=fragments.taints("Taints of every node."),
            terminationGracePeriod=fragments.termination_grace_period(),
        ),
    )


def _status() -> Schema:
    return fields(
        "The observed state of the NodePool.",
        conditions=fragments.conditions(),
        nodeClassObservedGeneration=integer(
            "Generation of the NodeClass that the controller last observed.", form=INT64
        ),
        nodes=integer(
            "Number of nodes of the NodePool.",
            form=INT64,
            default=default_of(NodePoolStatus, "nodes"),
        ),
        resources=fragments.quantities("Total capacity of the NodePool's nodes."),
    )
