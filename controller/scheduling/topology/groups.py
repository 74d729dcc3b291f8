"""Topology groups: the pods that a topology rule counts, and the domains that it compares.

A group is one rule, shared by all pods that state it the same way. Its tally counts the pods that
the group selects, per domain (value of its topology key). The tally includes running pods. A
solve's own copy of the tally also includes the pods placed in that solve.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from controller.apis import labels
from controller.apis.kubernetes.meta import LabelSelector, LabelSelectorRequirement
from controller.apis.kubernetes.pods import Pod, PodAffinityTerm, TopologySpreadConstraint
from controller.apis.kubernetes.taints import Toleration
from controller.apis.kubernetes.workloads import Namespace
from controller.constraints import requirements, selectors
from controller.constraints.requirements import Requirements
from controller.constraints.taints import untolerated_taint
from controller.state.nodes import StateNode
from controller.state.pods import is_terminal

LabelItems = tuple[tuple[str, str], ...]
"""Labels as sorted pairs, in a hashable form."""


class TopologyType(Enum):
    """The type of a topology rule. The pods that state the rule are its owners."""

    SPREAD = "spread"
    AFFINITY = "affinity"
    ANTI_AFFINITY = "anti-affinity"


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """The nodes that a spread constraint takes into account; None means no restriction.

    `alternatives` is set if the constraint honors node affinity (`nodeAffinityPolicy`): a node must
    meet one of these requirements. `tolerations` is set if the constraint honors taints
    (`nodeTaintsPolicy`). `keys` are the topology keys of the pod's other required spreads: a node
    must have these labels.
    """

    alternatives: tuple[Requirements, ...] | None
    tolerations: tuple[Toleration, ...] | None
    keys: tuple[str, ...] = ()

    def admits(self, node: StateNode) -> bool:
        """Whether the constraint takes the node into account."""
        if any(domain_of(node, key) is None for key in self.keys):
            return False
        own = node.node or node.claim
        if self.tolerations is not None and own is not None:
            hard = [taint for taint in own.spec.taints if taint.effect != "PreferNoSchedule"]
            if untolerated_taint(hard, self.tolerations) is not None:
                return False
        return self.alternatives is None or any(
            requirements.met_by_labels(alternative, node.labels)
            for alternative in self.alternatives
        )


EVERY_NODE = NodeFilter(None, None)


@dataclass(eq=False, slots=True, kw_only=True)
class TopologyGroup:
    """One topology rule, complete once all pods are read. `index` is its index among all groups.

    `hard` is true if at least one pod requires the rule instead of preferring it. `universe` maps
    the domains of the existing nodes that `node_filter` admits to the name of a node. `terms` is
    the number of affinity terms that one pod must match.
    """

    index: int
    type: TopologyType
    key: str
    namespaces: frozenset[str]
    selector: LabelSelector | None
    max_skew: int = 1
    min_domains: int = 0
    terms: int = 1
    hard: bool = False
    node_filter: NodeFilter = EVERY_NODE
    universe: Mapping[str, str] = field(default_factory=dict)

    @property
    def per_node(self) -> bool:
        """Whether the domains of the group are the nodes themselves (topology key hostname)."""
        return self.key == labels.HOSTNAME

    @property
    def is_host_spread(self) -> bool:
        """Whether the group is a required spread over nodes, so that its minimum may rise.

        A preferred spread over nodes keeps pods apart: its minimum is that of a new node, 0.
        """
        return self.per_node and self.type is TopologyType.SPREAD and self.hard

    def selects(self, namespace: str, values: Mapping[str, str]) -> bool:
        """Whether the group counts a pod of this namespace with these labels."""
        return namespace in self.namespaces and selectors.selects(self.selector, values)


@dataclass(eq=False, slots=True)
class TopologyTally:
    """The numbers of pods per domain that concern a topology group.

    `counts` are those of pods that the group counts, `owners` those of pods that state it.
    """

    group: TopologyGroup
    counts: Counter[str] = field(default_factory=Counter)
    owners: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """The number of pods that the group counts in all domains."""
        return sum(self.counts.values())

    def copy(self) -> TopologyTally:
        """Return an independent copy of the tally."""
        return TopologyTally(self.group, self.counts.copy(), self.owners.copy())


Tallies = Sequence[TopologyTally]
"""The tally of each topology group, by the index of the group."""


class TopologyGroups:
    """All topology groups of a solve with their tallies of running pods.

    Pods that state the same rule share a group.
    """

    def __init__(self, namespaces: Sequence[Namespace]) -> None:
        """Start without groups. `namespaces` resolve the namespace selectors of affinity terms."""
        self.all: list[TopologyGroup] = []
        self.tallies: list[TopologyTally] = []
        self._namespaces = {
            namespace.metadata.name: namespace.metadata.labels for namespace in namespaces
        }
        self._group_of: dict[tuple[object, ...], TopologyGroup] = {}
        # Index by one label that a counted pod must have, so that `selecting_groups` need not try
        # every group. Groups without such a label are under None.
        self._by_label: defaultdict[tuple[str, str] | None, list[TopologyGroup]] = defaultdict(list)

    def spread(
        self,
        constraint: TopologySpreadConstraint,
        *,
        namespace: str,
        own_labels: Mapping[str, str],
        alternatives: tuple[Requirements, ...],
        tolerations: tuple[Toleration, ...],
        keys: Iterable[str] = (),
    ) -> TopologyGroup:
        """Return the group of a spread constraint of a pod; it is created if it does not exist yet.

        The other arguments describe the pod. `alternatives` are the requirements of its node
        selector and required node affinity, of which a node must meet one. `keys` are the topology
        keys of its required spreads.
        """
        key = labels.normalize(constraint.topology_key)
        honors_affinity = constraint.node_affinity_policy != "Ignore"
        honors_taints = constraint.node_taints_policy == "Honor"
        node_filter = NodeFilter(
            alternatives if honors_affinity and any(alternatives) else None,
            tolerations if honors_taints else None,
            tuple(sorted({labels.normalize(other) for other in keys} - {key})),
        )
        selector = selectors.with_labels(
            constraint.label_selector, _same_values(constraint.match_label_keys, own_labels, "In")
        )
        if selectors.is_empty(selector):
            # In a spread, unlike in an affinity, kube-scheduler counts no pod for such a selector.
            selector = None
        return self._group(
            type_=TopologyType.SPREAD,
            key=key,
            namespaces=frozenset({namespace}),
            selector=selector,
            max_skew=constraint.max_skew,
            min_domains=constraint.min_domains or 0,
            node_filter=node_filter,
        )

    def affinity(
        self,
        terms: Sequence[PodAffinityTerm],
        *,
        key: str,
        type_: TopologyType,
        namespace: str,
        own_labels: Mapping[str, str],
    ) -> TopologyGroup:
        """Return the group of (anti-)affinity terms of a pod; it is created if it is not yet known.

        The group counts the pods that match all the terms, per domain of the topology key `key`.
        `match_label_keys` and `mismatch_label_keys` of a term take their values from the pod's
        labels, `own_labels`.
        """
        group = self._group(
            type_=type_,
            key=key,
            namespaces=frozenset.intersection(
                *(self._namespaces_of(term, namespace) for term in terms)
            ),
            selector=selectors.conjunction([_selector_of(term, own_labels) for term in terms]),
            max_skew=1,
            min_domains=0,
            node_filter=EVERY_NODE,
        )
        group.terms = len(terms)
        return group

    def of_running(self, pods: Sequence[Pod], nodes: Sequence[StateNode]) -> None:
        """Add the required anti-affinity of running pods, and count its owners per domain."""
        by_name = {node.name: node for node in nodes}
        for pod in pods:
            affinity = pod.spec.affinity
            if affinity is None or affinity.pod_anti_affinity is None or is_terminal(pod):
                continue
            node = by_name.get(pod.spec.node_name)
            for term in affinity.pod_anti_affinity.required:
                group = self.affinity(
                    [term],
                    key=term.topology_key,
                    type_=TopologyType.ANTI_AFFINITY,
                    namespace=pod.metadata.namespace,
                    own_labels=pod.metadata.labels,
                )
                group.hard = True
                domain = domain_of(node, group.key) if node is not None else None
                if domain is not None:
                    self.tallies[group.index].owners[domain] += 1

    def selecting_groups(self, namespace: str, values: Mapping[str, str]) -> tuple[int, ...]:
        """Return the indices of the groups that count a pod with these labels, sorted."""
        groups = [*self._by_label[None]]
        for label in values.items():
            groups.extend(self._by_label.get(label, ()))
        return tuple(sorted(group.index for group in groups if group.selects(namespace, values)))

    def _namespaces_of(self, term: PodAffinityTerm, own: str) -> frozenset[str]:
        """Return the namespaces in which a term counts pods: by default the pod's own namespace."""
        if not term.namespaces and term.namespace_selector is None:
            return frozenset({own})
        named = set(term.namespaces)
        if term.namespace_selector is not None:
            named.update(
                name
                for name, values in self._namespaces.items()
                if selectors.selects(term.namespace_selector, values)
            )
            if selectors.is_empty(term.namespace_selector):
                named.add(own)
        return frozenset(named)

    def _group(
        self,
        type_: TopologyType,
        key: str,
        namespaces: frozenset[str],
        selector: LabelSelector | None,
        max_skew: int,
        min_domains: int,
        node_filter: NodeFilter,
    ) -> TopologyGroup:
        """Return the group with these properties; it is created if it does not exist yet."""
        key = labels.normalize(key)
        identity = (
            type_,
            key,
            namespaces,
            selectors.canonical(selector),
            max_skew,
            min_domains,
            _filter_identity(node_filter),
        )
        group = self._group_of.get(identity)
        if group is None:
            group = TopologyGroup(
                index=len(self.all),
                type=type_,
                key=key,
                namespaces=namespaces,
                selector=selector,
                max_skew=max_skew,
                min_domains=min_domains,
                node_filter=node_filter,
            )
            self._group_of[identity] = group
            self.all.append(group)
            self.tallies.append(TopologyTally(group))
            if selector is not None:
                label = next(iter(selector.match_labels.items()), None)
                self._by_label[label].append(group)
        return group

    def count_running(self, pods: Sequence[Pod], nodes: Sequence[StateNode]) -> None:
        """Count running pods per domain, and record the domains of existing nodes.

        Nodes being launched count as existing nodes. Finished pods and pods on unknown nodes are
        not counted. As in kube-scheduler, only spreads leave out terminating pods. Nodes that are
        being deleted are no domains of hostname spreads: pods from these nodes are scheduled for
        the time when the nodes are gone.
        """
        named = {node.name for node in nodes}
        pods_by_labels: defaultdict[tuple[str, LabelItems, bool], Counter[str]]
        pods_by_labels = defaultdict(Counter)
        for pod in pods:
            if pod.spec.node_name in named and not is_terminal(pod):
                values = tuple(sorted(pod.metadata.labels.items()))
                equal = (pod.metadata.namespace, values, pod.metadata.is_deleting)
                pods_by_labels[equal][pod.spec.node_name] += 1
        domains_by_group = self._read_domains(nodes)
        for (namespace, values, is_terminating), pods_by_node in pods_by_labels.items():
            for index in self.selecting_groups(namespace, dict(values)):
                if is_terminating and self.all[index].type is TopologyType.SPREAD:
                    continue
                for name, count in pods_by_node.items():
                    domain = domains_by_group[index].get(name)
                    if domain is not None:
                        self.tallies[index].counts[domain] += count

    def _read_domains(self, nodes: Sequence[StateNode]) -> list[Mapping[str, str]]:
        """Return the domain of each node that a group takes into account, by the group's index.

        The domains are also recorded as the `universe` of spreads.
        """
        keys = sorted({group.key for group in self.all})
        domains_by_key = {key: _domains(nodes, key) for key in keys}
        names_by_key = {key: _names(domains_by_key[key], key, nodes) for key in keys}
        domains_by_group: list[Mapping[str, str]] = []
        for group in self.all:
            domains = domains_by_key[group.key]
            group.universe = names_by_key[group.key]
            if group.node_filter != EVERY_NODE:
                admitted = {node.name for node in nodes if group.node_filter.admits(node)}
                domains = {name: domain for name, domain in domains.items() if name in admitted}
                group.universe = _names(domains, group.key, nodes)
            domains_by_group.append(domains)
        return domains_by_group


