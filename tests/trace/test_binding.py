"""The model of kube-scheduler keeps the constraints of the traces' pods."""

from __future__ import annotations

from bench.trace.binding import bind
from bench.trace.cluster import Cluster, Node
from bench.trace.workloads import Member, Workload
from tests.trace.test_simulator import make_cluster, one_node


def opened(cluster: Cluster, kind: str = "m5.2xlarge") -> Node:
    node = cluster.launch(one_node(cluster, kind))
    cluster.open(node)
    return node


def waiting(cluster: Cluster, workload: Workload, pods: int) -> list[Member]:
    cluster.workloads[workload.name] = workload
    first = len(workload.pods) + 1
    made = [Member.create(workload, n, cluster.now) for n in range(first, first + pods)]
    workload.pods.update({one.name: one for one in made})
    cluster.waiting.update({one.key: one for one in made})
    return made


def test_pods_bind_to_the_least_allocated_node() -> None:
    cluster = make_cluster()
    nodes = [opened(cluster) for _ in range(3)]
    waiting(cluster, Workload("web", cpu=1000, memory=1024), 6)

    bind(cluster)

    assert [len(one.pods) for one in nodes] == [2, 2, 2]


def test_a_pod_that_does_not_fit_stays_pending() -> None:
    cluster = make_cluster()
    node = opened(cluster, "m5.large")
    waiting(cluster, Workload("web", cpu=1000, memory=512), 3)

    bind(cluster)

    assert len(node.pods) == 1
    assert len(cluster.waiting) == 2


def test_capacity_is_reserved_for_nominated_pods() -> None:
    cluster = make_cluster()
    node = opened(cluster, "m5.large")
    first, second = waiting(cluster, Workload("web", cpu=1000, memory=512), 2)
    cluster.nominate(second, node)

    bind(cluster)

    assert second.node == node.name
    assert first.key in cluster.waiting


def test_pods_with_anti_affinity_share_no_node() -> None:
    cluster = make_cluster()
    nodes = [opened(cluster) for _ in range(2)]
    waiting(cluster, Workload("web", cpu=100, memory=128, apart=True), 3)

    bind(cluster)

    assert [len(one.pods) for one in nodes] == [1, 1]
    assert len(cluster.waiting) == 1


def test_pods_with_a_spread_are_distributed_over_zones() -> None:
    cluster = make_cluster()
    nodes = [opened(cluster), opened(cluster)]
    nodes[1].market = (nodes[1].market[0], "us-west-2c", nodes[1].market[2])
    members = waiting(cluster, Workload("web", cpu=100, memory=128, spread=True), 3)
    nodes[0].leaving = True

    bind(cluster)

    # The other zone has no pod, so a second pod in this zone would make the skew 2.
    assert [one.node for one in members] == [nodes[1].name, "", ""]


def test_a_spread_counts_only_pods_nominated_for_the_evaluated_node() -> None:
    cluster = make_cluster()
    nodes = [opened(cluster), opened(cluster)]
    nodes[1].market = (nodes[1].market[0], "us-west-2c", nodes[1].market[2])
    crowded = waiting(cluster, Workload("crowded", cpu=100, memory=128, spread=True), 2)
    alone = waiting(cluster, Workload("alone", cpu=100, memory=128, spread=True), 2)
    for member in crowded:
        cluster.nominate(member, nodes[0])
    for member, node in zip(alone, nodes, strict=True):
        cluster.nominate(member, node)

    bind(cluster)

    # The pod nominated for the first zone counts there, so the first pod binds in the other zone.
    assert [one.node for one in crowded] == [nodes[1].name, nodes[0].name]
    assert [one.node for one in alone] == [nodes[0].name, nodes[1].name]


def test_no_pod_binds_to_a_deleting_node() -> None:
    cluster = make_cluster()
    opened(cluster).leaving = True
    waiting(cluster, Workload("web", cpu=100, memory=128), 1)

    assert bind(cluster) == []
