"""Bind pods one after the other, with the kube-scheduler filters that look at other pods.

kube-scheduler decides about one pod at a time, and its decision depends on the pods that came
before. A topology spread also counts pods that have no spread themselves. An owner may therefore
fit only before those pods are bound. kube-scheduler takes pods in an order of its own and retries
rejected ones. A plan is correct if some order binds all pods.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.oracle.nodeinfos import HOSTNAME, NodeInfo
from tests.oracle.rules import (
    REQUIRED,
    Labels,
    Object,
    key_of,
    node_selected,
    selected,
    tolerates,
)

Assigned = tuple[Object, NodeInfo]

ORDERS = 6
"""Number of binding orders to try before a placement counts as impossible."""


def terms_of(pod: Object, kind: str) -> list[Object]:
    """Return the required terms of `podAffinity` or `podAntiAffinity`."""
    affinity = pod["spec"].get("affinity") or {}
    terms: list[Object] = affinity.get(kind, {}).get(REQUIRED, [])
    return terms


class Lookup:
    """Which pods a term or a constraint of a pod selects; results are cached."""

    def __init__(self, world: Object) -> None:
        """Read the labels of namespaces."""
        self._namespaces = {
            namespace["metadata"]["name"]: {
                "kubernetes.io/metadata.name": namespace["metadata"]["name"],
                **namespace["metadata"].get("labels", {}),
            }
            for namespace in world.get("namespaces", [])
        }
        self._known: dict[tuple[int, int], bool] = {}
        self._counted: dict[tuple[Hashable, int], bool] = {}
        self._ledgers: dict[int, Hashable] = {}

    def term(self, owner: Object, term: Object, other: Object) -> bool:
        """Whether an affinity term of the owner selects the other pod."""
        key = (id(term), id(other))
        if key not in self._known:
            self._known[key] = self._term(owner, term, other)
        return self._known[key]

    def _term(self, owner: Object, term: Object, other: Object) -> bool:
        own = owner["metadata"].get("namespace", "default")
        theirs = other["metadata"].get("namespace", "default")
        names, chosen = term.get("namespaces") or [], term.get("namespaceSelector")
        if not names and chosen is None:
            names = [own]
        inside = theirs in names or (
            chosen is not None and selected(self._namespaces.get(theirs, {}), chosen)
        )
        labels = other["metadata"].get("labels") or {}
        return (
            inside
            and selected(labels, term.get("labelSelector"))
            and self._label_keys(owner, term, labels)
        )

    def _label_keys(self, owner: Object, term: Object, labels: Labels) -> bool:
        own = owner["metadata"].get("labels") or {}
        alike = all(
            labels.get(key) == own[key] for key in term.get("matchLabelKeys") or [] if key in own
        )
        unlike = all(
            labels.get(key) != own[key] for key in term.get("mismatchLabelKeys") or [] if key in own
        )
        return alike and unlike

    def ledger(self, owner: Object, constraint: Object) -> Hashable:
        """Return a key that is equal for constraints that count the same pods on the same nodes."""
        known = self._ledgers.get(id(constraint))
        if known is None:
            own, spec = owner["metadata"].get("labels") or {}, owner["spec"]
            honors = [
                constraint.get("nodeAffinityPolicy", "Honor") == "Honor"
                and [spec.get("nodeSelector"), (spec.get("affinity") or {}).get("nodeAffinity")],
                constraint.get("nodeTaintsPolicy") == "Honor" and spec.get("tolerations"),
            ]
            keys = sorted(spread["topologyKey"] for spread in hard_spreads(owner))
            alike = {key: own.get(key) for key in constraint.get("matchLabelKeys") or []}
            namespace = owner["metadata"].get("namespace", "default")
            stated = [namespace, constraint, honors, keys, alike]
            known = self._ledgers[id(constraint)] = json.dumps(stated, sort_keys=True)
        return known

    def constraint(self, owner: Object, constraint: Object, other: Object) -> bool:
        """Whether a topology spread constraint of the owner counts the other pod."""
        key = (self.ledger(owner, constraint), id(other))
        if key not in self._counted:
            labels = other["metadata"].get("labels") or {}
            self._counted[key] = (
                owner["metadata"].get("namespace", "default")
                == other["metadata"].get("namespace", "default")
                and selected(labels, constraint.get("labelSelector"))
                and self._label_keys(owner, constraint, labels)
            )
        return self._counted[key]


class Play:
    """Pods being bound to nodes, one after the other."""

    def __init__(self, node_infos: Sequence[NodeInfo], lookup: Lookup) -> None:
        """Start with the running pods."""
        self._node_infos = node_infos
        self._lookup = lookup
        self._ledgers: dict[Hashable, Ledger] = {}
        self.bound: list[Assigned] = []
        self._repelling: list[tuple[Object, NodeInfo, Object]] = []
        for node_info in node_infos:
            for pod in node_info.pods:
                self.bind(pod, node_info)

    def bind(self, pod: Object, node_info: NodeInfo) -> None:
        """Bind a pod."""
        self.bound.append((pod, node_info))
        self._repelling += [(pod, node_info, term) for term in terms_of(pod, "podAntiAffinity")]
        for ledger in self._ledgers.values():
            ledger.enter(pod, node_info, self._lookup)

    def refusal(self, pod: Object, node_info: NodeInfo) -> str | None:
        """Return why the pod cannot be bound to the node now, or None."""
        return (
            self._repelled(pod, node_info)
            or self._alone(pod, node_info)
            or self._skewed(pod, node_info)
        )

    def _repelled(self, pod: Object, node_info: NodeInfo) -> str | None:
        for term in terms_of(pod, "podAntiAffinity"):
            for other, place in self.bound:
                if self._together(node_info, place, term) and self._lookup.term(pod, term, other):
                    return f"anti-affinity to {key_of(other)} by {term['topologyKey']}"
        for other, place, term in self._repelling:
            if self._together(node_info, place, term) and self._lookup.term(other, term, pod):
                return f"anti-affinity of {key_of(other)} by {term['topologyKey']}"
        return None

    @staticmethod
    def _together(node_info: NodeInfo, other: NodeInfo, term: Object) -> bool:
        value = node_info.labels.get(term["topologyKey"])
        return value is not None and value == other.labels.get(term["topologyKey"])

    def _alone(self, pod: Object, node_info: NodeInfo) -> str | None:
        terms = terms_of(pod, "podAffinity")
        if not terms:
            return None
        if any(term["topologyKey"] not in node_info.labels for term in terms):
            return "the node lacks a label of its affinity"
        company = [
            place
            for other, place in self.bound
            if all(self._lookup.term(pod, term, other) for term in terms)
        ]
        near = all(
            any(self._together(node_info, place, term) for place in company) for term in terms
        )
        first = not any(
            term["topologyKey"] in place.labels for place in company for term in terms
        ) and all(self._lookup.term(pod, term, pod) for term in terms)
        if near or first:
            return None
        return f"no pod of its affinity by {', '.join(t['topologyKey'] for t in terms)} is there"

    def _skewed(self, pod: Object, node_info: NodeInfo) -> str | None:
        for spread in hard_spreads(pod):
            key = spread["topologyKey"]
            if key not in node_info.labels:
                return f"the node lacks {key} of its spread"
            ledger = self.ledger(pod, spread)
            skew = ledger.skew(node_info, own=self._lookup.constraint(pod, spread, pod))
            if skew > spread["maxSkew"]:
                return f"skew {skew} by {key} over {dict(ledger.counts)}"
        return None

    def ledger(self, pod: Object, constraint: Object) -> Ledger:
        """Return the current counts of a topology spread constraint of a pod."""
        identity = self._lookup.ledger(pod, constraint)
        counted = self._ledgers.get(identity)
        if counted is None:
            key, keys = constraint["topologyKey"], {c["topologyKey"] for c in hard_spreads(pod)}
            counted = self._ledgers[identity] = Ledger(
                pod,
                constraint,
                {
                    standing.name: standing.labels[key]
                    for standing in self._node_infos
                    if keys <= standing.labels.keys() and _counted(pod, constraint, standing)
                },
            )
            counted.counts.update(dict.fromkeys(counted.domains.values(), 0))
            for other, place in self.bound:
                counted.enter(other, place, self._lookup)
        return counted


@dataclass(eq=False, slots=True)
class Ledger:
    """Counts of a topology spread constraint: pods per domain, on the nodes that have one."""

    owner: Object
    constraint: Object
    domains: Mapping[str, str]
    counts: Counter[str] = field(default_factory=Counter)

    def enter(self, pod: Object, node_info: NodeInfo, lookup: Lookup) -> None:
        """Count a bound pod if the constraint selects it and it is not terminating."""
        domain = self.domains.get(node_info.name)
        if domain is None or "deletionTimestamp" in pod["metadata"]:
            return
        if lookup.constraint(self.owner, self.constraint, pod):
            self.counts[domain] += 1

    def skew(self, node_info: NodeInfo, *, own: bool) -> int:
        """Return the skew with one more owner on the node.

        `own` says whether the constraint counts the owner itself.
        """
        domain = self.domains.get(node_info.name)
        if domain is None:
            return 0
        few = len(self.counts) < (self.constraint.get("minDomains") or 1)
        return self.counts[domain] + own - (0 if few else min(self.counts.values()))


def hard_spreads(pod: Object) -> list[Object]:
    """Return the topology spread constraints with `DoNotSchedule`."""
    return [
        spread
        for spread in pod["spec"].get("topologySpreadConstraints") or []
        if spread["whenUnsatisfiable"] == "DoNotSchedule"
    ]


def _counted(pod: Object, constraint: Object, node_info: NodeInfo) -> bool:
    """Whether a constraint's node inclusion policies count the pods of a node."""
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and not node_selected(
        pod, node_info.labels, node_info.name
    ):
        return False
    return constraint.get("nodeTaintsPolicy", "Ignore") == "Ignore" or tolerates(
        pod, node_info.taints
    )


