"""The cluster's default topology spread constraints, for pods without their own.

As in kube-scheduler, such a pod is spread among the pods that its Services and its owning workload
select. A pod that none of them selects is not spread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from controller.apis import kinds
from controller.apis.kubernetes.meta import LabelSelector, ObjectMeta, with_fields
from controller.apis.kubernetes.pods import Pod, TopologySpreadConstraint
from controller.apis.kubernetes.workloads import ReplicationController, Scalable, Service
from controller.state.cluster import Cluster


class Selectors:
    """The selectors of Services and workloads; those that select a pod are merged into one."""

    def __init__(
        self,
        *,
        services: Iterable[Service] = (),
        replication_controllers: Iterable[ReplicationController] = (),
        workloads: Iterable[Scalable] = (),
    ) -> None:
        """Index the selectors; `workloads` are ReplicaSets and StatefulSets."""
        self._services: defaultdict[str, list[Service]] = defaultdict(list)
        for service in services:
            if service.spec.selector:
                self._services[service.metadata.namespace].append(service)
        self._owners: dict[tuple[str, str, str], LabelSelector] = {}
        for controller in replication_controllers:
            own = LabelSelector(match_labels=controller.spec.selector)
            self._owners[_owner_key("ReplicationController", controller.metadata)] = own
        for workload in workloads:
            if workload.spec.selector is not None:
                kind = type(workload).__name__
                self._owners[_owner_key(kind, workload.metadata)] = workload.spec.selector
        self._cached: dict[tuple[object, ...], LabelSelector | None] = {}

    def of(self, pod: Pod) -> LabelSelector | None:
        """Return the selector of the pods among which a pod is spread, or None."""
        own = pod.metadata
        owner = next(
            (reference for reference in own.owner_references if reference.controller), None
        )
        name = ("", "", "") if owner is None else (owner.kind, own.namespace, owner.name)
        key = (own.namespace, name, *sorted(own.labels.items()))
        if key not in self._cached:
            self._cached[key] = self._merge(own.namespace, own.labels, self._owners.get(name))
        return self._cached[key]

    def _merge(
        self, namespace: str, labels: Mapping[str, str], owner: LabelSelector | None
    ) -> LabelSelector | None:
        merged: dict[str, str] = {}
        for service in self._services[namespace]:
            if service.spec.selector.items() <= labels.items():
                merged |= service.spec.selector
        if owner is not None:
            merged |= owner.match_labels
        expressions = owner.match_expressions if owner is not None else []
        if not merged and not expressions:
            return None
        return LabelSelector(match_labels=merged, match_expressions=expressions)


class DefaultSpreads:
    """The default topology spread constraints of a cluster."""

    def __init__(self, constraints: Sequence[TopologySpreadConstraint], cluster: Cluster) -> None:
        self._constraints = constraints
        self._cluster = cluster

    def apply(self, pods: Sequence[Pod]) -> list[Pod]:
        """Return the pods, with the default constraints if they have none of their own."""
        if not self._constraints:
            return list(pods)
        cluster = self._cluster
        replica_sets = cluster.list(kinds.REPLICA_SET)
        stateful_sets = cluster.list(kinds.STATEFUL_SET)
        selectors = Selectors(
            services=cluster.list(kinds.SERVICE),
            replication_controllers=cluster.list(kinds.REPLICATION_CONTROLLER),
            workloads=(*replica_sets, *stateful_sets),
        )
        return with_default_spreads(pods, self._constraints, selectors)


def with_default_spreads(
    pods: Iterable[Pod], constraints: Sequence[TopologySpreadConstraint], selectors: Selectors
) -> list[Pod]:
    """Return the pods, with the default constraints if they have none of their own."""
    constraints_by_selector: dict[int, list[TopologySpreadConstraint]] = {}
    result = []
    for pod in pods:
        selector = None if pod.spec.topology_spread_constraints else selectors.of(pod)
        if selector is not None:
            spread = constraints_by_selector.setdefault(
                id(selector),
                [
                    msgspec.structs.replace(constraint, label_selector=selector)
                    for constraint in constraints
                ],
            )
            pod = with_fields(pod, "spec", topology_spread_constraints=spread)
        result.append(pod)
    return result


def _owner_key(kind: str, metadata: ObjectMeta) -> tuple[str, str, str]:
    return kind, metadata.namespace, metadata.name
