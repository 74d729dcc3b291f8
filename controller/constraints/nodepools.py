"""What a NodePool says about the labels of its nodes, and where it contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.constraints import requirements
from controller.constraints.requirements import ValueSet, one_of


def own_labels(pool: NodePool) -> dict[str, str]:
    """Return the labels of the NodePool's template, and those that name the pool and its class."""
    reference = pool.spec.template.spec.node_class_ref
    return {
        **(pool.spec.template.metadata.labels or {}),
        labels.NODEPOOL: pool.metadata.name,
        f"{reference.group}/{reference.kind.lower()}": reference.name,
    }


def contradiction(pool: NodePool) -> str:
    """Return which terms of the NodePool no node can meet at once; empty if one can meet all.

    Its terms are the labels of its template and its requirements.

    Raises:
        ValueError: a requirement is malformed.

    """
    known: dict[str, tuple[ValueSet, list[str]]] = {}
    for key, values, text in _terms(pool):
        allowed, named = known.get(key, (values, []))
        if not allowed.meets(values):
            return f"{text} contradicts {' and '.join(named)}: no node can meet both"
        known[key] = allowed.intersection(values), [*named, text]
    return ""


def _terms(pool: NodePool) -> Iterator[tuple[str, ValueSet, str]]:
    """Yield the normalized label, the allowed values and the text of each term."""
    for key, value in own_labels(pool).items():
        yield labels.normalize(key), one_of(value), f"label {key}={value}"
    for term in pool.spec.template.spec.requirements:
        listed = f" [{', '.join(term.values)}]" if term.values else ""
        values = requirements.value_set(term.operator, term.values)
        yield labels.normalize(term.key), values, f"requirement {term.key} {term.operator}{listed}"
