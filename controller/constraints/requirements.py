"""Requirements on labels: the values that a label may have, and the intersection of such sets.

A `ValueSet` is for one label; `Requirements` map many labels to their sets, all of which must hold.
Bounds (`Gt`, `Lt`, `Gte`, `Lte`) apply to values that are integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.apis import labels
from controller.apis.kubernetes.taints import Requirement
from controller.apis.wording import shown_values

_INTEGER = re.compile(r"[+-]?[0-9]+")
_LEAST, _GREATEST = -(2**63) - 1, 2**63
"""An int64, and one more on each side, since `Gt` and `Lt` are written as `Gte` and `Lte`."""


@dataclass(frozen=True, slots=True)
class ValueSet:
    """The values that a label may have: those in `values`, or (`complement`) all others.

    The empty set is `DoesNotExist`; the complement of the empty set is `Exists`. `at_least` and
    `at_most` are inclusive bounds. `exists` says that the label's absence does not meet the set,
    where the other fields leave it open: in the intersection of `NotIn` and `Exists`, and in an
    empty set that is a contradiction (`is_contradiction`).
    """

    values: frozenset[str] = frozenset()
    complement: bool = False
    at_least: int | None = None
    at_most: int | None = None
    exists: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no value is allowed: the label must be absent, or nothing meets the set."""
        return not self.complement and not self.values

    @property
    def is_contradiction(self) -> bool:
        """Whether no node meets the set: neither with any value of the label, nor without it."""
        return self.is_empty and self.exists

    @property
    def allows_absence(self) -> bool:
        """Whether a node without the label meets the requirement (`NotIn`, `DoesNotExist`)."""
        if not self.complement:
            return not self.values and not self.exists
        is_bounded = self.at_least is not None or self.at_most is not None
        return bool(self.values) and not is_bounded and not self.exists

    @property
    def single(self) -> str | None:
        """The only allowed value, or None if there is not exactly one."""
        if self.complement or len(self.values) != 1:
            return None
        return next(iter(self.values))

    def has(self, value: str) -> bool:
        """Whether the label may have this value."""
        return (value in self.values) != self.complement and self._within_bounds(value)

    def meets(self, other: ValueSet) -> bool:
        """Whether both sets can hold at once.

        They can if they share a value, or if both allow the label's absence.
        """
        return not self.intersection(other).is_contradiction

    def intersection(self, other: ValueSet) -> ValueSet:
        """Return what both sets allow: the common values, and absence if both allow it.

        If nothing is left, the result is a contradiction.
        """
        at_least = _tightest(max, self.at_least, other.at_least)
        at_most = _tightest(min, self.at_most, other.at_most)
        if at_least is not None and at_most is not None and at_least > at_most:
            return CONTRADICTION
        bounded = ValueSet(complement=True, at_least=at_least, at_most=at_most)
        if self.complement and other.complement:
            both = ValueSet(self.values | other.values, True, at_least, at_most)
            is_lax = self.allows_absence and other.allows_absence
            return both if is_lax or not both.allows_absence else replace(both, exists=True)
        if self.complement:
            named = other.values - self.values
        elif other.complement:
            named = self.values - other.values
        else:
            named = self.values & other.values
        common = frozenset(value for value in named if bounded.has(value))
        if common:
            return ValueSet(common)
        return NOTHING if self.allows_absence and other.allows_absence else CONTRADICTION

    def _within_bounds(self, value: str) -> bool:
        if self.at_least is None and self.at_most is None:
            return True
        number = _as_integer(value)
        if number is None:
            return False
        return (self.at_least is None or number >= self.at_least) and (
            self.at_most is None or number <= self.at_most
        )


NOTHING = ValueSet()
"""The set of `DoesNotExist`: no value is allowed."""

CONTRADICTION = ValueSet(exists=True)
"""The set that no node meets."""

ANYTHING = ValueSet(complement=True)
"""The set of `Exists`: every value is allowed."""

Requirements = Mapping[str, ValueSet]
"""Normalized label key to its allowed values; every entry must hold."""


def one_of(*values: str) -> ValueSet:
    """Return the set of exactly these values; without any, it is a contradiction."""
    return ValueSet(frozenset(values)) if values else CONTRADICTION


def value_set(operator: str, values: Iterable[str]) -> ValueSet:
    """Return the set of values that an operator with its values allows.

    Raises:
        ValueError: the operator is unknown, or a bound is not one integer.

    """
    named = tuple(values)
    match operator:
        case "In":
            return one_of(*named)
        case "NotIn":
            return ValueSet(frozenset(named), complement=True)
        case "Exists":
            return ANYTHING
        case "DoesNotExist":
            return NOTHING
        case "Gt":
            return ValueSet(complement=True, at_least=_bound(operator, named) + 1)
        case "Gte":
            return ValueSet(complement=True, at_least=_bound(operator, named))
        case "Lt":
            return ValueSet(complement=True, at_most=_bound(operator, named) - 1)
        case "Lte":
            return ValueSet(complement=True, at_most=_bound(operator, named))
        case _:
            raise ValueError(
                f"operator {operator!r} is not one of In, NotIn, Exists, "
                "DoesNotExist, Gt, Lt, Gte, Lte"
            )


def read(terms: Iterable[Requirement]) -> dict[str, ValueSet]:
    """Return the requirements of a list of terms; several terms on one label intersect.

    If terms contradict each other, no node meets the set of their label.

    Raises:
        ValueError: a term is malformed.

    """
    result: dict[str, ValueSet] = {}
    for term in terms:
        narrow(result, labels.normalize(term.key), value_set(term.operator, term.values))
    return result


def of_labels(values: Mapping[str, str]) -> dict[str, ValueSet]:
    """Return the requirements that each of these labels has its value."""
    result: dict[str, ValueSet] = {}
    for key, value in values.items():
        narrow(result, labels.normalize(key), one_of(value))
    return result


