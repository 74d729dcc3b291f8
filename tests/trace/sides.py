"""The two that decide: Joiner's own rooms, and Karpenter's engine behind its process.

Both are asked the same two things. *Place*: where do pods that wait go, and which machines should
be bought for them? *Look*: which machines should go now?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from controller.apis.pods import Pod
from controller.apis.taints import Requirement
from controller.disruption import candidates, emptiness
from controller.disruption.budgets import budgets_of
from controller.disruption.commands import Command, Decision, Reason
from controller.disruption.costs import beginnings
from controller.disruption.methods import confirm, decide
from controller.disruption.problem import DisruptionProblem, DisruptionSettings
from controller.disruption.settling import Gathering
from controller.reconcilers.disruption.disruptor import GATHERING
from controller.reconcilers.provisioning.assignment import assigned
from controller.reconcilers.provisioning.provisioner import with_placed
from controller.scheduling.results import NewNode
from controller.scheduling.scheduler import schedule
from tests.parity import engines
from tests.parity.worlds import World
from tests.trace.cluster import Cluster, Machine, moment
from tests.trace.workloads import Member


@dataclass(frozen=True, slots=True)
class Placement:
    """Which machines should be bought, and which of those there are get which pods."""

    new_nodes: Sequence[NewNode] = ()
    existing: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Move:
    """Machines that should go together, what comes before they do, and who goes where."""

    reason: Reason
    nodes: tuple[str, ...]
    replacements: tuple[NewNode, ...] = ()
    existing: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Side(Protocol):
    """Decides; everything else is the simulator's."""

    name: str
    nominates: bool
    """Whether waiting pods are told the node they were planned for."""

    largest_first: bool
    """Whether a drain evicts the largest pods first."""

    relook: float
    """How often it looks again while nothing changes, in seconds."""

    fades: float
    """For how many seconds after the last change a look may find something else than the one
    before.
    """

    def place(
        self, cluster: Cluster, waiting: Sequence[Member], placed: Mapping[str, str]
    ) -> Placement:
        """Find a place for pods that have none; `placed` ones are expected on a machine."""

    def look(self, cluster: Cluster) -> Sequence[Move]:
        """Say what should go now."""

    def confirm(self, cluster: Cluster, moves: Sequence[Move]) -> Sequence[Move]:
        """Return what of that still stands after the validation wait."""


@dataclass(slots=True)
class Joiner:
    """Ours, in process, as its reconcilers ask it."""

    settings: DisruptionSettings = field(default_factory=DisruptionSettings)
    name: str = "Joiner"
    nominates: bool = True
    largest_first: bool = True
    relook: float = 300.0
    fades: float = 3 * 3600.0
    """Savings are expected to last as long as workloads have run: two hours at most, which is more
    than five minutes more by and by.
    """

    _decision: Decision = field(default_factory=Decision)
    _gathering: Gathering = field(default_factory=lambda: Gathering(GATHERING))
    _begun: Mapping[str, datetime] = field(default_factory=dict)

    def place(
        self, cluster: Cluster, waiting: Sequence[Member], placed: Mapping[str, str]
    ) -> Placement:
        """Place the pods that have no place yet; the others count where they are expected."""
        members = {one.key: one for one in waiting}
        asked = [one.seen for one in waiting if one.key not in placed]
        snapshot = with_placed(cluster.snapshot(), _expected(members, placed))
        results = schedule(asked, snapshot=snapshot)
        return Placement(assigned(results.new_nodes, asked), results.existing_nodes)

    def look(self, cluster: Cluster) -> Sequence[Move]:
        """Look for empty machines, then for what takes thought."""
        problem = self._problem(cluster)
        empty = emptiness.commands(
            candidates.survey(problem).admitted, budgets=budgets_of(problem, Reason.EMPTY)
        )
        leaving = frozenset(name for one in empty for name in one.names)
        self._decision = decide(problem.without(leaving))
        if not any(one.reason is Reason.UNDERUTILIZED for one in self._decision.commands):
            self._gathering.end()
        elif self._gathering.left(problem) > timedelta(0):
            return [_move(one) for one in empty]
        return [_move(one) for one in (*empty, *self._decision.commands)]

    def confirm(self, cluster: Cluster, moves: Sequence[Move]) -> Sequence[Move]:
        """Confirm as the disruption loop does."""
        problem = self._problem(cluster)
        empty = emptiness.commands(
            [
                one
                for one in candidates.survey(problem).admitted
                if any(one.name in move.nodes for move in moves if move.reason is Reason.EMPTY)
            ],
            budgets=budgets_of(problem, Reason.EMPTY),
        )
        standing = [*empty]
        if any(one.reason is Reason.UNDERUTILIZED for one in moves):
            leaving = frozenset(name for one in empty for name in one.names)
            standing += confirm(problem.without(leaving), self._decision).commands
        return [_move(one) for one in standing]

    def _problem(self, cluster: Cluster) -> DisruptionProblem:
        snapshot, waiting = cluster.snapshot(), [one.seen for one in cluster.waiting.values()]
        self._begun = beginnings((*snapshot.pods, *waiting), self._begun)
        return DisruptionProblem(
            snapshot=snapshot,
            node_pools=cluster.node_pools,
            now=moment(cluster.now),
            pending=tuple(waiting),
            settings=self.settings,
            begun=self._begun,
        )


def _expected(members: Mapping[str, Member], placed: Mapping[str, str]) -> list[Pod]:
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
    """Karpenter's own engine and methods, asked over a pipe."""

    process: engines.Karpenter
    name: str = "Karpenter"
    nominates: bool = False
    largest_first: bool = False
    relook: float = 300.0
    fades: float = 0.0

    def place(
        self, cluster: Cluster, waiting: Sequence[Member], placed: Mapping[str, str]
    ) -> Placement:
        """Place all pods that wait: Karpenter finds those expected somewhere a place again."""
        return self._placement(cluster.world(waiting=waiting), cluster.now)

    def look(self, cluster: Cluster) -> Sequence[Move]:
        """Ask its methods in their order."""
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
        """Validate as Karpenter does: of empty nodes those that still are, and of others only
        what the engine would answer with as many new nodes, of the types that were chosen.
        """
        standing = []
        for move in moves:
            machines = [one for name in move.nodes if (one := cluster.machines.get(name))]
            if move.reason is Reason.EMPTY:
                empty = tuple(one.name for one in machines if one.open and not one.pods)
                if empty:
                    standing.append(replace(move, nodes=empty))
            elif self._stands(cluster, move, machines):
                standing.append(move)
        return standing

    def _stands(self, cluster: Cluster, move: Move, machines: Sequence[Machine]) -> bool:
        untouched = [
            one
            for one in machines
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
        moving = [pod for one in machines for pod in one.pods.values() if not pod.leaving]
        world = cluster.world(
            waiting=[*cluster.waiting.values(), *moving], without=[one.name for one in machines]
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
