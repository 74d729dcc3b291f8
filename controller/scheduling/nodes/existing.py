"""Existing nodes and nodes being launched as arrays, with their remaining capacity.

Nodes are in the order in which placement tries them: initialized nodes first, then by name.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from controller.apis import labels
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.quantities import MILLI
from controller.apis.kubernetes.taints import Taint, Toleration
from controller.constraints import hostports, resources, taints
from controller.constraints.hostports import HostPort
from controller.constraints.requirements import Requirements, ValueSet
from controller.constraints.resources import Resources
from controller.scheduling.arrays import Indices, Mask, Matrix, ResourceAxis, Vector
from controller.scheduling.catalog.daemons import Daemon
from controller.state.nodes import StateNode, lifecycle_event
from controller.state.pods import is_daemon, is_terminal
from controller.state.usage import allocatable

UNLIMITED = np.iinfo(np.int32).max * MILLI
"""An amount that no pods use up, in thousandths."""


class ExistingNodes:
    """Existing nodes with their remaining capacity.

    * `all`: the nodes, in the order of every array axis named *nodes*.
    * `index_of`: node name to index.
    * `remaining`: remaining capacity (nodes × resources of the solve), negative where the pods of
      a node request more than it has.
    * `ports`: the host ports in use on each node.
    """

    def __init__(
        self,
        nodes: Sequence[StateNode],
        *,
        pods: Sequence[Pod],
        daemons: Sequence[Daemon],
        axis: ResourceAxis,
    ) -> None:
        """Take the nodes that may receive pods; nodes being deleted are left out.

        Args:
            nodes: The nodes of the snapshot.
            pods: The pods that are bound to the nodes or nominated for them.
            daemons: The DaemonSets whose pods will run on the nodes that match.
            axis: The resources of the solve.

        """
        self.all = sorted(
            (node for node in nodes if not node.deleting),
            key=lambda node: (not node.initialized, node.name),
        )
        self.index_of = {node.name: index for index, node in enumerate(self.all)}
        tainted = [tuple(relevant_taints(node)) for node in self.all]
        self._taints = list(dict.fromkeys(tainted))
        number = {node_taints: code for code, node_taints in enumerate(self._taints)}
        self._taints_of = np.array([number[node_taints] for node_taints in tainted], dtype=np.int64)
        self._labels: dict[str, tuple[list[str | None], Indices]] = {}
        self._cached: dict[tuple[str, ValueSet], Mask] = {}
        self.ports: list[list[HostPort]] = [[] for _ in self.all]
        used, daemon_used = self._usage(pods)
        self.remaining = self._remaining_capacity(used, daemon_used, daemons, axis)

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.all)

    def copy(self) -> ExistingNodes:
        """Return the same nodes with independent remaining capacity and host ports."""
        nodes = copy.copy(self)
        nodes.remaining, nodes.ports = self.remaining.copy(), [list(taken) for taken in self.ports]
        return nodes

    def compatible_mask(self, alternatives: Sequence[Requirements]) -> Mask:
        """Mark the nodes that meet one of the alternatives."""
        mask = np.zeros(len(self.all), dtype=np.bool_)
        for alternative in alternatives:
            met = np.ones(len(self.all), dtype=np.bool_)
            for key, allowed in alternative.items():
                met &= self._label_mask(key, allowed)
            mask |= met
        return mask

    def tolerated_mask(self, tolerations: Sequence[Toleration]) -> Mask:
        """Mark the nodes whose taints are all tolerated, including PreferNoSchedule taints."""
        truth = [
            not node_taints or taints.untolerated_taint(node_taints, tolerations) is None
            for node_taints in self._taints
        ]
        return np.array(truth, dtype=np.bool_)[self._taints_of]

    def free_of(self, ports: Sequence[HostPort]) -> Mask:
        """Mark the nodes on which none of the host ports is in use."""
        return np.array(
            [not hostports.conflict(ports, taken) for taken in self.ports], dtype=np.bool_
        ).reshape(len(self.all))

    def holds(self, requests: Vector) -> Indices:
        """Return the number of pods with these requests that fit on each node (nodes).

        As in kube-scheduler, only the resources that the pods request decide: a node whose pods
        request too much of another resource takes them.
        """
        needed = requests > 0
        fitting: Vector = np.floor(self.remaining[:, needed] / requests[needed]).min(
            axis=1, initial=np.iinfo(np.int32).max
        )
        return np.maximum(fitting, 0).astype(np.int64)

    def put(self, index: int, size: Vector, ports: Sequence[HostPort]) -> None:
        """Subtract the total size of pods from a node's capacity and record their host ports."""
        self.remaining[index] -= size
        self.ports[index].extend(ports)

    def domains(self, key: str) -> list[str | None]:
        """Return each node's domain for a topology key; None where the label is missing."""
        values, codes = self._encoded_label(key)
        return [values[code] for code in codes.tolist()]

    def _encoded_label(self, key: str) -> tuple[list[str | None], Indices]:
        cached = self._labels.get(key)
        if cached is None:
            node_labels = [_label(node, key) for node in self.all]
            values = sorted({value for value in node_labels if value is not None})
            number: dict[str | None, int] = {value: index for index, value in enumerate(values)}
            number[None] = len(values)
            codes = np.array([number[value] for value in node_labels], dtype=np.int64)
            cached = self._labels[key] = ([*values, None], codes)
        return cached

    def _label_mask(self, key: str, allowed: ValueSet) -> Mask:
        cached = self._cached.get((key, allowed))
        if cached is None:
            values, codes = self._encoded_label(key)
            truth = [
                allowed.allows_absence if value is None else allowed.has(value) for value in values
            ]
            cached = self._cached[(key, allowed)] = np.array(truth, dtype=np.bool_)[codes]
        return cached

    def _usage(self, pods: Sequence[Pod]) -> tuple[list[Resources], list[Resources]]:
        """Return the requests of all pods per node, and those of DaemonSet pods per node.

        The pods' host ports are recorded in `ports`.
        """
        used: defaultdict[int, list[Resources]] = defaultdict(list)
        daemon_used: defaultdict[int, list[Resources]] = defaultdict(list)
        # A node without a Node object has the name of its NodeClaim: pods are nominated for nodes
        # that have not registered yet.
        by_node = {state_node.name: index for index, state_node in enumerate(self.all)}
        read: dict[tuple[object, ...], tuple[Resources, tuple[HostPort, ...]]] = {}
        for pod in pods:
            index = by_node.get(pod.spec.node_name)
            if index is None or is_terminal(pod):
                continue
            spec, resized = pod.spec, resources.in_resize(pod)
            # Equal pods share the parts of their specs (`state.sharing`), which are read once.
            key = (
                *map(id, (spec.containers, spec.init_containers, spec.resources, spec.overhead)),
                spec.host_network,
                hostports.own_volumes(spec),
                pod.key if resized else "",
            )
            if key not in read:
                read[key] = resources.pod_requests(pod, resized), hostports.host_ports(spec)
            requests, ports = read[key]
            used[index].append(requests)
            self.ports[index].extend(ports)
            if is_daemon(pod):
                daemon_used[index].append(requests)
        count = range(len(self.all))
        return (
            [resources.total(used[index]) for index in count],
            [resources.total(daemon_used[index]) for index in count],
        )

    def _remaining_capacity(
        self,
        used: Sequence[Resources],
        daemon_used: Sequence[Resources],
        daemons: Sequence[Daemon],
        axis: ResourceAxis,
    ) -> Matrix:
        """Return the remaining capacity (nodes × resources of the solve)."""
        remaining = np.zeros((len(self.all), len(axis.names)))
        expected = self._daemon_requests(daemons)
        for index, state_node in enumerate(self.all):
            free = resources.subtract(allocatable(state_node), used[index])
            # Reserve capacity for DaemonSet pods that are expected but do not run yet.
            pending = resources.subtract(expected[index], daemon_used[index])
            free = resources.subtract(free, {name: max(v, 0) for name, v in pending.items()})
            # `Attachments` counts the volumes of existing nodes.
            remaining[index] = axis.vector({**free, resources.EBS_ATTACHMENTS: UNLIMITED})
        return remaining

    def _daemon_requests(self, daemons: Sequence[Daemon]) -> list[Resources]:
        """Return the requests of the DaemonSet pods that each node must hold, running or not.

        Their host ports are recorded in `ports`.
        """
        parts: list[list[Resources]] = [[] for _ in self.all]
        for daemon in daemons:
            runs = self.compatible_mask(daemon.alternatives) & self.tolerated_mask(
                daemon.tolerations
            )
            for index in np.flatnonzero(runs).tolist():
                parts[index].append(daemon.requests)
                self.ports[index].extend(daemon.ports)
        return [resources.total(part) for part in parts]


