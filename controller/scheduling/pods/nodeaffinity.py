"""The requirements of a pod's node selector and required node affinity."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from controller.apis import labels
from controller.apis.kubernetes.pods import NodeSelectorTerm, PodSpec
from controller.apis.kubernetes.taints import Requirement
from controller.constraints import requirements
from controller.constraints.requirements import Requirements, ValueSet


def required_alternatives(spec: PodSpec) -> tuple[dict[str, ValueSet], ...]:
    """Return the alternative requirements of the pod's node selector and required node affinity.

    A node must meet one of them. Terms that contradict themselves or the node selector are left
    out. As in kube-scheduler, no node meets a malformed term, so it is left out too.
    """
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is None or affinity.required is None:
        return (requirements.of_labels(spec.node_selector),)
    alternatives = (requirements.conjunction(*parts) for parts in _parts_of_terms(spec))
    return tuple(filter(requirements.is_possible, alternatives))


def malformation(spec: PodSpec) -> str:
    """Return what is malformed in the required node affinity; empty if nothing is."""
    for term in _terms(spec):
        try:
            requirements.read(_expressions(term))
        except ValueError as malformed:
            return str(malformed)
    return ""


def contradiction(spec: PodSpec) -> tuple[str, ValueSet, ValueSet] | None:
    """Return the first label on which a term contradicts itself or the node selector, or None.

    With the label come two of its value sets that cannot hold at once.
    """
    contradictions = (requirements.contradiction(*parts) for parts in _parts_of_terms(spec))
    return next(filter(None, contradictions), None)


def _parts_of_terms(spec: PodSpec) -> Iterator[list[Requirements]]:
    """Yield for each well-formed term of the node affinity all requirements that must hold."""
    selected = requirements.of_labels(spec.node_selector)
    for term in _terms(spec):
        try:
            parts = [requirements.read([one]) for one in _expressions(term)]
        except ValueError:
            continue
        yield [selected, *parts]


def _terms(spec: PodSpec) -> Iterator[NodeSelectorTerm]:
    """Yield the terms of the required node affinity; a term without requirements is left out."""
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is not None and affinity.required is not None:
        for term in affinity.required.node_selector_terms:
            if term.match_expressions or term.match_fields:
                yield term


def _expressions(term: NodeSelectorTerm) -> list[Requirement]:
    """Return the expressions of a term; those on the node's name as requirements on its hostname.

    `metadata.name` is the only field that kube-scheduler knows. The hostname label of a node on EKS
    is its name.
    """
    names = [msgspec.structs.replace(one, key=labels.HOSTNAME) for one in term.match_fields]
    return [*term.match_expressions, *names]
