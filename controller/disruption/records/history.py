"""The outcome of a decision: the cost of the moved pods' nodes, and how many pods run again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from controller.apis.karpenter.disruption import (
    Balance,
    Disruption,
    DisruptionStatus,
    MovedPods,
    Outcome,
)
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption.offerings import node_price
from controller.state.nodes import StateNode
from controller.state.pods import controller_of, is_reschedulable

CAUSED_WITHIN = timedelta(minutes=10)
"""A node that was created within this time after a decision counts as caused by it."""

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCluster:
    """The cluster that an outcome is computed from: nodes, pods, and instance types by NodePool.

    `planned` names the NodeClaims that decisions created.
    """

    nodes: Sequence[StateNode]
    pods: Sequence[Pod]
    types: Mapping[str, Iterable[InstanceType]]
    planned: Collection[str]
    now: datetime

    def price(self, state: StateNode) -> float:
        """Return the price of a node in $/h, 0 if it is unknown."""
        types = {
            instance_type.name: instance_type
            for instance_type in self.types.get(state.node_pool, ())
        }
        return node_price(state, types) or 0.0


def pods_outcome(record: Disruption, pods: Iterable[Pod]) -> MovedPods:
    """Return how many of the moved pods run again.

    For each workload, these are the ready pods created since the execution began, at most as many
    as moved.
    """
    moved = sum(workload.pods for workload in record.spec.workloads)
    running, slowest = 0, 0.0
    successors = _successors(record, pods)
    for workload in record.spec.workloads:
        ready = sorted(
            t for pod in successors.get(workload.uid, ()) if (t := _start_up(pod)) is not None
        )
        running += min(len(ready), workload.pods)
        slowest = max([slowest, *ready[: workload.pods]])
    return MovedPods(moved=moved, running=running, slowest_seconds=slowest)


def outcome(record: Disruption, observed: ObservedCluster) -> Outcome:
    """Return the outcome of a decision up to now."""
    here = {
        node.claim.metadata.name
        for node in observed.nodes
        if node.claim is not None and not node.deleting
    }
    unplanned = _unplanned_costs(record, observed)
    cost = record.status.replacements_cost + sum(unplanned)
    return Outcome(
        at=observed.now,
        cost=round(cost, 4),
        saving=round(record.spec.price - cost, 4),
        unplanned_nodes=len(unplanned),
        replacements_disrupted=sum(name not in here for name in record.status.replacements),
    )


def replacements_cost(record: Disruption, observed: ObservedCluster) -> float:
    """Return the price of the replacements as they were launched, in $/h."""
    mine = frozenset(record.status.replacements)
    return sum(
        (
            observed.price(node)
            for node in observed.nodes
            if node.claim is not None and node.claim.metadata.name in mine
        ),
        0.0,
    )


def updated_balance(
    balance: Balance, *, before: DisruptionStatus, after: Disruption
) -> Balance | None:
    """Return the totals of all decisions after one changed, or None if the totals stay the same.

    `before` is the status of the Disruption before the change, and `after` the Disruption after it.
    """
    now = after.status
    closed = now.state if now.state != before.state else ""
    counted = Balance(
        sequence=balance.sequence,
        done=balance.done + (closed == "Done"),
        failed=balance.failed + (closed == "Failed"),
        predicted=_sum(balance.predicted, after.spec.saving if closed == "Done" else 0.0),
        after_hour=_sum(balance.after_hour, _saving(now.after_hour) - _saving(before.after_hour)),
        after_day=_sum(balance.after_day, _saving(now.after_day) - _saving(before.after_day)),
        moved=balance.moved + _pods_moved(now.pods) - _pods_moved(before.pods),
        running=balance.running + _running_count(now.pods) - _running_count(before.pods),
        replacements_disrupted=(
            balance.replacements_disrupted
            + _replacements_disrupted(now.after_day)
            - _replacements_disrupted(before.after_day)
        ),
    )
    if counted == balance:
        return None
    return msgspec.structs.replace(counted, sequence=balance.sequence + 1)


def _unplanned_costs(record: Disruption, observed: ObservedCluster) -> list[float]:
    """Return the cost share, in $/h, of each unplanned node that was created soon after a decision.

    The share is the moved pods' part of the pods that run on the node.
    """
    since = record.status.begun_at
    if since is None:
        return []
    successors = {
        pod.metadata.uid for pods in _successors(record, observed.pods).values() for pod in pods
    }
    costs = []
    for node in observed.nodes:
        if node.claim is None or node.claim.metadata.name in observed.planned:
            continue
        born = node.claim.metadata.creation_timestamp
        if born is None or not since <= born <= since + CAUSED_WITHIN:
            continue
        there = [p for p in observed.pods if p.spec.node_name == node.name and is_reschedulable(p)]
        mine = sum(pod.metadata.uid in successors for pod in there)
        if mine:
            costs.append(observed.price(node) * mine / len(there))
    return costs


def _successors(record: Disruption, pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """Return the pods of the record's workloads created since it began, by workload UID."""
    started = record.status.begun_at
    asked = {workload.uid for workload in record.spec.workloads if workload.uid}
    successors: dict[str, list[Pod]] = {}
    for pod in pods:
        born = pod.metadata.creation_timestamp
        owner = controller_of(pod)
        # Creation times are whole seconds.
        if owner not in asked or started is None or born is None:
            continue
        if born >= started.replace(microsecond=0):
            successors.setdefault(owner, []).append(pod)
    return successors


def _start_up(pod: Pod) -> float | None:
    """Return the seconds from a pod's creation until it was ready, or None if it is not ready."""
    ready = conditions.find(pod.status.conditions, "Ready")
    born = pod.metadata.creation_timestamp
    if ready is None or not ready.is_true or ready.last_transition_time is None or born is None:
        return None
    return max((ready.last_transition_time - born).total_seconds(), 0.0)


def _saving(measured: Outcome | None) -> float:
    return measured.saving if measured is not None else 0.0


def _replacements_disrupted(measured: Outcome | None) -> int:
    return measured.replacements_disrupted if measured is not None else 0


def _pods_moved(moved_pods: MovedPods | None) -> int:
    return moved_pods.moved if moved_pods is not None else 0


def _running_count(moved_pods: MovedPods | None) -> int:
    return moved_pods.running if moved_pods is not None else 0


def _sum(amount: float, other: float) -> float:
    return round(amount + other, 4)


def with_status(record: Disruption, **changes: object) -> Disruption:
    """Return the record with another status."""
    return with_fields(record, "status", **changes)
