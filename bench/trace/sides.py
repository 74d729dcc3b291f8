"""The two sides that decide: Joiner's packages, and Karpenter's engine in its own process.

Both have the same operations. `place` decides to which nodes pending pods go, and which nodes to
launch for them. `disrupt` decides which nodes to disrupt now, and `confirm` checks these commands
again. `deletion_costs` decides which pods ReplicaSets should delete first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from bench.parity import engines
from bench.parity.worlds import World
from bench.trace.cluster import Cluster, Node, moment
from bench.trace.workloads import Member
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Requirement
from controller.disruption import candidates
from controller.disruption.budgets import budgets_of
from controller.disruption.commands import Command, Decision, Reason
from controller.disruption.consolidateafter import ConsolidationDelay
from controller.disruption.costs import workload_starts
from controller.disruption.deletioncosts import ranking
from controller.disruption.methods import emptiness
from controller.disruption.methods.order import confirm, decide
from controller.disruption.problem import DisruptionProblem, DisruptionSettings
from controller.reconcilers.disruption.disruptor import MAX_CONSOLIDATION_DELAY
from controller.reconcilers.provisioning.assignment import assign_pods
from controller.reconcilers.provisioning.provisioner import with_placed_pods
from controller.scheduling.results import NewNode
from controller.scheduling.scheduler import schedule


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes to launch, and the pods that go to each existing node."""

    new_nodes: Sequence[NewNode] = ()
    existing: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Move:
    """A disruption command: nodes to disrupt together, their replacements, and where pods go."""

    reason: Reason
    nodes: tuple[str, ...]
    replacements: tuple[NewNode, ...] = ()
    existing: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Side(Protocol):
    """The decisions of one controller; the simulator does everything else."""

    name: str
    nominates: bool
    """Whether the controller nominates pending pods for the node it planned for them."""

    largest_first: bool
    """Whether a drain evicts the largest pods first."""

    repeat_seconds: float
    """Seconds after which the controller runs another disruption pass while nothing changes."""

    fades: float
    """Seconds after the last change during which a pass may find a different result."""

    @property
    def writes_deletion_costs(self) -> bool:
        """Whether the controller tells ReplicaSets which pods to delete first."""

    def place(
        self, cluster: Cluster, waiting: Sequence[Member], placed: Mapping[str, str]
    ) -> Placement:
        """Plan nodes for the pending pods (`waiting`).

        `placed` maps the key of each pod that already has a planned node to the node's name.
        """

    def deletion_costs(self, cluster: Cluster) -> Mapping[str, int]:
        """Return the value of `pod-deletion-cost` for each pod of a node, by node name.

        0 has the same effect as no annotation.
        """

    def disrupt(self, cluster: Cluster) -> Sequence[Move]:
        """Run a disruption pass and return its commands."""

    def confirm(self, cluster: Cluster, moves: Sequence[Move]) -> Sequence[Move]:
        """Return the commands that are still valid after the validation wait."""


@dataclass(slots=True)
class Joiner:
    """Joiner's engine in process, called as its reconcilers call it."""

    settings: DisruptionSettings = field(default_factory=DisruptionSettings)
    name: str = "Joiner"
    nominates: bool = True
    largest_first: bool = True
    repeat_seconds: float = 300.0
    fades: float = 3 * 3600.0
    """Seconds after the last change during which a pass may still find new commands.

    Joiner expects a saving to last as long as the workloads have run, at most two hours. This time
    grows while nothing else changes, so a saving that was too small may begin to pay.
    """

    _decision: Decision = field(default_factory=Decision)
    _planned: tuple[str, ...] = ()
    _delay: ConsolidationDelay = field(
        default_factory=lambda: ConsolidationDelay(MAX_CONSOLIDATION_DELAY)
    )
    _start_times: Mapping[str, datetime] = field(default_factory=dict)

    def place(
        self, cluster: Cluster, waiting: Sequence[Member], placed: Mapping[str, str]
    ) -> Placement:
        """Plan nodes for the pods without one.

        Pods in `placed` count as running on their planned nodes.
        """
        members = {one.key: one for one in waiting}
        asked = [one.seen for one in waiting if one.key not in placed]
        planned = _expected_pods(members, placed)
        snapshot = with_placed_pods(cluster.snapshot(), planned, running=frozenset())
        results = schedule(asked, snapshot=snapshot)
        return Placement(assign_pods(results.new_nodes, asked), results.existing_nodes)

    @property
    def writes_deletion_costs(self) -> bool:
        """Whether the feature gate PodDeletionCostManagement is on."""
        return self.settings.writes_deletion_costs

    def deletion_costs(self, cluster: Cluster) -> Mapping[str, int]:
        """Return the deletion cost of the pods on each node, by node name.

        It is lowest on the nodes that Joiner disrupts first.
        """
        ranked = ranking(self._problem(cluster), self._planned)
        return {name: cost or 0 for name, cost in ranked.costs()}

    def disrupt(self, cluster: Cluster) -> Sequence[Move]:
        """Return commands for empty nodes first, then for consolidation and drift."""
        problem = self._problem(cluster)
        empty = emptiness.commands(
            candidates.survey(problem).admitted, budgets=budgets_of(problem, Reason.EMPTY)
        )
        leaving = frozenset(name for one in empty for name in one.names)
        self._decision = decide(problem.without(leaving))
        going = [name for one in self._decision.commands for name in sorted(one.names)]
        self._planned = (*going, *sorted(self._decision.held_back.difference(going)))
        if not any(one.reason is Reason.UNDERUTILIZED for one in self._decision.commands):
            self._delay.end()
        elif self._delay.remaining_delay(problem) > timedelta(0):
            return [_move(one) for one in empty]
        return [_move(one) for one in (*empty, *self._decision.commands)]

    def confirm(self, cluster: Cluster, moves: Sequence[Move]) -> Sequence[Move]:
        """Validate the commands as the disruption loop does."""
        problem = self._problem(cluster)
        empty = emptiness.commands(
            [
                one
                for one in candidates.survey(problem).admitted
                if any(one.name in move.nodes for move in moves if move.reason is Reason.EMPTY)
            ],
            budgets=budgets_of(problem, Reason.EMPTY),
        )
        valid = [*empty]
        if any(one.reason is Reason.UNDERUTILIZED for one in moves):
            leaving = frozenset(name for one in empty for name in one.names)
            valid += confirm(problem.without(leaving), self._decision).commands
        return [_move(one) for one in valid]

    def _problem(self, cluster: Cluster) -> DisruptionProblem:
        snapshot, waiting = cluster.snapshot(), [one.seen for one in cluster.waiting.values()]
        self._start_times = workload_starts((*snapshot.pods, *waiting), self._start_times)
        return DisruptionProblem(
            snapshot=snapshot,
            node_pools=cluster.node_pools,
            now=moment(cluster.now),
            pending=tuple(waiting),
            settings=self.settings,
            workload_start_times=self._start_times,
        )


