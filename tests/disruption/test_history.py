"""The results of decisions, measured later in the cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from controller.apis import labels
from controller.apis.karpenter.disruption import (
    Balance,
    Disruption,
    DisruptionSpec,
    DisruptionStatus,
    MovedWorkload,
)
from controller.apis.karpenter.nodepool import NodeClassReference
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.disruption.records import history
from controller.disruption.records.history import ObservedCluster
from controller.state.nodes import StateNode
from tests.builders import make_node, make_nodeclaim, make_pod, owned_by, true

BEGUN = datetime(2026, 11, 21, 12, 0, 0, 500_000, tzinfo=UTC)
KIND = {labels.ZONE: "a", labels.CAPACITY_TYPE: "spot"}
SMALL = InstanceType("small", (), (Offering(KIND, 0.1),), {})
REFERENCE = NodeClassReference(group="g", kind="k", name="n")


def pod(name: str, *, owner: str, born: float, ready: float | None = None, node: str = "") -> Pod:
    begun = BEGUN.replace(microsecond=0)
    since = [] if ready is None else true("Ready", since=begun + timedelta(seconds=ready))
    return make_pod(
        name,
        uid=f"uid-{name}",
        owner_references=[owned_by("ReplicaSet", owner, uid=owner)],
        node=node,
        conditions=since,
        creationTimestamp=begun + timedelta(seconds=born),
    )


def state_node(name: str, *, minutes: float, pool: str = "default") -> StateNode:
    carried = {labels.INSTANCE_TYPE: "small", labels.REGISTERED: "true", **KIND}
    born = BEGUN + timedelta(minutes=minutes)
    return StateNode(
        node=make_node(name, pool=pool, labels=carried, creationTimestamp=born),
        claim=make_nodeclaim(name, pool=pool, labels=carried, creationTimestamp=born),
    )


def record(*workloads: tuple[str, int], replacements: tuple[str, ...] = ()) -> Disruption:
    moved = [MovedWorkload(kind="ReplicaSet", name=w, uid=w, pods=n) for w, n in workloads]
    return Disruption(
        metadata=ObjectMeta(name="underutilized-1"),
        spec=DisruptionSpec(price=0.4, saving=0.3, workloads=moved),
        status=DisruptionStatus(
            state="Done", begun_at=BEGUN, replacements=list(replacements), replacements_cost=0.1
        ),
    )


def scene(*nodes: StateNode, pods: tuple[Pod, ...] = ()) -> ObservedCluster:
    return ObservedCluster(
        nodes=nodes,
        pods=pods,
        types={"default": (SMALL,)},
        planned=("replacement",),
        now=BEGUN + timedelta(hours=1),
    )


def test_pods_created_since_by_the_same_workloads_count_as_moved() -> None:
    pods = (
        pod("old", owner="web", born=-60, ready=-50),
        pod("at-once", owner="web", born=0, ready=12),
        pod("slow", owner="web", born=3, ready=43),
        pod("one-more", owner="web", born=5, ready=600),
        pod("starting", owner="batch", born=4),
        pod("other", owner="else", born=4, ready=5),
    )

    outcome = history.pods_outcome(record(("web", 2), ("batch", 1), ("", 1)), pods)

    assert (outcome.moved, outcome.running, outcome.slowest_seconds) == (4, 2, 40)


def test_a_saving_is_the_price_of_the_nodes_minus_that_of_their_replacements() -> None:
    outcome = history.outcome(
        record(("web", 1), replacements=("replacement",)),
        scene(state_node("replacement", minutes=1)),
    )

    assert outcome.cost == 0.1
    assert outcome.saving == pytest.approx(0.3)
    assert (outcome.unplanned_nodes, outcome.replacements_disrupted) == (0, 0)


def test_a_deleted_replacement_is_still_counted() -> None:
    outcome = history.outcome(record(("web", 1), replacements=("replacement",)), scene())

    assert outcome.replacements_disrupted == 1


def test_an_additional_node_for_moved_pods_reduces_the_saving() -> None:
    pods = (
        pod("web-1", owner="web", born=5, ready=60, node="late"),
        pod("other", owner="else", born=5, ready=60, node="late"),
        pod("web-2", owner="web", born=5, ready=60, node="next-day"),
    )
    nodes = (state_node("late", minutes=2), state_node("next-day", minutes=1400))

    outcome = history.outcome(record(("web", 2), replacements=()), scene(*nodes, pods=pods))

    assert outcome.unplanned_nodes == 1
    assert outcome.cost == pytest.approx(0.1 + 0.05)
    assert outcome.saving == pytest.approx(0.25)


def test_the_balance_counts_each_result_once() -> None:
    proposed = msgspec.structs.replace(record(("web", 2)), status=DisruptionStatus())
    done = record(("web", 2))
    measured = history.with_status(done, after_hour=history.outcome(done, scene()))

    first = history.updated_balance(Balance(), before=proposed.status, after=done)
    assert first is not None
    assert (first.sequence, first.done, first.predicted) == (1, 1, 0.3)
    second = history.updated_balance(first, before=done.status, after=measured)
    assert second is not None
    assert (second.sequence, second.done) == (2, 1)
    assert second.after_hour == pytest.approx(0.3)
    assert history.updated_balance(second, before=measured.status, after=measured) is None
