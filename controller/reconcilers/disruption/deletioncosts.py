"""Writes the deletion cost of pods, so that ReplicaSets scale down where Joiner disrupts next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from controller.apis import labels
from controller.apis.kinds import POD
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.errors import ApiError, ConflictError, NotFoundError
from controller.disruption.deletioncosts import LOWEST, is_replica, ranking
from controller.disruption.problem import DisruptionSettings
from controller.reconcilers.concurrency import gather_all
from controller.reconcilers.disruption.engine import UNSYNCED, DisruptionEngine
from controller.reconcilers.disruption.problem import read_problem
from controller.reconcilers.ports import Ports, PortUser
from controller.state.pods import is_terminal

PERIOD = timedelta(minutes=1)

MOST_NODES = 50
"""The largest number of nodes on which deletion costs change in one run, as in Karpenter. Nodes
that are being disrupted do not count."""


@dataclass(slots=True, kw_only=True)
class DeletionCosts(PortUser):
    """Keeps `controller.kubernetes.io/pod-deletion-cost` of all ReplicaSets' pods up to date.

    `planned` returns the nodes of the last consolidation decision, in its order.
    """

    ports: Ports
    engine: DisruptionEngine
    planned: Callable[[], Sequence[str]]
    settings: DisruptionSettings
    _done: tuple[int, tuple[str, ...]] | None = field(default=None, init=False)
    """The cluster's revision and the plan of the last run that wrote everything."""

    async def run_once(self) -> timedelta:
        """Rank the nodes, and write the deletion costs that changed; returns when to run again."""
        if not self.cluster.synced:
            return UNSYNCED
        planned = tuple(self.planned())
        if self._done == (self.cluster.revision, planned):
            return PERIOD
        now = self.clock()
        problem = await read_problem(self.cloud, self.cluster, now=now, engine=self.engine)
        problem = replace(problem, settings=self.settings)
        ranked = await self.engine.in_thread(ranking, problem, planned)
        pools = {state.name: state.node_pool for state in problem.snapshot.nodes}
        changed: Counter[str] = Counter()
        left, is_done = MOST_NODES, True
        for name, cost in ranked.costs():
            pods = [pod for pod in self.cluster.pods_on(name) if _differs(pod, cost)]
            if not pods or (left <= 0 and cost != LOWEST):
                is_done = is_done and not pods
                continue
            left -= cost != LOWEST
            changed[pools[name]] += 1
            is_done = all(await gather_all(*(self._write(pod, cost) for pod in pods))) and is_done
        self.metrics.set_changed_deletion_costs(changed)
        self._done = (self.cluster.revision, planned) if is_done else None
        return PERIOD

    async def _write(self, pod: Pod, cost: int | None) -> bool:
        """Write a pod's deletion cost; returns False if the write must be retried."""
        value, own = None if cost is None else str(cost), pod.metadata
        wanted = {"metadata": {"annotations": {labels.POD_DELETION_COST: value}}}
        try:
            updated = await self.api.patch(
                POD,
                own.name,
                wanted,
                namespace=own.namespace,
                resource_version=own.resource_version,
            )
        except NotFoundError:
            result = "skipped_notfound"
        except ConflictError:
            result = "skipped_conflict"
        except ApiError:
            result = "error"
        else:
            self.cluster.observe(POD, updated)
            result = "updated"
        self.metrics.record_deletion_cost_write(result)
        return result in ("updated", "skipped_notfound")


def _differs(pod: Pod, cost: int | None) -> bool:
    """Whether the pod is a ReplicaSet's, runs, and has a deletion cost other than `cost`."""
    if not is_replica(pod) or pod.metadata.is_deleting or is_terminal(pod):
        return False
    return pod.metadata.annotations.get(labels.POD_DELETION_COST) != (
        None if cost is None else str(cost)
    )