def domain_of(node: StateNode, key: str) -> str | None:
    """Return the domain of a node for a topology key, or None if the label is missing.

    A node without a hostname label uses its name.
    """
    if key == labels.HOSTNAME:
        return node.labels.get(key, node.name)
    return node.labels.get(key)


def _domains(nodes: Sequence[StateNode], key: str) -> dict[str, str]:
    """Return the domain of each node for a topology key; nodes without the label are left out."""
    pairs = ((node.name, domain_of(node, key)) for node in nodes)
    return {name: domain for name, domain in pairs if domain is not None}


def _names(domains: Mapping[str, str], key: str, nodes: Sequence[StateNode]) -> dict[str, str]:
    """Return a node's name by domain; by hostname without the nodes that are being deleted."""
    leaving = {node.name for node in nodes if node.deleting} if key == labels.HOSTNAME else set()
    return {domain: name for name, domain in domains.items() if name not in leaving}


def _selector_of(term: PodAffinityTerm, own_labels: Mapping[str, str]) -> LabelSelector | None:
    """Return the selector of an affinity term of a pod with these labels."""
    return selectors.with_labels(
        term.label_selector,
        [
            *_same_values(term.match_label_keys, own_labels, "In"),
            *_same_values(term.mismatch_label_keys, own_labels, "NotIn"),
        ],
    )


def _same_values(
    keys: Sequence[str], values: Mapping[str, str], operator: str
) -> list[LabelSelectorRequirement]:
    return [
        LabelSelectorRequirement(key=key, operator=operator, values=[values[key]])
        for key in keys
        if key in values
    ]


def _filter_identity(node_filter: NodeFilter) -> tuple[object, ...]:
    """Return a hashable form of a node filter."""
    alternatives = (
        None
        if node_filter.alternatives is None
        else tuple(
            tuple(sorted(alternative.items(), key=lambda item: item[0]))
            for alternative in node_filter.alternatives
        )
    )
    tolerations = (
        None
        if node_filter.tolerations is None
        else tuple(
            (toleration.key, toleration.operator, toleration.value, toleration.effect)
            for toleration in node_filter.tolerations
        )
    )
    return (alternatives, tolerations, node_filter.keys)
