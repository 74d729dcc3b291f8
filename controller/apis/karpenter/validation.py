"""Validation of NodePools and NodeOverlays at run time.

It covers rules that a CRD cannot express, and objects that were created before a rule existed. Each
problem names the field, the value and the allowed values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeoverlay import MAX_PRICE, NodeOverlay
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.quantities import amount
from controller.apis.kubernetes.taints import Requirement, Taint

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute", "")

KNOWN_VALUES: Mapping[str, frozenset[str]] = {
    labels.CAPACITY_TYPE: frozenset({labels.ON_DEMAND, labels.SPOT, labels.RESERVED}),
    f"{labels.AWS_GROUP}/instance-tenancy": frozenset({"default", "dedicated"}),
}
"""Labels with a fixed set of values."""

NUMERIC = frozenset(
    f"{labels.AWS_GROUP}/instance-{name}"
    for name in (
        *("accelerator-count", "cpu", "cpu-sustained-clock-speed-mhz", "ebs-bandwidth"),
        *("generation", "gpu-count", "gpu-memory", "local-nvme", "memory", "network-bandwidth"),
    )
)
"""Labels whose values are whole numbers."""

_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PRICE = re.compile(r"([0-9]+(?:\.[0-9]+)?)")
_CHANGE = re.compile(r"[+-]([0-9]*\.?[0-9]+)%?")
_WHOLE_NUMBER = re.compile(r"[0-9]+")

MOST_IN_LABEL = 63
"""Maximum number of characters of a label's value."""


def problems(pool: NodePool) -> list[str]:
    """Return everything that is invalid in a NodePool; empty if it is valid."""
    template = pool.spec.template
    return [
        *_node_label_problems("metadata.name", pool.metadata.name),
        *_node_label_problems("nodeClassRef.name", template.spec.node_class_ref.name),
        *_expiry_problems(pool),
        *_label_problems(template.metadata.labels or {}),
        *_taint_problems([*(template.spec.taints or ()), *(template.spec.startup_taints or ())]),
        *_requirement_problems(template.spec.requirements, pool_owned=True),
        *_amount_problems("limits", pool.spec.limits),
    ]


def overlay_problems(overlay: NodeOverlay) -> list[str]:
    """Return everything that is invalid in a NodeOverlay; empty if it is valid."""
    return [
        *_requirement_problems(overlay.spec.requirements, pool_owned=False),
        *_amount_problems("capacity", overlay.spec.capacity),
        *_price_problems("price", overlay.spec.price, _PRICE),
        *_price_problems("priceAdjustment", overlay.spec.price_adjustment, _CHANGE),
    ]


def is_restricted(key: str) -> bool:
    """Whether a label is restricted: users cannot set or require it."""
    if key in labels.WELL_KNOWN or key == labels.EC2NODECLASS:
        return False
    domain = key.partition("/")[0]
    return key == labels.HOSTNAME or any(
        domain == reserved or domain.endswith(f".{reserved}")
        for reserved in labels.RESTRICTED_DOMAINS
    )


def _node_label_problems(field: str, name: str) -> Iterator[str]:
    """Check a name that is the value of a label on every NodeClaim and Node of the NodePool."""
    if len(name) > MOST_IN_LABEL:
        yield (
            f"{field}: {len(name)} characters; a label on each node has this name as its value, so "
            f"up to {MOST_IN_LABEL} are allowed"
        )


def _expiry_problems(pool: NodePool) -> Iterator[str]:
    """Check that new nodes do not expire at once; with a limit of 0, there are no new nodes."""
    expire_after = pool.spec.template.spec.expire_after
    try:
        lifetime = durations.parse(expire_after)
    except ValueError as exc:
        yield f"expireAfter: {exc}"
        return
    if lifetime == timedelta() and "0" not in map(str, pool.spec.limits.values()):
        yield (
            f"expireAfter: {expire_after!r} deletes each node as soon as it is created; allowed "
            "are a longer time, such as 720h, and Never"
        )


def _label_problems(template_labels: Mapping[str, str]) -> Iterator[str]:
    for key, value in template_labels.items():
        if fault := _name_fault(key) or _key_fault(key, pool_owned=True):
            yield f"label {key!r}: {fault}"
        if fault := _value_fault(value):
            yield f"label {key!r}: value {value!r} {fault}"


