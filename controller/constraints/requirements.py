"""Requirements over labels: which values a label may have, and how two such sets meet.

One label is a `ValueSet`; a conjunction over many labels is a `Requirements`
mapping. Bounds (`Gt`, `Lt`, `Gte`, `Lte`) hold for values that read as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from controller.apis import labels
from controller.apis.taints import Requirement


@dataclass(frozen=True, slots=True)
class ValueSet:
    """The values a label may have: those named, or (complement) all but those named.

    The empty set is `DoesNotExist`; the complement of nothing is `Exists`.
    """

    values: frozenset[str] = frozenset()
    complement: bool = False
    at_least: int | None = None
    at_most: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no value is left, which is how an absent label reads."""
        return not self.complement and not self.values

    @property
    def allows_absence(self) -> bool:
        """Whether a node without the label meets it (`NotIn`, `DoesNotExist`)."""
        if not self.complement:
            return not self.values
        return bool(self.values) and self.at_least is None and self.at_most is None

    @property
    def single(self) -> str | None:
        """The value, when only one is left."""
        if self.complement or len(self.values) != 1:
            return None
        return next(iter(self.values))

    def has(self, value: str) -> bool:
        """Whether the label may have this value."""
        return (value in self.values) != self.complement and self._within_bounds(value)

    def meets(self, other: ValueSet) -> bool:
        """Whether the two can hold at once: a common value, or both content without any."""
        if self.allows_absence and other.allows_absence:
            return True
        return not self.intersection(other).is_empty

    def intersection(self, other: ValueSet) -> ValueSet:
        """Return the values allowed by both."""
        at_least = _tightest(max, self.at_least, other.at_least)
        at_most = _tightest(min, self.at_most, other.at_most)
        if at_least is not None and at_most is not None and at_least > at_most:
            return NOTHING
        bounded = ValueSet(complement=True, at_least=at_least, at_most=at_most)
        if self.complement and other.complement:
            return ValueSet(self.values | other.values, True, at_least, at_most)
        if self.complement:
            named = other.values - self.values
        elif other.complement:
            named = self.values - other.values
        else:
            named = self.values & other.values
        return ValueSet(frozenset(value for value in named if bounded.has(value)))

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
"""`DoesNotExist`."""

ANYTHING = ValueSet(complement=True)
"""`Exists`."""

Requirements = Mapping[str, ValueSet]
"""Label key (its current name) to the values it may have; every entry must hold."""


def one_of(*values: str) -> ValueSet:
    """Return the set of exactly these values."""
    return ValueSet(frozenset(values))


def value_set(operator: str, values: Iterable[str]) -> ValueSet:
    """Read one operator with its values.

    Raises:
        ValueError: the operator is unknown, or a bound is not one integer.

    """
    named = tuple(values)
    match operator:
        case "In":
            return ValueSet(frozenset(named))
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
    """Read a conjunction; several terms over one label intersect.

    Raises:
        ValueError: a term is malformed.

    """
    result: dict[str, ValueSet] = {}
    for term in terms:
        narrow(result, labels.normalized(term.key), value_set(term.operator, term.values))
    return result


def of_labels(values: Mapping[str, str]) -> dict[str, ValueSet]:
    """Read labels as the requirement that each has its value."""
    result: dict[str, ValueSet] = {}
    for key, value in values.items():
        narrow(result, labels.normalized(key), one_of(value))
    return result


def narrow(requirements: dict[str, ValueSet], key: str, values: ValueSet) -> None:
    """Add one more condition on a label, in place."""
    held = requirements.get(key)
    requirements[key] = values if held is None else held.intersection(values)


def conjunction(*parts: Requirements) -> dict[str, ValueSet]:
    """Return the requirements that hold when all of these do."""
    result: dict[str, ValueSet] = {}
    for part in parts:
        for key, values in part.items():
            narrow(result, key, values)
    return result


def agreement(*parts: Requirements) -> dict[str, ValueSet] | None:
    """Return the requirements that hold when all of these do, or None when they never can.

    A conjunction alone cannot tell: what contradicts itself leaves no value, which reads
    like a wish for the label's absence.
    """
    result: dict[str, ValueSet] = {}
    for part in parts:
        for key, values in part.items():
            held = result.get(key)
            if held is not None and not held.meets(values):
                return None
            result[key] = values if held is None else held.intersection(values)
    return result


def single(term: Requirement) -> dict[str, ValueSet]:
    """Read one term.

    Raises:
        ValueError: it is malformed.

    """
    return {labels.normalized(term.key): value_set(term.operator, term.values)}


def minimum_values(terms: Iterable[Requirement]) -> dict[str, int]:
    """Return, per label, how many values must stay possible (the largest asked for)."""
    result: dict[str, int] = {}
    for term in terms:
        if term.min_values:
            key = labels.normalized(term.key)
            result[key] = max(result.get(key, 0), term.min_values)
    return result


def met_by_labels(requirements: Requirements, values: Mapping[str, str]) -> bool:
    """Whether a node with these labels, and no others, meets the requirements."""
    return all(
        allowed.has(values[key]) if key in values else allowed.allows_absence
        for key, allowed in requirements.items()
    )


def meets(offered: ValueSet | None, needed: ValueSet, *, key: str) -> bool:
    """Whether what a new node offers for a label can meet what is needed.

    A well-known label that nothing speaks of is filled in by the cloud, so anything
    goes; any other is absent.
    """
    if offered is None:
        return key in labels.WELL_KNOWN or needed.allows_absence
    return offered.meets(needed)


def written(
    requirements: Requirements, minimums: Mapping[str, int] | None = None
) -> tuple[Requirement, ...]:
    """Write requirements as terms, sorted by key; bounds become `Gte` and `Lte` terms."""
    minimums = minimums or {}
    result: list[Requirement] = []
    for key in sorted(requirements):
        result.extend(_terms(key, requirements[key], minimums.get(key)))
    return tuple(result)


def _terms(key: str, allowed: ValueSet, minimum: int | None) -> list[Requirement]:
    terms = []
    if allowed.at_least is not None:
        terms.append(Requirement(key=key, operator="Gte", values=[str(allowed.at_least)]))
    if allowed.at_most is not None:
        terms.append(Requirement(key=key, operator="Lte", values=[str(allowed.at_most)]))
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


def a_value(allowed: ValueSet) -> str | None:
    """Return one allowed value, always the same: the first named, or the least free integer."""
    if not allowed.complement:
        return min(allowed.values, default=None)
    number = allowed.at_least if allowed.at_least is not None else 0
    if allowed.at_most is not None and allowed.at_least is None:
        number = min(number, allowed.at_most)
    while str(number) in allowed.values:
        number += 1
    return str(number) if allowed.has(str(number)) else None


def _bound(operator: str, values: tuple[str, ...]) -> int:
    number = _as_integer(values[0]) if len(values) == 1 else None
    if number is None:
        raise ValueError(f"{operator} needs exactly one integer, not {list(values)!r}")
    return number


def _as_integer(value: str) -> int | None:
    try:
        return int(value)
    except ValueError:
        return None


def _tightest(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)
