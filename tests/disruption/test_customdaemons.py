"""Daemon pods of controllers other than the DaemonSet controller."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from bench.parity.worlds import World
from controller.apis.kubernetes.pods import Pod
from controller.disruption.methods.order import decide
from controller.offline.disrupt import problem_of
from controller.offline.world import load
from controller.scheduling.catalog.daemons import daemons
from controller.state.pods import is_daemon
from tests.builders.instancetypes import make_types
from tests.builders.nodepools import make_nodepool
from tests.builders.nodes import make_node
from tests.builders.pods import make_pod, make_pods, owned_by
from tests.builders.snapshots import make_snapshot
from tests.disruption.clusters import constrained
from tests.expectations import schedule_on
from tests.seeds import seeds

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
KRUISE = owned_by("DaemonSet", "agent", apiVersion="apps.kruise.io/v1beta1")


def on_node(name: str, operator: str = "In") -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]}


def pinned(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def agent(node: str, *, owner: dict[str, Any] = KRUISE, **options: Any) -> Pod:
    """Return a pod that a custom controller bound to its node."""
    spec = {"affinity": pinned(on_node(node)), **options.pop("spec", {})}
    return make_pod(f"agent-{node}", node=node, spec=spec, ownerReferences=[owner], **options)


def test_a_pod_that_its_controller_binds_to_one_node_is_a_daemon_pod() -> None:
    assert is_daemon(agent("a"))
    linux = {"matchExpressions": [{"key": "os", "operator": "Exists"}], **on_node("a")}
    assert is_daemon(agent("a", spec={"affinity": pinned(linux, on_node("a"))}))


@pytest.mark.parametrize(
    "pod",
    [
        agent("a", owner=owned_by("ReplicaSet")),
        agent("a", owner=owned_by("Job")),
        agent("a", owner={**KRUISE, "controller": False}),
        agent("a", spec={"affinity": pinned(on_node("a"), on_node("b"))}),
        agent("a", spec={"affinity": pinned(on_node("a"), {"matchExpressions": []})}),
        agent("a", spec={"affinity": pinned(on_node("a", "NotIn"))}),
        agent("a", spec={"affinity": {}}),
    ],
    ids=["ReplicaSet", "Job", "no controller", "two nodes", "other term", "NotIn", "no affinity"],
)
def test_other_pods_are_no_daemon_pods(pod: Pod) -> None:
    assert not is_daemon(pod)


def overhead(nodes: int, agents: int, **options: Any) -> int:
    """Return the CPU that daemons request on a new node, if so many of the nodes have an agent."""
    names = [f"node-{number}" for number in range(nodes)]
    snapshot = make_snapshot(
        make_nodepool(),
        nodes=[make_node(name) for name in names],
        pods=[agent(name, cpu="500m", **options) for name in names[:agents]],
    )
    return sum(daemon.requests["cpu"] for daemon in daemons(snapshot))


def test_new_nodes_have_capacity_for_the_daemon_pods_of_custom_controllers() -> None:
    assert overhead(4, 4) == 500
    assert overhead(4, 2) == 500  # two nodes have just joined


def test_a_controller_that_binds_pods_to_few_nodes_needs_no_capacity_on_others() -> None:
    assert overhead(4, 1) == 0


def test_only_nodes_that_a_custom_daemon_selects_count() -> None:
    assert overhead(4, 1, node_selector={"kubernetes.io/hostname": "node-0"}) == 500


def test_pods_are_planned_beside_the_daemon_pods_of_custom_controllers() -> None:
    snapshot = make_snapshot(
        make_nodepool(),
        types=make_types(2),
        nodes=[make_node("a", cpu="1")],
        pods=[agent("a", cpu="1")],
    )

    results = schedule_on(snapshot, make_pods(2, cpu="900m"))

    assert [len(node.pods) for node in results.new_nodes] == [1, 1]


def of_custom_controller(cluster: World) -> World:
    """Return the cluster with a custom controller in place of the DaemonSet."""
    custom = deepcopy(cluster)
    custom["daemonSets"] = []
    for pod in custom["pods"]:
        for owner in pod["metadata"].get("ownerReferences", ()):
            if owner["kind"] == "DaemonSet":
                owner |= {"apiVersion": "apps.kruise.io/v1beta1", "controller": True}
                pod["spec"]["affinity"] = pinned(on_node(pod["spec"]["nodeName"]))
    return custom


def decided(cluster: World) -> tuple[list[Any], dict[str, str]]:
    """Return the commands, with their replacements, and why other nodes stay."""
    decision = decide(problem_of(load(cluster), now=NOW, with_eviction_cost=False))
    commands = [(c.reason, c.names, c.replacements, c.saving) for c in decision.commands]
    return commands, dict(decision.blocked)


@pytest.mark.parametrize("seed", seeds(range(2), of=range(10)))
def test_nodes_are_disrupted_as_with_a_daemonset(seed: int) -> None:
    cluster = constrained(10, seed)

    assert decided(of_custom_controller(cluster)) == decided(cluster)