def _taint_problems(taints: Sequence[Taint]) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for taint in taints:
        if fault := _name_fault(taint.key):
            yield f"taint {taint.key!r}: {fault}"
        if taint.value and (fault := _name_fault(taint.value)):
            yield f"taint {taint.key!r}: value {taint.value!r}: {fault}"
        if taint.effect not in EFFECTS:
            yield f"taint {taint.key!r}: effect {taint.effect!r} is not one of " + ", ".join(
                EFFECTS[:-1]
            )
        if (taint.key, taint.effect) in seen:
            yield f"taint {taint.key!r}: effect {taint.effect!r} is given twice"
        seen.add((taint.key, taint.effect))


def _requirement_problems(
    requirements: Sequence[Requirement], *, pool_owned: bool
) -> Iterator[str]:
    for requirement in requirements:
        key = labels.normalize(requirement.key)
        name = f"requirement {requirement.key!r} {requirement.operator}"
        if fault := _name_fault(key) or _key_fault(key, pool_owned=pool_owned):
            yield f"{name}: {fault}"
        for value in requirement.values:
            if fault := _value_fault(value):
                yield f"{name}: value {value!r} {fault}"
        yield from (f"{name}: {fault}" for fault in _operator_faults(requirement))
        if fault := _known_value_fault(key, requirement):
            yield f"{name}: {fault}"


def _operator_faults(requirement: Requirement) -> Iterator[str]:
    values, minimum = requirement.values, requirement.min_values
    match requirement.operator:
        case "In":
            if not values:
                yield "needs at least one value"
            if minimum is not None and len(values) < minimum:
                yield f"minValues is {minimum}, but there are only {len(values)} values"
        case "Gt" | "Lt" | "Gte" | "Lte":
            if len(values) != 1 or not _is_whole_number(values[0]):
                yield (
                    "needs exactly one value, a whole number of at least 0 and less than 2^63, not "
                    f"{values!r}"
                )
        case operator if operator not in OPERATORS:
            yield "the operator must be one of " + ", ".join(OPERATORS)


def _is_whole_number(text: str) -> bool:
    return _WHOLE_NUMBER.fullmatch(text) is not None and int(text) < 2**63


def _price_problems(field: str, written: str | None, pattern: re.Pattern[str]) -> Iterator[str]:
    if written is None:
        return
    number = pattern.fullmatch(written)
    if number is None or float(number.group(1)) > MAX_PRICE:
        yield (
            f"{field}: {written!r} is not in $ per hour up to {MAX_PRICE:,.0f}, such as 0.25"
            + (", +0.1 or -10%" if pattern is _CHANGE else "")
        )


def _amount_problems(field: str, written: Mapping[str, str | int | float]) -> Iterator[str]:
    for name, quantity in written.items():
        try:
            amount(quantity)
        except ValueError as exc:
            yield f"{field}: {name}: {exc}"


def _known_value_fault(key: str, requirement: Requirement) -> str:
    known = KNOWN_VALUES.get(key)
    if requirement.operator != "In" or not requirement.values:
        return ""
    if key in NUMERIC and not any(_is_whole_number(value) for value in requirement.values):
        return f"none of {requirement.values!r} exists; the label's values are whole numbers"
    if known is None:
        return ""
    usable = known.intersection(requirement.values)
    allowed = ", ".join(sorted(known))
    if not usable:
        return f"none of {requirement.values!r} exists; allowed are {allowed}"
    if len(usable) < (requirement.min_values or 0):
        return (
            f"minValues is {requirement.min_values}, but only {sorted(usable)!r} of {allowed} fit"
        )
    return ""


def _key_fault(key: str, *, pool_owned: bool) -> str:
    if pool_owned and key == labels.NODEPOOL:
        return "is set by the controller on every node of the pool"
    if is_restricted(key):
        return "is managed by the controller and cannot be set or required"
    return ""


def _name_fault(key: str) -> str:
    prefix, slash, name = key.rpartition("/")
    if not _NAME.fullmatch(name) or len(name) > MOST_IN_LABEL:
        return (
            "is not a qualified name: up to 63 letters, digits, '-', '_', '.', "
            "beginning and ending with a letter or digit"
        )
    if slash and (not _SUBDOMAIN.fullmatch(prefix) or len(prefix) > 253):
        return "is not a qualified name: the part before '/' must be a DNS subdomain"
    return ""


def _value_fault(value: str) -> str:
    if value and (len(value) > MOST_IN_LABEL or not _NAME.fullmatch(value)):
        return (
            "is not a label value: up to 63 letters, digits, '-', '_', '.', "
            "beginning and ending with a letter or digit"
        )
    return ""
