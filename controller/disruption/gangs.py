"""Which nodes are disrupted together because gangs run on them.

A gang that loses a pod usually restarts, so Joiner moves all of its pods or none. Nodes that run
pods of one gang are a unit. Gangs that share a node are in the same unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.apis.kubernetes.pods import Pod
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Candidate
from controller.disruption.pods import is_drainable
from controller.disruption.problem import DisruptionProblem
from controller.state.gangs import GangReader, gang_of

MOST_NAMED = 3
"""How many gangs a message names."""


@dataclass(frozen=True, slots=True)
class GangUnit:
    """Nodes that are disrupted together, because they run pods of these gangs.

    `gangs` (`namespace/name`) and `nodes` (all nodes that run a pod of these gangs, also nodes that
    Joiner does not manage) are sorted. `pods` are the pods of these gangs on the nodes.
    """

    gangs: tuple[str, ...]
    nodes: tuple[str, ...]
    pods: tuple[Pod, ...]

    @property
    def is_alone(self) -> bool:
        """Whether the unit has a single node."""
        return len(self.nodes) == 1

    @property
    def named(self) -> str:
        """The gangs in words, such as "gang ml/train"."""
        names = ", ".join(self.gangs[:MOST_NAMED]) + (", …" if len(self.gangs) > MOST_NAMED else "")
        return f"gang {names}" if len(self.gangs) == 1 else f"gangs {names}"

    @property
    def together(self) -> str:
        """The number of nodes on which the gangs run, as a sentence."""
        runs = "runs" if len(self.gangs) == 1 else "run"
        return f"{self.named} {runs} on {len(self.nodes)} nodes, which are disrupted together"

    def elsewhere(self, name: str, why: str) -> str:
        """Return why no node of the unit is disrupted: node `name` stays because of `why`."""
        return f"{_sentence(self.together)}; node {name}: {why}"

    def evictions(self, why: str) -> str:
        """Return why no node of the unit is disrupted: `why` prevents evicting its pods."""
        return f"The pods of {self.named} are evicted together, but {why}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


Units = Mapping[str, GangUnit]
"""The units by the names of their nodes."""


def units_of(problem: DisruptionProblem) -> Units:
    """Return the unit of each node that runs a gang's pod; empty without `GANG_SCHEDULING`.

    Cost: O(pods).
    """
    if not problem.scheduling.gangs:
        return {}
    reader = GangReader(problem.snapshot.pod_groups)
    nodes_of: dict[str, set[str]] = {}
    gangs_on: dict[str, set[str]] = {}
    members: dict[str, list[Pod]] = {}
    for pod in problem.snapshot.pods:
        node = pod.spec.node_name
        if node and (gang := reader.gang_of(pod)) and is_drainable(pod, problem.now):
            nodes_of.setdefault(gang, set()).add(node)
            gangs_on.setdefault(node, set()).add(gang)
            members.setdefault(gang, []).append(pod)
    units: dict[str, GangUnit] = {}
    for first in gangs_on:
        if first in units:
            continue
        nodes, gangs, left = {first}, set[str](), [first]
        while left:
            for gang in gangs_on[left.pop()] - gangs:
                gangs.add(gang)
                left += nodes_of[gang] - nodes
                nodes |= nodes_of[gang]
        pods = tuple(pod for gang in sorted(gangs) for pod in members[gang])
        unit = GangUnit(tuple(sorted(gangs)), tuple(sorted(nodes)), pods)
        units |= dict.fromkeys(nodes, unit)
    return units


def restarting_pods(candidate: Candidate, problem: DisruptionProblem) -> tuple[Pod, ...]:
    """Return the pods on other nodes that restart if a node with pods of their gang is removed.

    A gang restarts if too few of its pods stay. Cost: O(pods) if the node runs pods of a gang.
    """
    if not problem.scheduling.gangs:
        return ()
    reader = GangReader(problem.snapshot.pod_groups)
    lost = [pod for pod in candidate.pods if is_drainable(pod, problem.now)]
    members: dict[str, list[Pod]] = {name: [] for pod in lost if (name := reader.gang_of(pod))}
    if not members:
        return ()
    for pod in problem.snapshot.pods:
        if pod.spec.node_name and (name := gang_of(pod)) in members:
            members[name].append(pod)
    keys = {pod.key for pod in candidate.pods}
    return tuple(
        pod for name, pods in members.items() for pod in reader.restarting_pods(name, pods, keys)
    )


def kept_by_budgets(
    members: Sequence[Candidate], unit: GangUnit | None, budgets: Budgets
) -> str | None:
    """Return why the budgets do not allow the disruption of these nodes at once, or None.

    `unit` is the unit that the nodes form, or None if it is a single node without a gang.
    """
    admitted = budgets.admissible(members)
    short = next((one for one in members if one.name not in admitted), None)
    if short is None:
        return None
    if unit is None or unit.is_alone:
        return budgets.held_back(short.pool)
    allowed = sum(one.pool == short.pool for one in members if one.name in admitted)
    needed = sum(one.pool == short.pool for one in members)
    return (
        f"{_sentence(unit.together)}: {needed} of them are in NodePool {short.pool}, "
        f"whose budgets allow {allowed} now"
    )
