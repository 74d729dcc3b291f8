"""The report of a solve is short and answers users' questions."""

from __future__ import annotations

from controller.offline.pending import PendingPods
from controller.offline.reporter import explain, summary, tables
from controller.reconcilers.provisioning.unplaced import Unplaced
from controller.scheduling.catalog.offerings import catalog
from tests.builders import make_node, make_nodepool, make_pod, make_pods, make_snapshot
from tests.expectations import schedule_on

NOTHING = PendingPods(unplaced=Unplaced((), ()), attempts={}, launching={})


def test_the_summary_names_pods_nodes_cost_and_gap() -> None:
    snapshot = make_snapshot(make_nodepool(), nodes=[make_node("a", cpu="1")])

    text = summary(schedule_on(snapshot, [*make_pods(5), make_pod(cpu="900")]))

    assert "4 pods on" in text
    assert "1 on 1 existing node, 1 unschedulable" in text
    assert "gap" in text


def test_equal_nodes_share_a_row() -> None:
    results = schedule_on(make_nodepool(), make_pods(64, cpu="900m", memory="3Gi"))

    new = tables(results)[0]

    assert new.title == "New nodes"
    assert sum(int(row[0]) for row in new.rows) == len(results.new_nodes)


def test_each_pod_is_reported_with_its_node_or_the_cause() -> None:
    snapshot = make_snapshot(make_nodepool())
    lucky, large = make_pod(), make_pod(cpu="900")
    results = schedule_on(snapshot, [lucky, large])

    assert (
        "new node of NodePool default"
        in explain(results, lucky, catalog(snapshot), NOTHING).outcome
    )
    kept_out = explain(results, large, catalog(snapshot), NOTHING)
    assert kept_out.outcome == "is unschedulable"
    assert "too small for cpu 900" in kept_out.pools[0]
