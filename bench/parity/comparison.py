"""Compare Joiner's answer with Karpenter's: what counts as a failure, and what as a difference.

Joiner fails if its answer breaks a rule of Kubernetes, or leaves a pod unplaced that Karpenter
places. If both place the same pods, Joiner also fails if its answer costs more, unless it grants
more of their preferences or uses NodePools of higher weight, or if it costs the same and grants
fewer. Finally, either answer fails if it costs less than the proven lower bound, which disproves
the bound.

Pods that are equal except for their names are interchangeable, so only the number of unplaced ones
counts. Karpenter is a reference only where it keeps the rules itself. If the oracle finds a fault
in Karpenter's answer, the world is compared no further and the fault is listed. If Karpenter only
violates the order of NodePools by weight, it may cost less: that is a difference, not a failure.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.parity import grantedpreferences
from bench.parity.overlaying import with_overlays
from controller.offline.jsonresults import results_content
from controller.offline.world import load
from controller.scheduling.scheduler import least_cost, schedule
from controller.scheduling.settings import from_names
from tests.oracle.poolorder import POOL_ORDER
from tests.oracle.replay import Finding, findings
from tests.oracle.rules import key_of

World = Mapping[str, Any]
Answer = Mapping[str, Any]

CENT = 1e-6
"""Prices nearer than this, in $/h, are equal: sums of floats depend on their order."""

SHARED = frozenset({"limits", "several_affinity_terms"})
"""Features in which pods of different shapes compete for what is too scarce for all: the limits of
NodePools, and the nodes of the pods that match an affinity."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one world. `cost` is that of Joiner's answer; costs are in $/h."""

    failures: tuple[str, ...]
    differences: tuple[str, ...]
    faults_of_karpenter: tuple[Finding, ...]
    cost: float
    cost_of_karpenter: float


def ours(world: World) -> dict[str, Any]:
    """Return Joiner's answer, computed in this process."""
    read = load(world)
    return results_content(
        schedule(read.pods, snapshot=read.snapshot, settings=from_names(read.settings))
    )


def solve_and_compare(world: World, their: Answer, *, features: Sequence[str] = ()) -> Verdict:
    """Solve a world with Joiner and compare; an exception of the engine counts as a failure."""
    try:
        return compare(world, ours(world), their, features=features)
    except Exception as exc:
        where = traceback.extract_tb(exc.__traceback__)[-1]
        text = f"broken down: {type(exc).__name__}: {exc} in {where.name}"
        return Verdict((text,), (), (), 0.0, 0.0)


def compare(world: World, our: Answer, their: Answer, *, features: Sequence[str] = ()) -> Verdict:
    """Compare two answers to a world that lists its instance types.

    `features` are those from which the world was generated; empty for a recorded world.
    """
    types = with_overlays(world)
    failures = [f"rule broken: {finding}" for finding in findings(world, our, types)]
    differences: list[str] = []
    if "error" in their:
        failures += _disproofs(world, {"ours": our})
        differences.append(f"Karpenter gives no answer: {their['error']}")
        return Verdict(tuple(failures), tuple(differences), (), our["cost"], 0.0)
    theirs = findings(world, their, types)
    # Pods that Karpenter places on existing nodes are placed regardless of the NodePool's weight.
    faults = [finding for finding in theirs if finding.rule != POOL_ORDER]
    is_ordered = len(faults) == len(theirs)
    failures += _disproofs(world, {"ours": our} | ({"Karpenter's": their} if not faults else {}))
    if not faults:
        scarce = bool(SHARED & set(features))
        failures += _left_over(world, our, their, scarce=scarce)
        if not failures:
            dear, why = _dearer(world, our, their)
            failures += dear if is_ordered else []
            differences += (
                why
                if is_ordered
                else [f"{difference}, out of order" for difference in (*dear, *why)]
            )
    return Verdict(tuple(failures), tuple(differences), tuple(theirs), our["cost"], their["cost"])


def _disproofs(world: World, answers: Mapping[str, Answer]) -> list[str]:
    """Return the answers that cost less than the proven bound for the pods they place."""
    read = load(world)
    bounds: dict[frozenset[str], float] = {}
    disproofs = []
    for whose, given in answers.items():
        parts = [node["pods"] for node in given["newNodes"]] + list(given["existingNodes"].values())
        placed = frozenset(key for part in parts for key in part)
        if placed not in bounds:
            bounds[placed] = least_cost(
                [pod for pod in read.pods if pod.key in placed],
                snapshot=read.snapshot,
                settings=from_names(read.settings),
            )
        if given["cost"] < bounds[placed] - CENT:
            disproofs.append(
                f"bound disproved: {bounds[placed]:.4f} $/h, {whose} {given['cost']:.4f}"
            )
    return disproofs


def _left_over(world: World, our: Answer, their: Answer, *, scarce: bool) -> list[str]:
    behind, behind_there = _unplaced_kinds(world, our), _unplaced_kinds(world, their)
    if scarce:
        excess = behind.total() - behind_there.total()
        return [f"left over: {excess} more than Karpenter leaves"] if excess > 0 else []
    kinds = _kinds(world)
    left = []
    for kind, number in sorted((behind - behind_there).items()):
        keys = [key for key in our["unschedulable"] if kinds[key] == kind]
        causes = our["unschedulable"][keys[0]]
        left.append(f"left over: {number} like {keys[0]}, which Karpenter places: {causes}")
    return left


def _dearer(world: World, our: Answer, their: Answer) -> tuple[list[str], list[str]]:
    """Return failures and differences in cost and in preferences granted.

    There are none if the answers do not place the same pods.
    """
    if _unplaced_kinds(world, our) != _unplaced_kinds(world, their):
        return [], []
    text = f"{our['cost']:.4f} $/h, Karpenter {their['cost']:.4f}"
    mine, theirs = grantedpreferences.score(world, our), grantedpreferences.score(world, their)
    granted = f"preferences granted {mine:.0f}, Karpenter {theirs:.0f}"
    if our["cost"] > their["cost"] + CENT:
        if mine > theirs:
            return [], [f"dearer: {text}, {granted}"]
        if _by_weight(world, our) > _by_weight(world, their):
            return [], [f"dearer: {text}, more pods in heavier pools"]
        return [f"dearer: {text}"], []
    ignored = world.get("settings", {}).get("PREFERENCE_POLICY") == "Ignore"
    if mine < theirs and not ignored:
        if our["cost"] < their["cost"] - CENT:
            return [], [f"fewer wishes: {granted}, but cheaper: {text}"]
        return [f"fewer wishes: {granted}, at the same price"], []
    return [], []


def _by_weight(world: World, answer: Answer) -> list[int]:
    """Return how many pods go to new nodes of each NodePool weight, the greatest weight first."""
    weights = {
        pool["metadata"]["name"]: pool["spec"].get("weight", 0) for pool in world["nodePools"]
    }
    return [
        sum(len(n["pods"]) for n in answer["newNodes"] if weights[n["nodePool"]] == weight)
        for weight in sorted(set(weights.values()), reverse=True)
    ]


def _kinds(world: World) -> dict[str, str]:
    kinds = {}
    for pod in world["pods"]:
        metadata = pod["metadata"]
        labels, namespace = metadata.get("labels"), metadata.get("namespace")
        kinds[key_of(pod)] = json.dumps([namespace, labels, pod["spec"]], sort_keys=True)
    return kinds


def _unplaced_kinds(world: World, answer: Answer) -> Counter[str]:
    kinds = _kinds(world)
    return Counter(kinds[key] for key in answer["unschedulable"])
