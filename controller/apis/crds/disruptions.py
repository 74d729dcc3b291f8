"""The schema of Disruptions."""

from __future__ import annotations

from typing import Any, get_args

from controller.apis.crds.definitions import AGE, Column, definition
from controller.apis.crds.schemas import Schema, array, fields, integer, number, string
from controller.apis.disruption import State
from controller.apis.kinds import DISRUPTION


def disruption() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    return definition(
        DISRUPTION,
        "A decision that nodes go, from its proposal to what it brought. Annotate it "
        "joiner.dev/approved=true to have a proposal carried out, false to decline it.",
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
        "One node.",
        nodePool=string("The pool it comes from."),
        instanceTypes=_names("What it may be, cheapest first."),
        price=number("What the cheapest costs, in $/h."),
        pods=_names("The pods that go there, namespace/name."),
    )
    move = fields(
        "One node.",
        node=string("Its name."),
        pods=_names("The pods that go there, namespace/name."),
    )
    workload = fields(
        "One workload.",
        kind=string("Its kind, such as ReplicaSet; Pod for a pod that nobody makes again."),
        namespace=string("Its namespace."),
        name=string("Its name."),
        uid=string("Its identity; empty for a pod that nobody makes again."),
        pods=integer("How many of its pods move."),
    )
    return fields(
        "What was decided, and what it was expected to bring.",
        reason=string("Empty, Drifted or Underutilized."),
        mode=string("act or recommend: whether it waits for somebody's word."),
        nodes=_names("The nodes that go."),
        nodeClaims=_names("Their claims."),
        nodePools=_names("Their pools."),
        newNodes=array("What comes in their place.", planned),
        moves=array("Nodes that stay, and take pods.", move),
        workloads=array("Whose pods move.", workload),
        price=number("What the nodes cost, in $/h."),
        saving=number(
            "What is saved by these nodes, in $/h: less than nothing where others follow."
        ),
        planSaving=number("What is saved, in $/h, once the nodes that follow have gone, too."),
        evictions=integer("How many pods move."),
        why=string("Why, in a sentence."),
    )


def _status() -> Schema:
    return fields(
        "What became of it.",
        state=string("Where it is.", enum=get_args(State)),
        message=string("Why it is there."),
        replacements=_names("The claims made in the place of the nodes."),
        replacementsCost=number("What they cost when they were last seen, in $/h."),
        begunAt=_moment("When it was begun."),
        endedAt=_moment("When it had ended."),
        pods=fields(
            "What became of the pods.",
            moved=integer("How many were moved."),
            running=integer("How many run again: pods of the same workloads, made since."),
            slowestSeconds=number("How long the slowest of them took to be ready."),
        ),
        afterHour=_outcome("What it had brought after an hour."),
        afterDay=_outcome("What it had brought after a day."),
        balance=fields(
            "All decisions so far, so that old ones can be forgotten; $/h are sums.",
            sequence=integer("Which of all balances this is."),
            done=integer("Decisions carried out."),
            failed=integer("Decisions given up."),
            predicted=number("What they were expected to save."),
            afterHour=number("What they saved after an hour."),
            afterDay=number("What they saved after a day."),
            moved=integer("Pods moved."),
            running=integer("Pods of them that ran again."),
            replacementsDisrupted=integer("Replacements that went within a day."),
        ),
    )


def _outcome(about: str) -> Schema:
    return fields(
        about,
        at=_moment("When that was."),
        cost=number("What the pods' nodes cost then, in $/h."),
        saving=number("What was saved then, in $/h."),
        unplannedNodes=integer("Nodes that the pods needed, and nobody had planned."),
        replacementsDisrupted=integer("Replacements that had gone by then."),
    )


def _names(about: str) -> Schema:
    return array(about, {"type": "string"}, kind="atomic")


def _moment(about: str) -> Schema:
    return string(about, form="date-time")
