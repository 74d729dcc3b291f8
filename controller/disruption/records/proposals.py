"""Converts commands to the spec of a Disruption, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from controller.apis.karpenter.disruption import (
    DisruptionSpec,
    MovedWorkload,
    PlannedMove,
    PlannedReplacement,
)
from controller.apis.kubernetes.pods import Pod
from controller.disruption import candidates
from controller.disruption.candidates import Candidates
from controller.disruption.commands import Candidate, Command, Reason
from controller.disruption.gangs import Units, units_of
from controller.disruption.methods import repair
from controller.disruption.modes import Mode
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.results import NewNode

DIGITS = 4
"""Decimal places of amounts in $/h: a hundredth of a cent."""


def spec_of(command: Command, mode: Mode) -> DisruptionSpec:
    """Return the spec of the Disruption that records a command."""
    ordered = sorted(command.candidates, key=lambda candidate: candidate.name)
    return DisruptionSpec(
        reason=command.reason.value,
        mode=mode.value,
        nodes=[candidate.name for candidate in ordered],
        node_claims=[candidate.claim.metadata.name for candidate in ordered],
        node_pools=sorted({candidate.pool for candidate in ordered}),
        new_nodes=[
            PlannedReplacement(
                node_pool=new.node_pool,
                instance_types=list(new.instance_types),
                price=round(new.price, DIGITS),
                pods=list(new.pods),
            )
            for new in command.replacements
        ],
        moves=[
            PlannedMove(node=node, pods=list(keys)) for node, keys in sorted(command.moves.items())
        ],
        workloads=workloads(pod for candidate in ordered for pod in candidate.moving),
        price=round(sum(candidate.price for candidate in ordered), DIGITS),
        saving=round(command.saving, DIGITS),
        plan_saving=round(command.whole.saving, DIGITS),
        evictions=command.evictions,
        why=command.why,
    )


def workloads(pods: Iterable[Pod]) -> list[MovedWorkload]:
    """Return the workloads of these pods, with the number of pods of each."""
    counted = Counter(map(_workload, pods))
    return [
        MovedWorkload(kind=kind, namespace=namespace, name=name, uid=uid, pods=count)
        for (kind, namespace, name, uid), count in sorted(counted.items())
    ]


def _workload(pod: Pod) -> tuple[str, str, str, str]:
    own = pod.metadata
    owner = next((owner for owner in own.owner_references if owner.controller), None)
    if owner is None:
        return "Pod", own.namespace, own.name, ""
    return owner.kind, own.namespace, owner.name, owner.uid


def read_back(spec: DisruptionSpec, problem: DisruptionProblem) -> Command | str:
    """Return the command of a spec with its nodes as they are now, or why it is no longer valid."""
    reason = _reason(spec)
    if reason is None:
        return f"spec.reason {spec.reason} is unknown"
    survey = _survey(problem, reason)
    here = {candidate.name: candidate for candidate in survey.admitted}
    for node, claim in _node_claim_pairs(spec):
        if node not in here or here[node].claim.metadata.name != claim:
            return f"node {node}: {survey.blocked.get(node, 'it is deleted or being deleted')}"
    command = _command(spec, reason, [here[name] for name in spec.nodes], problem)
    return replace(command, gangs=_gangs(spec, survey.units))


def _gangs(spec: DisruptionSpec, units: Units) -> tuple[str, ...]:
    """Return the gangs that run on the nodes of a spec, sorted."""
    of_nodes = [units[name] for name in spec.nodes if name in units]
    return tuple(sorted({gang for unit in of_nodes for gang in unit.gangs}))


def _survey(problem: DisruptionProblem, reason: Reason) -> Candidates:
    """Return the candidates for a reason, and why other nodes are blocked."""
    if reason is Reason.UNHEALTHY:
        found = repair.unhealthy(problem)
        return Candidates(tuple(one for one, _ in found.due), {**found.blocked, **found.suspended})
    return candidates.survey(problem, eventual=reason is Reason.DRIFTED)


def rest_of(spec: DisruptionSpec, problem: DisruptionProblem) -> Command | None:
    """Return the rest of a command that an earlier leader began, or None if there is none.

    The rest is the nodes that are marked for disruption and not yet being deleted. The command is
    not validated again, because its replacements exist. If gangs run on its nodes and not all nodes
    were marked, nothing of it is resumed. `Command.gangs` is set only if all nodes still exist:
    once one is gone, its gangs restart anyway.
    """
    reason = _reason(spec)
    here = {candidate.name: candidate for _, candidate in candidates.registered_nodes(problem)}
    present = [
        here[node]
        for node, claim in _node_claim_pairs(spec)
        if node in here and here[node].claim.metadata.name == claim
    ]
    left = [candidate for candidate in present if candidate.is_marked]
    gangs = _gangs(spec, units_of(problem)) if len(present) == len(spec.nodes) else ()
    if reason is None or not left or (gangs and len(left) < len(present)):
        return None
    return replace(_command(spec, reason, left, problem), gangs=gangs)


def _reason(spec: DisruptionSpec) -> Reason | None:
    return next((known for known in Reason if known.value == spec.reason), None)


def _node_claim_pairs(spec: DisruptionSpec) -> Iterable[tuple[str, str]]:
    return zip(spec.nodes, spec.node_claims, strict=False)


def _command(
    spec: DisruptionSpec, reason: Reason, nodes: Iterable[Candidate], problem: DisruptionProblem
) -> Command:
    command = Command(
        reason,
        tuple(nodes),
        replacements=tuple(
            NewNode(
                node_pool=new.node_pool,
                instance_types=tuple(new.instance_types),
                requirements=(),
                price=new.price,
                pods=tuple(new.pods),
                requests={},
            )
            for new in spec.new_nodes
        ),
        moves={move.node: tuple(move.pods) for move in spec.moves},
        saving=spec.saving,
        evictions=spec.evictions,
        why=spec.why,
    )
    return repair.with_cause(command, problem) if reason is Reason.UNHEALTHY else command
