"""The CustomResourceDefinition of Disruption."""

from __future__ import annotations

from typing import Any, get_args

from controller.apis.crds.definitions import AGE, Column, definition
from controller.apis.crds.schemas import Schema, array, fields, integer, number, string
from controller.apis.karpenter.disruption import State
from controller.apis.kinds import DISRUPTION


def disruption() -> dict[str, Any]:
    """Return the CustomResourceDefinition of Disruption."""
    return definition(
        DISRUPTION,
        "A decision to disrupt nodes, from its proposal to its outcome. The annotation "
        "joiner.dev/approved=true approves a proposed decision, false declines it.",
        spec=_spec(),
        status=_status(),
        category="joiner",
        columns=[
            Column("Reason", ".spec.reason"),
            Column("Nodes", ".spec.nodes"),
            Column("Saving", ".spec.saving", "number"),
            Column("Evictions", ".spec.evictions", "integer"),
            Column("State", ".status.state"),
            AGE,
            Column("After 1h", ".status.afterHour.saving", "number", wide=True),
            Column("After 1d", ".status.afterDay.saving", "number", wide=True),
            Column("Plan saves", ".spec.planSaving", "number", wide=True),
            Column("Why", ".spec.why", wide=True),
            Column("Message", ".status.message", wide=True),
        ],
    )


def _spec() -> Schema:
    planned = fields(
        "A replacement.",
        nodePool=string("NodePool of the replacement."),
        instanceTypes=_names("Instance types of the launch, cheapest first."),
        price=number("Price of the cheapest instance type, in $/h."),
        pods=_names("Pods that the simulation places there, as namespace/name."),
    )
    move = fields(
        "A node that takes pods.",
        node=string("Name of the node."),
        pods=_names("Pods that the simulation places there, as namespace/name."),
    )
    workload = fields(
        "A workload.",
        kind=string(
            "Kind of the workload, such as ReplicaSet; Pod for a pod without a controller."
        ),
        namespace=string("Namespace of the workload."),
        name=string("Name of the workload."),
        uid=string("UID of the workload; empty for a pod without a controller."),
        pods=integer("Number of its pods that are evicted."),
    )
    return fields(
        "The decision and its expected effect.",
        reason=string("Disruption reason: Empty, Drifted, Unhealthy or Underutilized."),
        mode=string("act, or recommend if the decision needs approval."),
        nodes=_names("Nodes that are disrupted."),
        nodeClaims=_names("NodeClaims of these nodes."),
        nodePools=_names("NodePools of these nodes."),
        newNodes=array("Replacements that are launched.", planned),
        moves=array("Existing nodes to which pods move.", move),
        workloads=array("Workloads whose pods are evicted.", workload),
        price=number("Price of the disrupted nodes, in $/h."),
        saving=number(
            "Saving by this decision, in $/h; negative if only later decisions of the plan save."
        ),
        planSaving=number("Saving once all decisions of the plan are executed, in $/h."),
        evictions=integer("Number of pods that are evicted."),
        why=string("Explanation of the decision."),
    )


def _status() -> Schema:
    return fields(
        "The progress and the outcome of the decision.",
        state=string("State of the decision.", enum=get_args(State)),
        message=string("Explanation of the state."),
        replacements=_names("NodeClaims of the replacements."),
        replacementsCost=number("Price of the replacements when they last existed, in $/h."),
        begunAt=_moment("Time at which the execution began."),
        endedAt=_moment("Time at which the decision reached its final state."),
        pods=fields(
            "The evicted pods.",
            moved=integer("Number of evicted pods."),
            running=integer("Number of new pods of the same workloads that are running."),
            slowestSeconds=number("Longest time that one of the new pods took to be ready, in s."),
        ),
        afterHour=_outcome("Outcome 1 hour after the end."),
        afterDay=_outcome("Outcome 1 day after the end."),
        balance=fields(
            "Totals of all decisions so far, so that old Disruptions can be deleted.",
            sequence=integer("Sequence number of the totals; the highest is current."),
            done=integer("Number of executed decisions."),
            failed=integer("Number of failed decisions."),
            predicted=number("Sum of the expected savings, in $/h."),
            afterHour=number("Sum of the savings after 1 hour, in $/h."),
            afterDay=number("Sum of the savings after 1 day, in $/h."),
            moved=integer("Number of evicted pods."),
            running=integer("Number of new pods of the same workloads that were running."),
            replacementsDisrupted=integer("Number of replacements disrupted within 1 day."),
        ),
    )


def _outcome(about: str) -> Schema:
    return fields(
        about,
        at=_moment("Time of the measurement."),
        cost=number("Price of the nodes of the moved pods at that time, in $/h."),
        saving=number("Saving at that time, in $/h."),
        unplannedNodes=integer("Number of nodes that the pods needed in addition to the plan."),
        replacementsDisrupted=integer("Number of replacements disrupted by that time."),
    )


def _names(about: str) -> Schema:
    return array(about, {"type": "string"}, kind="atomic")


def _moment(about: str) -> Schema:
    return string(about, form="date-time")