def narrow(requirements: dict[str, ValueSet], key: str, values: ValueSet) -> None:
    """Add one condition on a label to the requirements, in place."""
    current = requirements.get(key)
    requirements[key] = values if current is None else current.intersection(values)


def conjunction(*parts: Requirements) -> dict[str, ValueSet]:
    """Return the requirements that hold if all parts hold.

    No node meets the set of a label on which the parts contradict each other: see `is_possible`.
    """
    result: dict[str, ValueSet] = {}
    for part in parts:
        for key, values in part.items():
            narrow(result, key, values)
    return result


def is_possible(requirements: Requirements) -> bool:
    """Whether the requirements of each label leave something; `contradiction` names two sides."""
    return not any(values.is_contradiction for values in requirements.values())


def contradiction(*parts: Requirements) -> tuple[str, ValueSet, ValueSet] | None:
    """Return a label and two value sets that contradict each other; None if all parts can hold.

    The second set is that of the first part that contradicts earlier parts. The first set is the
    values of the label that all earlier parts allow.
    """
    known: dict[str, ValueSet] = {}
    for part in parts:
        for key, values in part.items():
            current = known.get(key)
            if current is not None and not current.meets(values):
                return key, current, values
            known[key] = values if current is None else current.intersection(values)
    return None


def minimum_values(terms: Iterable[Requirement]) -> dict[str, int]:
    """Return the largest `minValues` of each label: how many of its values must stay possible."""
    result: dict[str, int] = {}
    for term in terms:
        if term.min_values:
            key = labels.normalize(term.key)
            result[key] = max(result.get(key, 0), term.min_values)
    return result


def met_by_labels(requirements: Requirements, values: Mapping[str, str]) -> bool:
    """Whether a node with exactly these labels meets the requirements."""
    return all(
        allowed.has(values[key]) if key in values else allowed.allows_absence
        for key, allowed in requirements.items()
    )


def meets(offered: ValueSet | None, needed: ValueSet, *, key: str) -> bool:
    """Whether a label of a new node can get a value in `needed`.

    `offered` are the values that the NodePool and the instance type allow; None if they do not
    mention the label. A well-known label then gets its value from the cloud, so any value is
    possible. Any other label is absent.
    """
    if offered is None:
        return needed.allows_absence or (key in labels.WELL_KNOWN and not needed.is_contradiction)
    return offered.meets(needed)


def as_terms(
    requirements: Requirements, minimums: Mapping[str, int] | None = None
) -> tuple[Requirement, ...]:
    """Return requirements as terms, sorted by key; bounds become `Gte` and `Lte` terms.

    `minimums` are the `minValues` per label.
    """
    minimums = minimums or {}
    result: list[Requirement] = []
    for key in sorted(requirements):
        result.extend(_terms(key, requirements[key], minimums.get(key)))
    return tuple(result)


def _terms(key: str, allowed: ValueSet, minimum: int | None) -> list[Requirement]:
    """Return the terms of one label. `minimum` is attached to the last term as its `minValues`."""
    terms = []
    if allowed.at_least is not None:
        terms.append(Requirement(key=key, operator="Gte", values=[str(allowed.at_least)]))
    if allowed.at_most is not None:
        terms.append(Requirement(key=key, operator="Lte", values=[str(allowed.at_most)]))
    if allowed.exists:
        terms.append(Requirement(key=key, operator="Exists"))
    if allowed.values:
        operator = "NotIn" if allowed.complement else "In"
        terms.append(Requirement(key=key, operator=operator, values=sorted(allowed.values)))
    elif not allowed.complement:
        terms.append(Requirement(key=key, operator="DoesNotExist"))
    elif not terms:
        terms.append(Requirement(key=key, operator="Exists"))
    if minimum:
        last = terms.pop()
        terms.append(
            Requirement(key=key, operator=last.operator, values=last.values, min_values=minimum)
        )
    return terms


def any_value(allowed: ValueSet) -> str | None:
    """Return one allowed value, or None if there is none.

    Of listed values it is the first in alphabetical order, otherwise an integer. The result depends
    only on the set.
    """
    if not allowed.complement:
        return min(allowed.values, default=None)
    number = allowed.at_least if allowed.at_least is not None else 0
    if allowed.at_most is not None and allowed.at_least is None:
        number = min(number, allowed.at_most)
    while str(number) in allowed.values:
        number += 1
    return str(number) if allowed.has(str(number)) else None


def text(allowed: ValueSet, *, bare: bool = False) -> str:
    """Return a value set as text, with at most three values; `bare` omits the operator `In`."""
    values: Sequence[str] = sorted(allowed.values)
    shown = shown_values(values[:3]) + (", …" if len(values) > 3 else "")
    if allowed.complement:
        bounds = [
            f"{sign} {bound}"
            for sign, bound in ((">=", allowed.at_least), ("<=", allowed.at_most))
            if bound is not None
        ]
        if values:
            bounds += ["Exists"] * allowed.exists + [f"NotIn [{shown}]"]
        return " ".join(bounds) or "Exists"
    if not values:
        return "DoesNotExist"
    return shown if bare else f"In [{shown}]"


def _bound(operator: str, values: tuple[str, ...]) -> int:
    number = _as_integer(values[0]) if len(values) == 1 else None
    if number is None:
        raise ValueError(f"{operator} needs exactly one integer, not {list(values)!r}")
    return number


def _as_integer(value: str) -> int | None:
    """Return the integer that a text is, or None if kube-scheduler does not read it as one."""
    if not _INTEGER.fullmatch(value):
        return None
    number = int(value)
    return number if _LEAST <= number <= _GREATEST else None


def _tightest(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)
