"""The requirements of a pod's node selector and required node affinity."""

from __future__ import annotations

from controller.apis.kubernetes.pods import PodSpec
from controller.constraints import requirements
from controller.constraints.requirements import ValueSet


def required_alternatives(spec: PodSpec) -> tuple[dict[str, ValueSet], ...]:
    """Return the alternative requirements of the pod's node selector and required node affinity.

    A node must meet one of them. Terms that contradict themselves or the node selector are left
    out.
    """
    selected = requirements.of_labels(spec.node_selector)
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is None or affinity.required is None:
        return (selected,)
    alternatives = (
        requirements.compatible_conjunction(
            selected, *(requirements.read([expression]) for expression in term.match_expressions)
        )
        for term in affinity.required.node_selector_terms
        if term.match_expressions
    )
    return tuple(alternative for alternative in alternatives if alternative is not None)
