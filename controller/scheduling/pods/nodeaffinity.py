"""The nodes that a pod may go to by its own word: selector and required affinity."""

from __future__ import annotations

from controller.apis.pods import PodSpec
from controller.constraints import requirements
from controller.constraints.requirements import ValueSet


def required_alternatives(spec: PodSpec) -> tuple[dict[str, ValueSet], ...]:
    """Return the ways in which a node can meet the pod's selector and required affinity.

    Terms that contradict themselves are no way.
    """
    selected = requirements.of_labels(spec.node_selector)
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is None or affinity.required is None:
        return (selected,)
    ways = (
        requirements.agreement(selected, *map(requirements.single, term.match_expressions))
        for term in affinity.required.node_selector_terms
        if term.match_expressions
    )
    return tuple(way for way in ways if way is not None)
