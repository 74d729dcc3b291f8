"""Check whether an answer uses NodePools in the order of their weights.

A new node belongs to the heaviest NodePool that can launch a node for a pod within its limits, at
any price. On a node of a lighter NodePool, some pods must need it because no heavier NodePool can
launch a node for them. Other pods may join those if the node costs no more for it.

The check reports only what is certain. It assumes that some pods are where they must be: pods with
constraints on other pods, or that other pods' constraints select; pods that claim devices or have
preferred affinity; and pods for which a heavier NodePool would grant fewer node preferences.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tests.oracle.binding import hard_spreads, is_choosy, terms_of
from tests.oracle.nodeinfos import INSTANCE_TYPE, Choice, NodeInfo
from tests.oracle.rules import (
    PREFERRED,
    Amounts,
    Object,
    amounts,
    clash,
    matches,
    node_selected,
    plus,
    ports,
    tolerates,
)

if TYPE_CHECKING:
    from tests.oracle.replay import Replay

POOL_ORDER = "order of pools"
RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"


class PoolOrder:
    """The order of NodePools in an answer.

    `drawn` is the usage of each NodePool that counts towards its limits.
    """

    def __init__(self, replay: Replay, drawn: Mapping[str, Amounts]) -> None:
        """Take the answer of a replay."""
        self._trial, self._drawn = replay, drawn
        everyone = [pod for pod in replay.world["pods"] if is_choosy(pod)]
        self._choosy = [*{_character(pod): pod for pod in everyone}.values()]
        self._may_move: dict[tuple[str, int], bool] = {}
        self._launchable: dict[str, Iterator[NodeInfo]] = {}

    def strays(self, choices: Sequence[Sequence[Choice]]) -> Iterator[tuple[int, str]]:
        """Yield the new nodes of a wrong NodePool or at too high a price, and why."""
        weights = {name: _weight(pool) for name, pool in self._trial.pools.items()}
        for index, (node, open_) in enumerate(
            zip(self._trial.answer["newNodes"], choices, strict=True)
        ):
            weight = weights[node["nodePool"]]
            heavier = [name for name in weights if weights[name] > weight]
            if not heavier or RESERVATION in open_[0].offering["requirements"]:
                continue
            here = self._trial.launched(node, "here", open_[0], random.Random(0))
            pods = self._trial.named(node["pods"])
            stay = [pod for pod in pods if not self._may_leave(pod, here, heavier)]
            if not stay:
                yield index, f"a pool of {' or '.join(heavier)} could take any of its pods"
            elif len(stay) < len(pods) and (less := self._alone(node, open_[0], stay)):
                text = f"{open_[0].offering['price']} $/h with pods that a heavier pool could take"
                yield index, f"{text}, {less} without"

    def _may_leave(self, pod: Object, here: NodeInfo, heavier: Sequence[str]) -> bool:
        """Whether one of these NodePools could launch a node for the pod.

        The node comes on top of all others.
        """
        if self._minds(pod):
            return False
        least = self._liking(pod, here)
        return any(self._could_take(name, pod, least) for name in heavier)

    def _minds(self, pod: Object) -> bool:
        """Whether the pod or other pods have constraints that depend on where the pod is."""
        spec, lookup = pod["spec"], self._trial.lookup
        affinity = spec.get("affinity") or {}
        prefers = any(affinity.get(kind, {}).get(PREFERRED) for kind in PODS) or len(
            spec.get("topologySpreadConstraints") or []
        )
        if is_choosy(pod) or prefers or spec.get("resourceClaims"):
            return True
        return any(
            any(lookup.term(choosy, term, pod) for kind in PODS for term in terms_of(choosy, kind))
            or any(lookup.constraint(choosy, spread, pod) for spread in hard_spreads(choosy))
            for choosy in self._choosy
        )

    def _liking(self, pod: Object, node_info: NodeInfo) -> int:
        """Return the sum of the weights of the pod's node preferences that a node meets."""
        if self._trial.world.get("settings", {}).get("PREFERENCE_POLICY") == "Ignore":
            return 0
        preferences = (pod["spec"].get("affinity") or {}).get("nodeAffinity", {}).get(PREFERRED, [])
        terms = [
            (term["weight"], term["preference"].get("matchExpressions")) for term in preferences
        ]
        return sum(weight for weight, term in terms if matches(node_info.labels, term or []))

    def _could_take(self, name: str, pod: Object, least: int) -> bool:
        """Whether a NodePool could now launch a node for a pod.

        The node must grant at least this much of the pod's preferences.
        """
        known = (f"{name} {_character(pod)}", least)
        if known not in self._may_move:
            self._may_move[known] = any(
                self._liking(pod, node_info) >= least and self._lets_in(node_info, [pod])
                for node_info in self._nodes(name)
            )
        return self._may_move[known]

    def _nodes(self, name: str) -> Iterator[NodeInfo]:
        """Yield the nodes that a NodePool could still launch, each of them made once."""
        if name not in self._launchable:
            (self._launchable[name],) = itertools.tee(self._made_nodes(name), 1)
        return copy.copy(self._launchable[name])  # starts with the first node again

    def _made_nodes(self, name: str) -> Iterator[NodeInfo]:
        """Make the nodes that a NodePool could still launch, with their daemons."""
        for node_info in self._trial.launchable(name, self._drawn, random.Random(0)):
            self._trial.with_daemons(node_info)
            yield node_info

    def _lets_in(self, node_info: NodeInfo, pods: Sequence[Object]) -> bool:
        """Whether pods without constraints on other pods fit on a node together.

        Soft taints count as well.
        """
        taints = [
            {**taint, "effect": "NoSchedule"} if taint["effect"] == "PreferNoSchedule" else taint
            for taint in node_info.taints
        ]
        asked = plus(node_info.daemons, *(self._trial.requests(pod) for pod in pods))
        return all(
            value <= node_info.allocatable.get(key, 0) for key, value in asked.items()
        ) and all(
            node_selected(pod, node_info.labels, node_info.name)
            and tolerates(pod, taints)
            and self._trial.volumes.reachable(pod, node_info)
            and not clash(ports(pod), node_info.daemon_ports)
            for pod in pods
        )

    def _alone(self, node: Object, choice: Choice, stay: Sequence[Object]) -> float | None:
        """Return the price of a cheaper node of the NodePool for these pods alone, or None.

        The node is in the same zone.
        """
        pool = self._trial.pools[node["nodePool"]]
        wanted = pool["spec"]["template"]["spec"].get("requirements") or []
        if any(term.get("minValues") for term in wanted):
            return None
        # The cloud sets the labels of the instance type and zone; the rest are as planned.
        given = {term["key"] for term in choice.kind["requirements"]} | {
            *choice.offering["requirements"],
            INSTANCE_TYPE,
        }
        kept = [term for term in node["requirements"] if term["key"] not in given]
        free = {**node, "requirements": [*wanted, *kept]}
        limits, drawn = amounts(pool["spec"].get("limits")), amounts(choice.kind["capacity"])
        for kind in self._trial.types.values():
            draws = amounts(kind["capacity"])
            if any(draws.get(resource, 0) > drawn.get(resource, 0) for resource in limits):
                continue
            for offering in kind["offerings"]:
                if (
                    offering["requirements"] == choice.offering["requirements"]
                    and offering["price"] < choice.offering["price"] - 1e-9
                    and self._trial.open(kind, offering, free)
                ):
                    chosen = Choice(kind, offering)
                    node_info = self._trial.launched(free, "alone", chosen, random.Random(0))
                    self._trial.with_daemons(node_info)
                    if matches(node_info.labels, wanted) and self._lets_in(node_info, stay):
                        return float(offering["price"])
        return None


PODS = ("podAffinity", "podAntiAffinity")


def _weight(pool: Object) -> int:
    weight: int = pool["spec"].get("weight") or 0
    return weight


def _character(pod: Object) -> str:
    return json.dumps(
        [pod["metadata"].get("namespace"), pod["metadata"].get("labels"), pod["spec"]]
    )
