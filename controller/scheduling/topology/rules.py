"""How many further pods a topology rule admits in a domain, by kube-scheduler's rules.

Placement, packing, device allocation and consolidation all ask these functions, so that they agree.

Three numbers describe a domain: the pods in it that the rule counts, whether the rule counts the
pods that state it (`own`), and for a spread the minimum count over all domains (`least`). From
them follows the *limit*: the most counted pods that a domain with pods that state the rule holds.

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


class Ruled(Protocol):
    """Equal pods, as far as rules about sharing a node concern them."""

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
    """Return the minimum count that a spread compares with; `counts` are those of its domains.

    As in kube-scheduler, it is 0 if there are fewer domains than `minDomains`.
    """
    return 0 if len(counts) < max(group.min_domains, 1) else min(counts)


def limit(group: TopologyGroup, *, own: bool, least: float = 0) -> float:
    """Return the most counted pods that a domain holds beside pods that state the group's rule.

    For a spread the skew, count minus `least`, is at most `maxSkew`. For anti-affinity the only
    counted pod in the domain is the pod that states it.
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

    `first` says that the group counts no pod in any domain. The first pod of an affinity to
    pods like itself may go to any domain.
    """
    if group.type is TopologyType.AFFINITY:
        return count > 0 or (own and first)
    return count + own <= limit(group, own=own, least=least)


def further(
    group: TopologyGroup, counts: Vector, *, own: bool, least: float = 0, first: bool = False
) -> Indices:
    """Return how many further pods that state the group's rule each domain admits (domains).

    It answers `admits` for many domains and many pods at once. The number for a domain holds while
    no pods are placed in other domains: those may change `least` and `first`.
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
    """Return how many of the `owners` in a domain break their rule, whichever of them came first.

    `count` is the number of counted pods in the domain, owners included if `own`.
    """
    if group.type is TopologyType.AFFINITY:
        return 0 if count > 0 else owners
    return min(max(count - limit(group, own=own, least=least), 0), owners)


def on_one_node(pods: Ruled, beside: Sequence[tuple[Ruled, int]] = ()) -> int:
    """Return how many of these pods one new node admits, by hostname rules and host ports.

    `beside` are the other pods on the node, with their numbers. Hostname affinity is left to the
    caller, who chooses the other pods by it. The minimum of a spread is 0: a node without pods can
    always be launched.
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


def _repels(owner: Ruled, pods: Ruled) -> bool:
    """Whether an anti-affinity by hostname keeps pods off the nodes of its owner."""
    return any(
        group.per_node and group.type is TopologyType.ANTI_AFFINITY and group in pods.counted
        for group in owner.owned
    )
