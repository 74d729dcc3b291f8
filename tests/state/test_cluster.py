"""The cluster state joins what the watches report, and is never behind the controller's writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodepool import NodeClassReference
from controller.apis.kinds import Kind
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import (
    Namespace,
)
from controller.apiserver.port import Change
from controller.state.cluster import JOINED_AT_ONCE, Cluster
from tests.builders import CLASS, changed, make_budget, make_node, make_nodeclaim, make_pod
from tests.builders.fields import true

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def add(cluster: Cluster, kind: Kind[Any], *values: Any) -> None:
    for value in values:
        cluster.apply(kind, Change("ADDED", value))


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.metadata.name for pod in pods]


def test_a_node_and_its_claim_are_one_state_node(cluster: Cluster) -> None:
    add(cluster, kinds.NODE_CLAIM, make_nodeclaim("c1", provider_id="aws:///a/i-1"))
    add(
        cluster,
        kinds.NODE,
        make_node("n1", provider_id="aws:///a/i-1"),
        make_node("other", provider_id="aws:///a/i-2"),
    )

    nodes = [
        (m.name, m.claim and m.claim.metadata.name, m.managed) for m in cluster.state_nodes(NOW)
    ]
    assert nodes == [("n1", "c1", True), ("other", None, False)]


def test_a_new_claim_is_a_state_node_before_its_watch_event(cluster: Cluster) -> None:
    cluster.insert_claim(make_nodeclaim("c1"))
    snapshot = cluster.snapshot({}, (), now=NOW)
    assert [(m.name, m.node) for m in snapshot.nodes] == [("c1", None)]


def test_an_older_version_never_replaces_a_newer_one(cluster: Cluster) -> None:
    cluster.observe(
        kinds.NODE_CLAIM, make_nodeclaim("c1", provider_id="aws:///a/i-1", resource_version="7")
    )
    add(cluster, kinds.NODE_CLAIM, make_nodeclaim("c1", resource_version="5"))
    claim = cluster.get(kinds.NODE_CLAIM, "c1")
    assert claim is not None
    assert claim.status.provider_id == "aws:///a/i-1"


def test_a_late_event_does_not_restore_a_deleted_object(cluster: Cluster) -> None:
    claim = make_nodeclaim("c1")
    cluster.apply(kinds.NODE_CLAIM, Change("ADDED", claim))
    cluster.apply(kinds.NODE_CLAIM, Change("DELETED", claim))
    cluster.observe(kinds.NODE_CLAIM, claim)
    assert cluster.list(kinds.NODE_CLAIM) == ()


def test_a_deleting_claim_without_finalizers_is_removed_at_once(cluster: Cluster) -> None:
    add(cluster, kinds.NODE_CLAIM, make_nodeclaim("c1", resource_version="1", finalizers=["a/b"]))
    cluster.observe(
        kinds.NODE_CLAIM, make_nodeclaim("c1", resource_version="2", deletion_timestamp=NOW)
    )
    assert cluster.list(kinds.NODE_CLAIM) == ()


def test_a_terminating_namespace_still_exists(cluster: Cluster) -> None:
    terminating = Namespace(metadata=ObjectMeta(name="n", uid="u", deletion_timestamp=NOW))
    add(cluster, kinds.NAMESPACE, terminating)
    assert cluster.list(kinds.NAMESPACE) == (terminating,)


def test_deleting_a_former_object_keeps_a_new_one_with_its_name(cluster: Cluster) -> None:
    old, new = make_node("n1", uid="old"), make_node("n1", uid="new")
    add(cluster, kinds.NODE, old, new)
    cluster.apply(kinds.NODE, Change("DELETED", old))
    assert cluster.get(kinds.NODE, "n1") == new


def test_a_new_list_removes_missing_objects_only_once_complete(cluster: Cluster) -> None:
    add(cluster, kinds.NODE, make_node("n1"), make_node("n2"))
    cluster.apply(kinds.NODE, Change("RESET"))
    cluster.apply(kinds.NODE, Change("ADDED", make_node("n2")))
    assert len(cluster.list(kinds.NODE)) == 2
    cluster.apply(kinds.NODE, Change("SYNCED"))
    assert [n.metadata.name for n in cluster.list(kinds.NODE)] == ["n2"]


def test_the_state_is_synced_once_every_kind_is_listed() -> None:
    cluster = Cluster(mirrored=(kinds.NODE, kinds.NODE_CLAIM))
    add(cluster, kinds.NODE_CLAIM, make_nodeclaim("unlaunched"))
    cluster.apply(kinds.NODE_CLAIM, Change("SYNCED"))
    assert (cluster.synced, cluster.awaited) == (False, ("nodes",))
    cluster.apply(kinds.NODE, Change("RESET"))
    cluster.apply(kinds.NODE, Change("SYNCED"))
    assert cluster.synced


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(make_pod("p", node="n1"), id="bound"),
        pytest.param(make_pod("p", conditions=[]), id="not yet tried by the scheduler"),
        pytest.param(make_pod("p", owner="DaemonSet"), id="daemon"),
        pytest.param(make_pod("p", owner="Node"), id="static"),
        pytest.param(make_pod("p", phase="Failed"), id="over"),
    ],
)
def test_a_pod_needs_no_node_when_it_is(cluster: Cluster, pod: Pod) -> None:
    add(cluster, kinds.POD, pod)
    assert cluster.pending_pods() == ()


def test_a_pod_with_a_nominated_node_is_pending_until_bound(cluster: Cluster) -> None:
    add(cluster, kinds.POD, make_pod("p", status={"nominatedNodeName": "n1"}))
    assert names(cluster.pending_pods()) == ["p"]


def test_a_bound_pod_is_no_longer_pending(cluster: Cluster) -> None:
    add(cluster, kinds.POD, make_pod("p"))
    assert names(cluster.pending_pods()) == ["p"]
    cluster.apply(kinds.POD, Change("MODIFIED", make_pod("p", node="n1")))
    assert cluster.pending_pods() == ()
    assert names(cluster.pods_on("n1")) == ["p"]
    assert names(cluster.snapshot({}, (), now=NOW).pods) == ["p"]


def test_pods_are_queued_by_priority_and_then_by_age(cluster: Cluster) -> None:
    for name in ("second", "first-of-all", "third"):
        add(cluster, kinds.POD, make_pod(name))
    add(cluster, kinds.POD, make_pod("urgent", priority=1000))
    add(cluster, kinds.POD, make_pod("second"))  # an update keeps the position in the queue

    queue = cluster.in_queue_order(cluster.list(kinds.POD))

    assert names(queue) == ["urgent", "second", "first-of-all", "third"]


def test_finished_pods_are_ignored(cluster: Cluster) -> None:
    add(cluster, kinds.POD, make_pod("done", node="n1", phase="Succeeded"))
    assert cluster.snapshot({}, (), now=NOW).pods == ()


def test_only_pods_with_a_controller_are_rescheduled_from_a_deleting_node(
    cluster: Cluster,
) -> None:
    add(cluster, kinds.NODE, make_node("n1", provider_id="aws:///a/i-1"), make_node("stays"))
    add(cluster, kinds.NODE_CLAIM, make_nodeclaim("c1", provider_id="aws:///a/i-1"))
    since = {"startTime": NOW - timedelta(hours=1)}
    add(
        cluster,
        kinds.POD,
        make_pod("web", node="n1"),
        make_pod("elsewhere", node="stays"),
        make_pod("daemon", node="n1", owner="DaemonSet"),
        make_pod("terminating", node="n1", deletion_timestamp=NOW),
        make_pod("stateful", node="n1", deletion_timestamp=NOW, owner="StatefulSet"),
        make_pod("held", node="n1", annotations={labels.DO_NOT_DISRUPT: "true"}),
        make_pod("held-2h", node="n1", annotations={labels.DO_NOT_DISRUPT: "2h"}, status=since),
        make_pod("held-30m", node="n1", annotations={labels.DO_NOT_DISRUPT: "30m"}, status=since),
    )
    assert cluster.reschedulable_pods(NOW) == ()
    cluster.mark_for_deletion("n1")
    assert names(cluster.reschedulable_pods(NOW)) == ["held-30m", "stateful", "web"]


@pytest.mark.parametrize(("allowed", "moving"), [(0, []), (1, ["web"])])
def test_a_pod_that_cannot_be_evicted_is_not_rescheduled_yet(
    cluster: Cluster, allowed: int, moving: list[str]
) -> None:
    add(cluster, kinds.POD_DISRUPTION_BUDGET, make_budget(allowed=allowed))
    add(
        cluster,
        kinds.NODE,
        make_node("n1", provider_id="aws:///a/i-1", deletion_timestamp=NOW, finalizers=["f"]),
    )
    add(cluster, kinds.NODE_CLAIM, make_nodeclaim("c1", provider_id="aws:///a/i-1"))
    add(cluster, kinds.POD, make_pod("web", node="n1"))
    assert names(cluster.reschedulable_pods(NOW)) == moving


def test_a_claim_whose_node_was_deleted_counts_as_deleting_until_the_node_returns(
    cluster: Cluster,
) -> None:
    node = make_node("n1", provider_id="aws:///a/i-1")
    add(cluster, kinds.NODE_CLAIM, make_nodeclaim("c1", provider_id="aws:///a/i-1"))
    assert [m.deleting for m in cluster.state_nodes(NOW)] == [False]  # its node has not joined
    add(cluster, kinds.NODE, node)

    cluster.apply(kinds.NODE, Change("DELETED", node))
    assert [m.deleting for m in cluster.state_nodes(NOW)] == [True]

    returned = changed(node, metadata={"uid": "another"})
    add(cluster, kinds.NODE, returned)
    assert [m.deleting for m in cluster.state_nodes(NOW)] == [False]


def test_a_state_node_is_deleting_if_its_node_or_claim_is(cluster: Cluster) -> None:
    add(
        cluster,
        kinds.NODE_CLAIM,
        make_nodeclaim("c1", provider_id="id", deletion_timestamp=NOW, finalizers=["f"]),
    )
    add(cluster, kinds.NODE, make_node("n1", provider_id="id"))
    add(cluster, kinds.NODE, make_node("n2", deletion_timestamp=NOW, finalizers=["f"]))
    assert [m.deleting for m in cluster.state_nodes(NOW)] == [True, True]


def test_a_nomination_moves_from_claim_to_node_and_expires(cluster: Cluster) -> None:
    add(cluster, kinds.NODE_CLAIM, make_nodeclaim("c1", provider_id="id"))
    add(cluster, kinds.POD, make_pod("web"))
    cluster.nominate("c1", [make_pod("web")], NOW + timedelta(seconds=20))
    add(cluster, kinds.NODE, make_node("n1", provider_id="id"))
    assert [m.nominated for m in cluster.state_nodes(NOW)] == [True]
    assert [m.nominated for m in cluster.state_nodes(NOW + timedelta(seconds=20))] == [False]


def test_a_deletion_mark_ends_with_its_node(cluster: Cluster) -> None:
    node = make_node("n1")
    add(cluster, kinds.NODE, node)
    cluster.mark_for_deletion("n1")
    cluster.apply(kinds.NODE, Change("DELETED", node))
    add(cluster, kinds.NODE, make_node("n1", uid="another"))
    assert [m.deleting for m in cluster.state_nodes(NOW)] == [False]


def nominated(cluster: Cluster, *, seconds: int = 0) -> list[str]:
    nodes = cluster.state_nodes(NOW + timedelta(seconds=seconds))
    return [node.name for node in nodes if node.nominated]


def test_a_nomination_lasts_while_its_pod_is_unbound_up_to_a_limit(cluster: Cluster) -> None:
    web, other = make_pod("web"), make_pod("other")
    add(cluster, kinds.NODE, make_node("n1"))
    add(cluster, kinds.POD, web, other)

    cluster.nominate("n1", [web], NOW + timedelta(seconds=20))
    cluster.nominate("n1", [other], NOW + timedelta(seconds=10))

    assert nominated(cluster, seconds=19) == ["n1"]
    assert nominated(cluster, seconds=20) == []


@pytest.mark.parametrize(
    ("after", "lasts"),
    [
        pytest.param(make_pod("web"), True, id="still waits"),
        pytest.param(make_pod("web", node="n1"), False, id="has come"),
        pytest.param(make_pod("web", phase="Failed"), False, id="has ended"),
        pytest.param(None, False, id="has gone"),
    ],
)
def test_a_nomination_ends_when_all_its_pods_are_bound(
    cluster: Cluster, after: Pod | None, lasts: bool
) -> None:
    add(cluster, kinds.NODE, make_node("n1"))
    add(cluster, kinds.POD, make_pod("web"))
    cluster.nominate("n1", [make_pod("web")], NOW + timedelta(seconds=20))

    if after is None:
        cluster.apply(kinds.POD, Change("DELETED", make_pod("web")))
    else:
        add(cluster, kinds.POD, after)

    assert nominated(cluster) == (["n1"] if lasts else [])


def test_a_nomination_lasts_while_the_pod_is_on_its_former_node(cluster: Cluster) -> None:
    add(cluster, kinds.NODE, make_node("n1"), make_node("n2"))
    add(cluster, kinds.POD, make_pod("web", node="n1"))

    cluster.nominate("n2", [make_pod("web", node="n1")], NOW + timedelta(seconds=20))
    assert nominated(cluster) == ["n2"]

    cluster.apply(kinds.POD, Change("DELETED", make_pod("web", node="n1")))
    assert nominated(cluster) == []


def test_another_controllers_claim_is_ignored_and_its_node_unmanaged(
    cluster: Cluster,
) -> None:
    theirs = NodeClassReference(group="eks.amazonaws.com", kind="NodeClass", name=CLASS.name)
    ours = make_nodeclaim("claim", provider_id="aws:///a/i-1", resource_version="1")
    foreign = changed(ours, metadata={"resource_version": "2"}, spec={"node_class_ref": theirs})
    node = make_node("node", provider_id="aws:///a/i-1")
    cluster.observe(kinds.NODE, node)
    cluster.observe(kinds.NODE_CLAIM, ours)
    assert cluster.manages(node)

    cluster.observe(kinds.NODE_CLAIM, foreign)

    assert cluster.list(kinds.NODE_CLAIM) == ()
    assert not cluster.manages(node)
    (state_node,) = cluster.state_nodes(NOW)
    assert not state_node.managed


def decides_again(cluster: Cluster, kind: Kind[Any], after: Any) -> bool:
    """Whether a change lets disruption decide again."""
    before = cluster.revision
    add(cluster, kind, after)
    return cluster.revision > before


def test_disruption_decides_again_when_a_node_is_drained_but_not_for_heartbeats(
    cluster: Cluster,
) -> None:
    add(cluster, kinds.NODE, make_node("n1"))
    beat = make_node("n1", conditions=true("Ready", since=NOW))
    assert not decides_again(cluster, kinds.NODE, beat)

    drained = make_node("n1", conditions=true("Ready", "DrainInProgress"))
    assert decides_again(cluster, kinds.NODE, drained)


def test_disruption_decides_again_when_a_resize_changes_what_a_pod_takes(cluster: Cluster) -> None:
    held = {"cpu": "1", "memory": "1Gi"}
    growing = {"containerStatuses": [{"name": "main", "allocatedResources": held}]}
    add(cluster, kinds.POD, make_pod("web", cpu="3", node="n1", status=growing))
    refused = [Condition(type="PodResizePending", status="True", reason="Infeasible")]

    assert decides_again(
        cluster,
        kinds.POD,
        make_pod("web", cpu="3", node="n1", conditions=[*true("Ready"), *refused], status=growing),
    )


def test_a_snapshot_has_the_running_pods_after_changes_on_many_nodes(cluster: Cluster) -> None:
    names = [f"n{number:03}" for number in range(JOINED_AT_ONCE + 1)]
    pods = [make_pod(f"on-{name}", node=name, uid=f"uid-{name}") for name in names]
    cluster.apply(kinds.POD, Change("RESET"))
    add(cluster, kinds.POD, *pods)
    cluster.apply(kinds.POD, Change("SYNCED"))

    for pod in pods[:-1]:
        status = msgspec.structs.replace(pod.status, phase="Succeeded")
        cluster.observe(kinds.POD, msgspec.structs.replace(pod, status=status))

    assert cluster.snapshot({}, (), now=NOW).pods == (pods[-1],)
    cluster.apply(kinds.POD, Change("DELETED", pods[-1]))
    assert cluster.snapshot({}, (), now=NOW).pods == ()
