"""Score how far an answer grants the pods' preferences: the sum of the weights that are met.

If an answer allows several instance types or zones for a node, the score assumes the cheapest. A
preferred node affinity counts if the node meets it, a preferred (anti-)affinity to pods if the
final placement does. A topology spread with `ScheduleAnyway` counts 1 if the final placement
satisfies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.oracle.binding import Lookup
from tests.oracle.nodeinfos import NodeInfo
from tests.oracle.replay import Replay
from tests.oracle.rules import PREFERRED, matches

Object = Mapping[str, Any]


def score(world: Object, answer: Object) -> float:
    """Return the sum of the weights of the preferences that an answer grants."""
    placed = Replay(world, answer, world["instanceTypes"]).cheapest()
    lookup = Lookup(world)
    return sum(_granted_weight(pod, node_info, placed, lookup) for pod, node_info in placed)


def _granted_weight(
    pod: Object, node_info: NodeInfo, placed: Sequence[tuple[Object, NodeInfo]], lookup: Lookup
) -> float:
    affinity = pod["spec"].get("affinity") or {}
    total = 0.0
    for preferred in affinity.get("nodeAffinity", {}).get(PREFERRED, []):
        if matches(node_info.labels, preferred["preference"].get("matchExpressions") or []):
            total += preferred["weight"]
    for kind, wanted in (("podAffinity", True), ("podAntiAffinity", False)):
        for preferred in affinity.get(kind, {}).get(PREFERRED, []):
            term = preferred["podAffinityTerm"]
            value = node_info.labels.get(term["topologyKey"])
            there = value is not None and any(
                other is not pod
                and place.labels.get(term["topologyKey"]) == value
                and lookup.term(pod, term, other)
                for other, place in placed
            )
            total += preferred["weight"] * (there is wanted)
    for preferred in pod["spec"].get("topologySpreadConstraints") or []:
        if preferred["whenUnsatisfiable"] == "ScheduleAnyway":
            total += _spread(pod, preferred, node_info, placed, lookup)
    return total


def _spread(
    pod: Object,
    constraint: Object,
    node_info: NodeInfo,
    placed: Sequence[tuple[Object, NodeInfo]],
    lookup: Lookup,
) -> bool:
    key = constraint["topologyKey"]
    counts: dict[str | None, int] = {place.labels.get(key): 0 for _, place in placed}
    for other, place in placed:
        counts[place.labels.get(key)] += lookup.constraint(pod, constraint, other)
    skew = counts[node_info.labels.get(key)] - min(counts.values())
    return skew <= int(constraint["maxSkew"])
