"""Our answer beside Karpenter's: what counts as a failure, and what as a difference.

Failures: our answer breaks a rule of Kubernetes; a pod that Karpenter places is left over
by us; the same pods cost more with us, unless more of what they prefer is granted; they
cost the same and less of it is granted; either answer costs less than no answer can, as we
prove.

Pods that are equal but for their names are interchangeable: which of them stays behind is
nobody's concern, only how many. Karpenter is a measure only where it keeps the rules
itself, so a world in which the oracle finds fault with its answer is compared no
further; the fault is listed instead. Where it only goes past the order of pools by weight,
what it pays less for that is a difference.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.offline.answers import answer
from controller.offline.world import load
from controller.scheduling.scheduler import least_cost, schedule
from controller.scheduling.settings import from_names
from tests.oracle.poolorder import POOL_ORDER
from tests.oracle.replay import Finding, findings
from tests.oracle.rules import key_of
from tests.parity import grantedpreferences
from tests.parity.overlaying import overlaid

World = Mapping[str, Any]
Answer = Mapping[str, Any]

CENT = 1e-6
"""Prices nearer than this, in $/h, are equal: sums of floats differ by their order."""

SHARED = frozenset({"limits"})
"""Features that make pods of different shapes compete for what is too little for all."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one world."""

    failures: tuple[str, ...]
    differences: tuple[str, ...]
    faults_of_karpenter: tuple[Finding, ...]
    cost: float
    cost_of_karpenter: float


def ours(world: World) -> dict[str, Any]:
    """Return our answer, in process."""
    read = load(world)
    return answer(schedule(read.pods, snapshot=read.snapshot, settings=from_names(read.settings)))


def asked(world: World, their: Answer, *, features: Sequence[str] = ()) -> Verdict:
    """Ask our engine and compare; an engine that breaks down is a failure like another."""
    try:
        return judged(world, ours(world), their, features=features)
    except Exception as exc:
        where = traceback.extract_tb(exc.__traceback__)[-1]
        text = f"broken down: {type(exc).__name__}: {exc} in {where.name}"
        return Verdict((text,), (), (), 0.0, 0.0)


def judged(world: World, our: Answer, their: Answer, *, features: Sequence[str] = ()) -> Verdict:
    """Compare two answers to a world whose types are written out."""
    types = overlaid(world)
    failures = [f"rule broken: {finding}" for finding in findings(world, our, types)]
    differences: list[str] = []
    if "error" in their:
        failures += _disproved(world, {"ours": our})
        differences.append(f"Karpenter gives no answer: {their['error']}")
        return Verdict(tuple(failures), tuple(differences), (), our["cost"], 0.0)
    theirs = findings(world, their, types)
    # Whom a node of Karpenter's takes in that is there, it takes whatever its pool.
    faults = [finding for finding in theirs if finding.rule != POOL_ORDER]
    is_ordered = len(faults) == len(theirs)
    failures += _disproved(world, {"ours": our} | ({"Karpenter's": their} if not faults else {}))
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


def _disproved(world: World, answers: Mapping[str, Answer]) -> list[str]:
    """Say which answers cost less than is proven of all that place the same pods."""
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
    behind, behind_there = _unplaced(world, our), _unplaced(world, their)
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
    """Return failures and differences in what the same pods cost, and are granted for it."""
    if _unplaced(world, our) != _unplaced(world, their):
        return [], []
    text = f"{our['cost']:.4f} $/h, Karpenter {their['cost']:.4f}"
    mine, theirs = grantedpreferences.granted(world, our), grantedpreferences.granted(world, their)
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
    """Return how many pods go to new nodes of each weight, greatest first."""
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


def _unplaced(world: World, answer: Answer) -> Counter[str]:
    kinds = _kinds(world)
    return Counter(kinds[key] for key in answer["unschedulable"])
