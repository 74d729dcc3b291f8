"""The number of further pods that a topology rule admits in a domain, as in kube-scheduler.

Placement, packing, device allocation and consolidation use these functions, so that they agree.

Three numbers describe a domain: the pods in it that the rule counts, whether the rule counts the
pods that state it (`own`), and for a spread the minimum count over all domains (`least`). From
them follows the *limit*: the greatest number of counted pods in a domain with pods that state the
rule.

A pod that the rule counts uses up the limit. A pod that the rule does not count only needs a domain
within the limit, however many such pods there are. Pod affinity is the opposite of a limit: a
domain needs at least one counted pod.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from controller.constraints import hostports
from controller.constraints.hostports import HostPort
from controller.scheduling.arrays import Indices, Vector
from controller.scheduling.topology.groups import TopologyGroup, TopologyType

ENDLESS = np.iinfo(np.int32).max
"""The number of further pods where a rule sets no limit."""


class PodsWithRules(Protocol):
    """Equal pods and their rules about sharing a node."""

    @property
    def owned(self) -> tuple[TopologyGroup, ...]:
        """The topology groups that the pods state."""

    @property
    def counted(self) -> tuple[TopologyGroup, ...]:
        """The topology groups that count the pods."""

    @property
    def ports(self) -> tuple[HostPort, ...]:
        """The host ports of each of the pods."""


def minimum(group: TopologyGroup, counts: Collection[float]) -> float:
    """Return the minimum count that a spread compares with; `counts` are the counts of its domains.

    As in kube-scheduler, it is 0 if there are fewer domains than `minDomains`.
    """
    return 0 if len(counts) < max(group.min_domains, 1) else min(counts)


def limit(group: TopologyGroup, *, own: bool, least: float = 0) -> float:
    """Return the greatest number of counted pods in a domain with pods that state the group's rule.

    `own` says whether the group counts the pods that state the rule. The limit of a spread is
    `least` plus `maxSkew`. The limit of anti-affinity is 0, or 1 if `own`: the pod that states the
    rule. Affinity has no limit (`ENDLESS`).
    """
    if group.type is TopologyType.SPREAD:
        return group.max_skew + least
    if group.type is TopologyType.ANTI_AFFINITY:
        return int(own)
    return ENDLESS


def admits(
    group: TopologyGroup, count: float, *, own: bool, least: float = 0, first: bool = False
) -> bool:
    """Whether a domain with `count` counted pods admits one more pod that states the group's rule.

    `own` and `least` are as for `limit`. `first` says that the group counts no pod in any domain.
    The first pod of an affinity to pods like itself is admitted in any domain.
    """
    if group.type is TopologyType.AFFINITY:
        return count > 0 or (own and first)
    return count + own <= limit(group, own=own, least=least)


def further(
    group: TopologyGroup, counts: Vector, *, own: bool, least: float = 0, first: bool = False
) -> Indices:
    """Return the number of further pods with the group's rule that each domain admits (domains).

    This is `admits` for many domains and pods at once. The number for a domain holds until pods are
    placed in other domains, which may change `least` and `first`.
    """
    if group.type is TopologyType.AFFINITY:
        return np.where((counts > 0) | (own and first), ENDLESS, 0)
    spare = limit(group, own=own, least=least) - counts
    if own:
        return np.maximum(spare, 0).astype(np.int64)
    return np.where(spare >= 0, ENDLESS, 0)


def excess(
    group: TopologyGroup, count: float, *, owners: int, own: bool, least: float = 0
) -> float:
    """Return the number of pods in a domain that state the group's rule and break it.

    `owners` is the number of pods in the domain that state the rule, `count` the number of counted
    pods, which include the owners if `own`.
    """
    if group.type is TopologyType.AFFINITY:
        return 0 if count > 0 else owners
    return min(max(count - limit(group, own=own, least=least), 0), owners)


def on_one_node(pods: PodsWithRules, beside: Sequence[tuple[PodsWithRules, int]] = ()) -> int:
    """Return the number of these pods that one new node admits, by hostname rules and host ports.

    `beside` are the other pods on the node, with their numbers. Affinity by hostname is ignored,
    because the caller chooses the other pods by it. The minimum of a spread is 0, because a node
    without pods can always be launched.
    """
    if any(
        _repels(other, pods) or hostports.conflict(pods.ports, other.ports) for other, _ in beside
    ):
        return 0
    most = 1 if pods.ports else ENDLESS
    for group in pods.owned:
        if group.per_node and group.type is not TopologyType.AFFINITY:
            count = sum(number for other, number in beside if group in other.counted)
            own = group in pods.counted
            most = min(most, int(further(group, np.array([count]), own=own)[0]))
    return most


def _repels(owner: PodsWithRules, pods: PodsWithRules) -> bool:
    """Whether an anti-affinity by hostname keeps pods off the nodes of its owner."""
    return any(
        group.per_node and group.type is TopologyType.ANTI_AFFINITY and group in pods.counted
        for group in owner.owned
    )
