"""The decisions about a cluster, one evaluation after the other, and the cluster after them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.disruption import candidates
from controller.disruption.advice.explanation import why_not_evaluated
from controller.disruption.applying import apply_commands
from controller.disruption.commands import Command, Decision
from controller.disruption.methods.consolidation.method import LATER
from controller.disruption.methods.order import decide
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.buffers import hosts
from controller.scheduling.catalog.offerings import CatalogCache
from controller.scheduling.pods.classes import PodSignatures
from controller.scheduling.scheduler import schedule
from controller.state.nodes import StateNode


@dataclass(slots=True, kw_only=True)
class Course:
    """The decisions about a cluster, and the cluster after them."""

    problem: DisruptionProblem
    cost_before: float
    """The cost of all nodes before the first command, in $/h."""

    commands: list[tuple[Command, tuple[StateNode, ...]]] = field(default_factory=list)
    """The commands that were executed, each with its new nodes."""

    signatures: PodSignatures = field(default_factory=PodSignatures)
    """Cache of data about pods, from one evaluation to the next."""

    catalogs: CatalogCache = field(default_factory=CatalogCache)
    """Cache of the catalog, from one evaluation to the next."""

    blocked: Mapping[str, str] = field(default_factory=dict)
    """Why the other nodes stay, by node name."""

    @property
    def cost_after(self) -> float:
        """The cost of all nodes after every command was executed, in $/h."""
        return self.cost_before - sum(command.saving for command, _ in self.commands)

    def decide(self, expired: Callable[[], bool]) -> Decision:
        """Return the decision about the cluster as it is now."""
        return decide(
            self.problem,
            expired=expired,
            signatures=self.signatures,
            catalog=self.catalogs.of(self.problem.snapshot),
        )

    def execute(self, decision: Decision) -> None:
        """Execute the commands of a decision: update `problem`, `commands` and `blocked`."""
        self.blocked = _explanations(self.problem, decision)
        _carry_out(self, decision.commands)


def with_buffered_nodes(problem: DisruptionProblem) -> DisruptionProblem:
    """Return the problem with the nodes marked that reserve capacity for capacity buffers.

    In a live cluster, provisioning marks them.
    """
    virtual = [pod for pod in problem.pending if labels.BUFFER_POD in pod.metadata.annotations]
    if not virtual:
        return problem
    snapshot = problem.snapshot
    results = schedule(problem.pending, snapshot=snapshot, settings=problem.scheduling)
    names = hosts(replace(results, new_nodes=()), (), virtual)
    nodes = tuple(replace(node, buffered=node.name in names) for node in snapshot.nodes)
    return replace(problem, snapshot=replace(snapshot, nodes=nodes))


def _explanations(problem: DisruptionProblem, decision: Decision) -> Mapping[str, str]:
    """Return why each of Joiner's nodes stays, including nodes that were not evaluated."""
    pods: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in problem.snapshot.pods:
        pods[pod.spec.node_name].append(pod)
    going = {name for command in decision.commands for name in command.names}
    asked = candidates.initialized_nodes(problem)
    rest = {
        state.name: LATER
        if state.name in asked
        else why_not_evaluated(state, pods[state.name], problem)
        for state in problem.snapshot.nodes
        if state.managed and state.node is not None and state.name not in going
    }
    return {**rest, **decision.blocked}


def _carry_out(course: Course, commands: Sequence[Command]) -> None:
    """Execute commands in the course's cluster.

    Replacements of static NodePools are for no particular pods, so their commands are executed
    last, one by one.
    """
    taken = {node.name for node in course.problem.snapshot.nodes}
    first = sum(len(made) for _, made in course.commands)
    free = (name for n in count(first + 1) if (name := f"new-{n:05d}") not in taken)
    named = [(command, list(islice(free, len(command.replacements)))) for command in commands]
    unassigned = [one for one in named if _is_for_no_pod(one[0])]
    together = [one for one in named if not _is_for_no_pod(one[0])]
    later = {name for command, _ in unassigned for name in command.names}
    problem = apply_commands(course.problem, together).without(later)
    one_by_one: list[tuple[Command, list[str]]] = []
    for command, names in unassigned:
        problem = apply_commands(problem, [(command, names)])
        one_by_one.append((_with_outcome(command, names, problem), names))
    course.problem = with_buffered_nodes(problem)
    there = {node.name: node for node in course.problem.snapshot.nodes}
    course.commands += [
        (command, tuple(there[name] for name in names)) for command, names in together + one_by_one
    ]


def _is_for_no_pod(command: Command) -> bool:
    """Return whether the replacements are for no particular pods, as in a static NodePool."""
    return any(not new.instance_types for new in command.replacements)


def _with_outcome(command: Command, names: Sequence[str], after: DisruptionProblem) -> Command:
    """Return the command of a static NodePool with its cost and the destinations of its pods.

    The cost of its replacements and the destinations are those in the cluster after the command.
    """
    made = {node.name: node for node in after.snapshot.nodes if node.name in names}
    prices = candidates.prices(after)
    at: dict[str, list[str]] = {}
    moved = {pod.key for candidate in command.candidates for pod in candidate.moving}
    for pod in after.snapshot.pods:
        if pod.key in moved:
            at.setdefault(pod.spec.node_name, []).append(pod.key)
    replacements = tuple(
        replace(new, price=prices(made[name]), pods=tuple(at.pop(name, ())))
        for name, new in zip(names, command.replacements, strict=True)
    )
    price = sum(candidate.price for candidate in command.candidates)
    return replace(
        command,
        replacements=replacements,
        moves={name: tuple(keys) for name, keys in at.items()},
        saving=price - sum(new.price for new in replacements),
    )
