"""Label selectors of pods and namespaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.apis.kubernetes.meta import LabelSelector, LabelSelectorRequirement


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether the selector matches an object with these labels. None matches nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    return all(_holds(expression, labels) for expression in selector.match_expressions)


def with_labels(
    selector: LabelSelector | None, expressions: list[LabelSelectorRequirement]
) -> LabelSelector | None:
    """Return the selector with more expressions added; None stays None."""
    if selector is None or not expressions:
        return selector
    return LabelSelector(
        match_labels=selector.match_labels,
        match_expressions=[*selector.match_expressions, *expressions],
    )


def conjunction(selectors: Sequence[LabelSelector | None]) -> LabelSelector | None:
    """Return the selector that matches what all the selectors match. None matches nothing."""
    first, *others = selectors
    for other in others:
        if other is None:
            return None
        equal = [
            LabelSelectorRequirement(key=key, operator="In", values=[value])
            for key, value in sorted(other.match_labels.items())
        ]
        first = with_labels(first, [*equal, *other.match_expressions])
    return first


def is_empty(selector: LabelSelector | None) -> bool:
    """Whether the selector has no condition and so matches everything."""
    return selector is not None and not (selector.match_labels or selector.match_expressions)


def canonical(selector: LabelSelector | None) -> tuple[object, ...] | None:
    """Return a hashable form, equal for selectors that differ only in order; None for None."""
    if selector is None:
        return None
    return (
        tuple(sorted(selector.match_labels.items())),
        tuple(
            sorted(
                (part.key, part.operator, tuple(sorted(part.values)))
                for part in selector.match_expressions
            )
        ),
    )


def _holds(expression: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Whether labels meet one expression of a selector; an unknown operator is never met."""
    value = labels.get(expression.key)
    match expression.operator:
        case "In":
            return value is not None and value in expression.values
        case "NotIn":
            return value is None or value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