def _expected_pods(members: Mapping[str, Member], placed: Mapping[str, str]) -> list[Pod]:
    return [
        msgspec.structs.replace(
            one.seen, spec=msgspec.structs.replace(one.seen.spec, node_name=placed[key])
        )
        for key, one in members.items()
        if key in placed
    ]


def _move(command: Command) -> Move:
    return Move(
        command.reason,
        tuple(sorted(command.names)),
        command.replacements,
        command.moves,
    )


@dataclass(slots=True)
class Karpenter:
    """Karpenter's engine and disruption methods, called over a pipe."""

    process: engines.Karpenter
    name: str = "Karpenter"
    nominates: bool = False
    largest_first: bool = False
    repeat_seconds: float = 300.0
    fades: float = 0.0
    writes_deletion_costs: bool = False

    def deletion_costs(self, cluster: Cluster) -> Mapping[str, int]:
        """Return no costs: Karpenter runs with its default feature gates, and writes none."""
        return {}

    def place(
        self, cluster: Cluster, waiting: Sequence[Member], placed: Mapping[str, str]
    ) -> Placement:
        """Plan nodes for all pending pods.

        Karpenter also plans again for pods that already have a plan.
        """
        return self._placement(cluster.world(waiting=waiting), cluster.now)

    def disrupt(self, cluster: Cluster) -> Sequence[Move]:
        """Run Karpenter's disruption methods in their order."""
        world = cluster.world(waiting=cluster.waiting.values())
        answer = self.process.disrupt(world, now=moment(cluster.now), patient=True)
        return [
            Move(
                Reason(one["reason"]),
                tuple(one["nodes"]),
                tuple(map(_new_node, one["newNodes"])),
                one["existingNodes"],
            )
            for one in answer["commands"]
        ]

    def confirm(self, cluster: Cluster, moves: Sequence[Move]) -> Sequence[Move]:
        """Validate as Karpenter does.

        A command for empty nodes keeps those that are still empty. Any other command remains only
        if all its nodes may still be disrupted, and if the engine, asked again, launches as many
        new nodes, each with at least the same instance types.
        """
        valid = []
        for move in moves:
            nodes = [one for name in move.nodes if (one := cluster.nodes.get(name))]
            if move.reason is Reason.EMPTY:
                empty = tuple(one.name for one in nodes if one.open and not one.pods)
                if empty:
                    valid.append(replace(move, nodes=empty))
            elif self._stands(cluster, move, nodes):
                valid.append(move)
        return valid

    def _stands(self, cluster: Cluster, move: Move, nodes: Sequence[Node]) -> bool:
        untouched = [
            one
            for one in nodes
            if one.open
            and one.nominated_until <= cluster.now
            and one.is_quiet(cluster.now, cluster.waits[one.pool])
            and all(
                not pod.workload.protected and pod.workload.allowed_disruptions() != 0
                for pod in one.pods.values()
                if not pod.leaving
            )
        ]
        if len(untouched) < len(move.nodes):
            return False
        moving = [pod for one in nodes for pod in one.pods.values() if not pod.leaving]
        world = cluster.world(
            waiting=[*cluster.waiting.values(), *moving], without=[one.name for one in nodes]
        )
        answer = self.process.schedule(world, now=moment(cluster.now))
        new_nodes = [_new_node(one) for one in answer["newNodes"]]
        homeless = {one.key for one in moving} & answer["unschedulable"].keys()
        return (
            not homeless
            and len(new_nodes) == len(move.replacements)
            and all(
                set(old.instance_types) <= set(new.instance_types)
                for old, new in zip(move.replacements, new_nodes, strict=True)
            )
        )

    def _placement(self, world: World, now: float) -> Placement:
        answer = self.process.schedule(world, now=moment(now))
        return Placement([_new_node(one) for one in answer["newNodes"]], answer["existingNodes"])


def _new_node(written: Mapping[str, Any]) -> NewNode:
    return NewNode(
        written["nodePool"],
        tuple(written["instanceTypes"]),
        tuple(msgspec.convert(one, Requirement) for one in written["requirements"]),
        written["price"],
        tuple(written["pods"]),
        {},
    )