def is_choosy(pod: Object) -> bool:
    """Whether a pod has affinity, anti-affinity or topology spread."""
    return bool(
        hard_spreads(pod) or terms_of(pod, "podAffinity") or terms_of(pod, "podAntiAffinity")
    )


def bound_in_some_order(
    node_infos: Sequence[NodeInfo],
    assigned: Sequence[Assigned],
    lookup: Lookup,
    chance: random.Random,
) -> tuple[Play, list[tuple[Object, str]]]:
    """Return the best order found, and the pods that it does not bind, with their reasons."""
    order = list(assigned)
    # Most plans bind in any order, and that is the fastest to check.
    best = Order(node_infos, order, lookup, careful=False).played()
    for _ in range(ORDERS):
        if not best[1]:
            break
        another = Order(node_infos, order, lookup, careful=True).played()
        if len(another[1]) < len(best[1]):
            best = another
        chance.shuffle(order)
    return best


Owner = tuple[Ledger, bool]
"""A topology spread of some pods, and whether it counts those pods themselves."""

NO_OWNERS: Counter[Owner] = Counter()


class Order:
    """A search for a binding order.

    It binds pods with constraints over zones first, as far as possible. Then it binds one pod with
    constraints over nodes, then one of the others, since each rank can only worsen what the ranks
    before it look at.

    If `careful`, no pod is bound where a later pod would then be rejected by its topology spread.
    If every pod would obstruct another, the search binds the one that obstructs fewest on the same
    node. A pod that is rejected on a node because of others stays rejected there.
    """

    def __init__(
        self,
        node_infos: Sequence[NodeInfo],
        order: Sequence[Assigned],
        lookup: Lookup,
        *,
        careful: bool,
    ) -> None:
        """Take pods of equal rank in this order."""
        self._lookup, self._careful = lookup, careful
        self._play = Play(node_infos, lookup)
        self._waiting = sorted(order, key=lambda placement: _rank(placement[0]))
        self._due: defaultdict[tuple[str, str], Counter[Owner]] = defaultdict(Counter)
        for pod, node_info in order:
            for domain, owner in self._spread(pod, node_info):
                self._due[domain][owner] += 1

    def played(self) -> tuple[Play, list[tuple[Object, str]]]:
        """Bind all pods that can be bound; return the unbound ones, with their reasons."""
        while self._harmless() or self._least_harmful():
            pass
        stuck = [(pod, self._play.refusal(pod, where) or "") for pod, where in self._waiting]
        return self._play, stuck

    def _harmless(self) -> bool:
        """Bind pods that obstruct no other pod.

        All of the first rank are bound, and only one of another rank while pods of earlier ranks
        are pending.
        """
        waiting: list[Assigned] = []
        is_left = False
        for pod, node_info in self._waiting:
            taken = is_left and bool(waiting) and _rank(pod) > 0
            if taken or any(self._harm(pod, node_info)) or self._play.refusal(pod, node_info):
                waiting.append((pod, node_info))
            else:
                self._bind(pod, node_info)
                is_left = True
        self._waiting = waiting
        return is_left

    def _least_harmful(self) -> bool:
        """Bind the pod that obstructs others least; return False if no pod can be bound."""
        free = [
            n for n, placement in enumerate(self._waiting) if self._play.refusal(*placement) is None
        ]
        if free:
            self._bind(*self._waiting.pop(min(free, key=self._cost)))
        return bool(free)

    def _cost(self, place: int) -> tuple[int, int, int]:
        pod, node_info = self._waiting[place]
        on_node, elsewhere = self._harm(pod, node_info)
        return on_node, _rank(pod), elsewhere

    def _bind(self, pod: Object, node_info: NodeInfo) -> None:
        self._play.bind(pod, node_info)
        for domain, owner in self._spread(pod, node_info):
            self._due[domain][owner] -= 1

    def _harm(self, pod: Object, node_info: NodeInfo) -> tuple[int, int]:
        """Return how many later pods would be rejected, by spreads over nodes and by others.

        The latter may become satisfiable again.
        """
        if not self._careful:
            return 0, 0
        mine = set(self._spread(pod, node_info))
        harm = {True: 0, False: 0}
        for domain in node_info.labels.items():
            for (ledger, own), number in self._due.get(domain, NO_OWNERS).items():
                others = number - ((domain, (ledger, own)) in mine)
                if (
                    others > 0
                    and self._lookup.constraint(ledger.owner, ledger.constraint, pod)
                    and ledger.skew(node_info, own=own) + 1 > ledger.constraint["maxSkew"]
                ):
                    harm[domain[0] == HOSTNAME] += others
        return harm[True], harm[False]

    def _spread(self, pod: Object, node_info: NodeInfo) -> list[tuple[tuple[str, str], Owner]]:
        """Return the domains in which a constraint of the pod counts pods, with that constraint."""
        return [
            (
                (spread["topologyKey"], node_info.labels[spread["topologyKey"]]),
                (self._play.ledger(pod, spread), self._lookup.constraint(pod, spread, pod)),
            )
            for spread in hard_spreads(pod)
            if spread["topologyKey"] in node_info.labels
        ]


def _rank(pod: Object) -> int:
    if terms_of(pod, "podAffinity") or any(
        term["topologyKey"] != HOSTNAME
        for term in (*hard_spreads(pod), *terms_of(pod, "podAntiAffinity"))
    ):
        return 0
    return 1 if is_choosy(pod) else 2
