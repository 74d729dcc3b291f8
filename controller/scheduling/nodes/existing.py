"""The nodes that exist or are on their way, as arrays, and the room on them.

Nodes stand in the order in which they are tried: initialized first, then by name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from controller.apis import labels
from controller.apis.nodes import Node
from controller.apis.pods import Pod
from controller.apis.taints import Taint, Toleration
from controller.constraints import hostports, resources, taints
from controller.constraints.hostports import HostPort
from controller.constraints.requirements import Requirements, ValueSet
from controller.constraints.resources import Resources
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.catalog.daemons import Daemon
from controller.state.nodes import StateNode
from controller.state.pods import is_terminal
from controller.state.usage import allocatable


class ExistingNodes:
    """Room on existing nodes. `room`: nodes × resources, along `names`."""

    def __init__(
        self,
        nodes: Sequence[StateNode],
        *,
        pods: Iterable[Pod],
        daemons: Sequence[Daemon],
        names: Sequence[str],
    ) -> None:
        """Take the nodes that may receive pods; `pods` are those that run on them."""
        self.all = sorted(
            (one for one in nodes if not one.deleting),
            key=lambda one: (not one.initialized, one.name),
        )
        self.names = tuple(names)
        self.place = {one.name: index for index, one in enumerate(self.all)}
        self._taints = [relevant_taints(one) for one in self.all]
        self._labels: dict[str, tuple[list[str | None], Indices]] = {}
        self._cached: dict[tuple[str, ValueSet], Mask] = {}
        self.ports: list[list[HostPort]] = [[] for _ in self.all]
        used, daemon_used = self._usage(pods)
        self.room = self._room(used, daemon_used, daemons)

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.all)

    def meeting(self, alternatives: Sequence[Requirements]) -> Mask:
        """Mark the nodes that meet one of the alternatives."""
        mask = np.zeros(len(self.all), dtype=np.bool_)
        for alternative in alternatives:
            met = np.ones(len(self.all), dtype=np.bool_)
            for key, allowed in alternative.items():
                met &= self._having(key, allowed)
            mask |= met
        return mask

    def tolerated(self, tolerations: Sequence[Toleration]) -> Mask:
        """Mark the nodes whose taints let such a pod in; soft taints only if tolerated."""
        answers: dict[tuple[Taint, ...], bool] = {}
        mask = np.ones(len(self.all), dtype=np.bool_)
        for index, found in enumerate(self._taints):
            if found:
                key = tuple(found)
                if key not in answers:
                    answers[key] = taints.untolerated(found, tolerations) is None
                mask[index] = answers[key]
        return mask

    def free_of(self, ports: Sequence[HostPort]) -> Mask:
        """Mark the nodes on which none of the host ports is taken."""
        return np.array(
            [not hostports.conflict(ports, taken) for taken in self.ports], dtype=np.bool_
        ).reshape(len(self.all))

    def holds(self, requests: Vector) -> Indices:
        """Return how many pods of these requests each node has room for."""
        asked = requests > 0
        open_ = (self.room >= 0).all(axis=1)
        if not asked.any():
            return np.where(open_, np.iinfo(np.int32).max, 0).astype(np.int64)
        fitting = np.floor(self.room[:, asked] / requests[asked]).min(axis=1, initial=np.inf)
        return np.where(open_, np.maximum(fitting, 0), 0).astype(np.int64)

    def put(self, index: int, size: Vector, ports: Sequence[HostPort]) -> None:
        """Take room on a node for pods of this total size."""
        self.room[index] -= size
        self.ports[index].extend(ports)

    def domains(self, key: str) -> list[str | None]:
        """Return where each node lies under a label."""
        values, codes = self._coded(key)
        return [values[code] for code in codes.tolist()]

    def _coded(self, key: str) -> tuple[list[str | None], Indices]:
        known = self._labels.get(key)
        if known is None:
            found = [_label(one, key) for one in self.all]
            values = sorted({one for one in found if one is not None})
            number: dict[str | None, int] = {value: index for index, value in enumerate(values)}
            number[None] = len(values)
            codes = np.array([number[value] for value in found], dtype=np.int64)
            known = self._labels[key] = ([*values, None], codes)
        return known

    def _having(self, key: str, allowed: ValueSet) -> Mask:
        known = self._cached.get((key, allowed))
        if known is None:
            values, codes = self._coded(key)
            truth = [
                allowed.allows_absence if value is None else allowed.has(value) for value in values
            ]
            known = self._cached[(key, allowed)] = np.array(truth, dtype=np.bool_)[codes]
        return known

    def _usage(self, pods: Iterable[Pod]) -> tuple[list[Resources], list[Resources]]:
        used: defaultdict[int, list[Resources]] = defaultdict(list)
        daemon_used: defaultdict[int, list[Resources]] = defaultdict(list)
        by_node = {
            one.node.metadata.name: index
            for index, one in enumerate(self.all)
            if one.node is not None
        }
        for pod in pods:
            index = by_node.get(pod.spec.node_name)
            if index is None or is_terminal(pod):
                continue
            requests = resources.pod_requests(pod)
            used[index].append(requests)
            self.ports[index].extend(hostports.host_ports(pod.spec))
            if any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references):
                daemon_used[index].append(requests)
        count = range(len(self.all))
        return (
            [resources.total(used[index]) for index in count],
            [resources.total(daemon_used[index]) for index in count],
        )

    def _room(
        self,
        used: Sequence[Resources],
        daemon_used: Sequence[Resources],
        daemons: Sequence[Daemon],
    ) -> Matrix:
        room = np.zeros((len(self.all), len(self.names)))
        expected = self._expected(daemons)
        for index, one in enumerate(self.all):
            free = resources.less(allocatable(one), used[index])
            pending = resources.less(expected[index], daemon_used[index])
            free = resources.less(free, {name: max(v, 0) for name, v in pending.items()})
            room[index] = [free.get(name, 0) for name in self.names]
            if any(amount < 0 for amount in free.values()):
                room[index] = -1
        return room

    def _expected(self, daemons: Sequence[Daemon]) -> list[Resources]:
        parts: list[list[Resources]] = [[] for _ in self.all]
        for daemon in daemons:
            runs = self.meeting(daemon.alternatives) & self.tolerated(daemon.tolerations)
            for index in np.flatnonzero(runs).tolist():
                parts[index].append(daemon.requests)
                self.ports[index].extend(daemon.ports)
        return [resources.total(part) for part in parts]


def relevant_taints(one: StateNode) -> list[Taint]:
    """Return the taints that will keep pods off once the node is ready.

    A node of ours that is still coming up will lose its startup and ephemeral
    taints; before it registers, the claim tells what taints it will have.
    """
    if one.node is None or (one.claim is not None and not one.registered):
        return list(one.claim.spec.taints) if one.claim is not None else []
    found = [*one.node.spec.taints, *_cordon(one.node)]
    if one.initialized:
        return found
    assert one.claim is not None
    startup = one.claim.spec.startup_taints
    return [
        taint
        for taint in found
        if not taints.is_ephemeral(taint)
        and not any(taints.same(taint, passing) for passing in startup)
    ]


def _cordon(node: Node) -> list[Taint]:
    if not node.spec.unschedulable:
        return []
    return [Taint(key="node.kubernetes.io/unschedulable", effect=taints.NO_SCHEDULE)]


def _label(one: StateNode, key: str) -> str | None:
    if key == labels.HOSTNAME:
        return one.labels.get(key, one.name)
    found = one.labels.get(key)
    if found is None:
        for old, new in labels.ALIASES.items():
            if new == key and old in one.labels:
                return one.labels[old]
    return found
