"""Deletion costs of pods: ReplicaSets scale down first where Joiner disrupts next."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.apis import kinds, labels
from controller.apis.kubernetes.meta import OwnerReference
from controller.apiserver.errors import ConflictError
from controller.disruption.problem import EVICTIONS_FREE
from controller.reconcilers.disruption.deletioncosts import DeletionCosts
from tests.builders import make_nodepool
from tests.reconcilers.test_consolidation import ConsolidationScenario

LOWEST = "-2147483648"


class DeletionCostScenario(ConsolidationScenario):
    """Nodes whose pods belong to a ReplicaSet, and the loop that writes their deletion costs."""

    def __init__(self, **disruption: object) -> None:
        super().__init__(**disruption)
        self.planned: tuple[str, ...] = ()
        self.costs = DeletionCosts(
            ports=self.world.ports,
            engine=self.engine,
            planned=lambda: self.planned,
            settings=EVICTIONS_FREE,
        )

    def add_replicas(self, name: str, kind: str = "m5.4xlarge", **more: Any) -> None:
        """Add a node whose pods belong to a ReplicaSet."""
        self.add(name, kind, **{"pods": 1, **more})
        for pod in self.world.cluster.pods_on(name):
            self.own(pod.metadata.name, "ReplicaSet")

    def own(self, name: str, kind: str) -> None:
        pod = next(p for p in self.world.api.objects(kinds.POD) if p.metadata.name == name)
        owner = OwnerReference(kind=kind, name="web", uid=f"uid-{kind}", controller=True)
        metadata = msgspec.structs.replace(pod.metadata, owner_references=[owner])
        self.world.seed(msgspec.structs.replace(pod, metadata=metadata))

    async def run(self) -> None:
        await self.costs.run_once()
        self.world.see()

    def written(self) -> dict[str, str | None]:
        """Return the deletion cost of each pod, by the pod's name."""
        return {
            pod.metadata.name: pod.metadata.annotations.get(labels.POD_DELETION_COST)
            for pod in self.world.api.objects(kinds.POD)
        }


async def test_pods_of_the_next_disrupted_node_have_the_lowest_deletion_cost() -> None:
    scenario = DeletionCostScenario()
    scenario.add_replicas("worthwhile", pods=1)
    scenario.add_replicas("busy", pods=3)
    scenario.add_replicas("planned", pods=3)
    scenario.planned = ("planned",)

    await scenario.run()

    assert scenario.written() == {
        **{f"planned-{n}": "-3" for n in range(3)},
        "worthwhile-0": "-2",
        **{f"busy-{n}": "-1" for n in range(3)},
    }


async def test_pods_of_drifted_nodes_have_lower_deletion_costs() -> None:
    scenario = DeletionCostScenario()
    scenario.add_replicas("plain", pods=1)
    scenario.add_replicas("drifted", pods=3, drifted=True)

    await scenario.run()

    assert scenario.written()["drifted-0"] == "-2"
    assert scenario.written()["plain-0"] == "-1"


async def test_pods_of_a_disrupted_node_have_the_lowest_deletion_cost() -> None:
    scenario = DeletionCostScenario()
    scenario.add_replicas("leaving")
    scenario.world.cluster.mark_for_deletion("claim-of-leaving")

    await scenario.run()

    assert scenario.written() == {"leaving-0": LOWEST}


async def test_budgets_limit_how_many_nodes_are_ranked() -> None:
    scenario = DeletionCostScenario(budgets=[{"nodes": "1"}])
    scenario.add_replicas("first", pods=1)
    scenario.add_replicas("second", pods=2)

    await scenario.run()

    assert scenario.written() == {"first-0": "-1", "second-0": None, "second-1": None}


async def test_an_unranked_node_loses_its_deletion_costs() -> None:
    scenario = DeletionCostScenario()
    scenario.add_replicas("node")
    await scenario.run()
    assert scenario.written() == {"node-0": "-1"}

    await scenario.protect("node")
    await scenario.run()

    assert scenario.written() == {"node-0": None}


async def test_a_nodepool_with_a_malformed_consolidateafter_affects_no_other_nodepool() -> None:
    scenario = DeletionCostScenario()
    scenario.add_replicas("ours")
    scenario.world.seed(make_nodepool("odd", consolidateAfter="soon"))
    scenario.add_replicas("other", pool="odd")

    await scenario.run()

    assert scenario.written() == {"ours-0": "-1", "other-0": None}


async def test_only_pods_of_replicasets_get_deletion_costs() -> None:
    scenario = DeletionCostScenario()
    scenario.add_replicas("mixed", pods=2)
    scenario.own("mixed-1", "Job")
    scenario.add_replicas("pinned", pods=2)
    scenario.own("pinned-1", "StatefulSet")

    await scenario.run()

    assert scenario.written() == {
        "mixed-0": "-1",
        "mixed-1": None,
        "pinned-0": None,
        "pinned-1": None,
    }


async def test_at_most_fifty_nodes_change_in_one_run_and_the_rest_follow() -> None:
    scenario = DeletionCostScenario()
    for number in range(55):
        scenario.add_replicas(f"n{number:02d}", "c5.large")

    await scenario.run()
    metric = "karpenter_pod_deletion_cost_nodes_with_pending_annotation_writes"
    assert scenario.counted(metric, nodepool="default") == 50
    assert sum(cost is not None for cost in scenario.written().values()) == 50

    await scenario.run()
    assert scenario.counted(metric, nodepool="default") == 5
    assert None not in scenario.written().values()


async def test_nothing_is_written_while_nothing_changes() -> None:
    scenario = DeletionCostScenario()
    scenario.add_replicas("node")
    await scenario.run()
    scenario.world.api.calls.clear()

    await scenario.run()

    assert not scenario.world.api.calls


async def test_a_pod_with_a_write_conflict_is_written_in_the_next_run() -> None:
    scenario = DeletionCostScenario()
    scenario.add_replicas("node")
    scenario.world.api.refuse("patch", ConflictError("changed", status=409))

    await scenario.run()
    results = "karpenter_pod_deletion_cost_pod_annotation_writes_total"
    assert scenario.written() == {"node-0": None}
    assert scenario.counted(results, result="skipped_conflict") == 1

    await scenario.run()
    assert scenario.written() == {"node-0": "-1"}
    assert scenario.counted(results, result="updated") == 1