def relevant_taints(state_node: StateNode) -> list[Taint]:
    """Return the taints that still repel pods once the node is ready.

    Startup and ephemeral taints are left out until the node is initialized, because they are
    removed by then. Before the node registers, the taints are those of its NodeClaim.
    """
    if state_node.node is None or (state_node.claim is not None and not state_node.registered):
        return list(state_node.claim.spec.taints) if state_node.claim is not None else []
    node_taints = [*state_node.node.spec.taints, *_cordon(state_node.node)]
    if state_node.initialized:
        # The pods of a node that is rebooted stay bound to it.
        return [taint for taint in node_taints if not taints.are_same(taint, taints.REBOOTING)]
    assert state_node.claim is not None
    startup = state_node.claim.spec.startup_taints
    return [
        taint
        for taint in node_taints
        if not taints.is_ephemeral(taint)
        and not any(taints.are_same(taint, startup_taint) for startup_taint in startup)
    ]


def _cordon(node: Node) -> list[Taint]:
    """Return the taint of a cordoned node; a node with a lifecycle event counts as cordoned."""
    if not node.spec.unschedulable and not lifecycle_event(node):
        return []
    return [Taint(key="node.kubernetes.io/unschedulable", effect=taints.NO_SCHEDULE)]


def _label(state_node: StateNode, key: str) -> str | None:
    if key == labels.HOSTNAME:
        return state_node.labels.get(key, state_node.name)
    value = state_node.labels.get(key)
    if value is None:
        for old, new in labels.ALIASES.items():
            if new == key and old in state_node.labels:
                return state_node.labels[old]
    return value
