"""Validates `spec.kubelet` of an EC2NodeClass."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from controller.apis.karpenter.ec2nodeclass import EVICTION_SIGNALS, RESERVABLE
from controller.apis.kubernetes.quantities import parse
from controller.aws.bootstrap.families import Family
from controller.aws.bootstrap.kubeletexpressions import RESERVATIONS, expressions, is_quantity
from controller.aws.bootstrap.kubeletfields import DURATION, invalid_fields

COUNTS = ("podsPerCore", "evictionMaxPodGracePeriod", "maxPods")
PERCENTAGES = ("imageGCHighThresholdPercent", "imageGCLowThresholdPercent")
GRACE_PERIODS = "evictionSoftGracePeriod"

MOST = 2**31 - 1
"""The kubelet's largest whole number."""

LONGEST = 100
"""The number of characters of a value that a message shows."""

_SHARE = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?%")
_NO_TEXT = "must be a string: put it in quotes"
_NO_THRESHOLD = "must be a percentage or a resource quantity"
_NEGATIVE = "can't be a negative resource quantity"


class _Keys(NamedTuple):
    """The allowed keys of a map, and how messages name one of them and the map's form."""

    allowed: Sequence[str]
    noun: str
    form: str


_SIGNALS = _Keys(EVICTION_SIGNALS, "valid eviction signal", "with eviction signals as keys")
_RESOURCES = _Keys(RESERVABLE, "reservable resource", "from resource to quantity")

PORTABLE = frozenset(
    {
        "clusterDNS",
        "maxPods",
        "podsPerCore",
        "systemReserved",
        "kubeReserved",
        "evictionHard",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "evictionMaxPodGracePeriod",
        "imageGCHighThresholdPercent",
        "imageGCLowThresholdPercent",
        "cpuCFSQuota",
    }
)
"""Fields that every AMI family supports; AL2023 and Custom support all fields."""


def problems(kubelet: Mapping[str, Any]) -> list[str]:
    """Return the settings that the kubelet would reject or replace, each with the reason.

    CEL expressions are not validated. The messages are Karpenter's where it has one.
    """
    return [f"spec.kubelet{problem}" for problem in _problems(kubelet)]


def gate_problems(kubelet: Mapping[str, Any]) -> str:
    """Return why settings with CEL expressions are invalid while the gate NodeClassCEL is off.

    It is empty if no setting has an expression. The caller checks the gate.
    """
    wanted = {"maxPods": "whole number"}
    return "; ".join(
        f"spec.kubelet.{path}: {text!r} is not a {wanted.get(path, 'quantity')}, and "
        "expressions need AWS_FEATURE_GATES=NodeClassCEL=true"
        for path, text in expressions(kubelet)
    )


def unsupported_fields(kubelet: Mapping[str, Any], family: Family) -> list[str]:
    """Return the fields that the AMI family does not support."""
    if family.name in ("AL2023", "Custom"):
        return []
    fields = sorted(set(kubelet) - PORTABLE)
    if not family.supports_pods_per_core and kubelet.get("podsPerCore") is not None:
        fields.append("podsPerCore")
    if len(kubelet.get("clusterDNS") or []) > 1:
        fields.append("clusterDNS with more than one address")
    return fields


def _problems(kubelet: Mapping[str, Any]) -> Iterator[str]:
    yield from invalid_fields(kubelet)
    if "registerWithTaints" in kubelet:
        yield (
            ".registerWithTaints: can't be set, the controller sets it from the NodeClaim's "
            "taints; set spec.template.spec.taints of the NodePool"
        )
    for name in ("evictionHard", "evictionSoft", GRACE_PERIODS, "evictionMinimumReclaim"):
        wrong = _wrong_period if name == GRACE_PERIODS else _wrong_threshold
        yield from _entries(name, kubelet.get(name), _SIGNALS, wrong)
    yield from _unmatched_signals("evictionSoft", GRACE_PERIODS, kubelet)
    yield from _unmatched_signals(GRACE_PERIODS, "evictionSoft", kubelet)
    for name in RESERVATIONS:
        yield from _entries(name, kubelet.get(name), _RESOURCES, _wrong_amount)
    for name in PERCENTAGES:
        yield from _whole(name, kubelet.get(name), "must be between 0 and 100", most=100)
    for name in COUNTS:
        if name != "maxPods" or not isinstance(kubelet.get(name), str):
            yield from _whole(name, kubelet.get(name), "can't be negative")
    high, low = (kubelet.get(name) for name in PERCENTAGES)
    if _is_whole(high) and _is_whole(low) and high <= low:
        yield (
            f": imageGCHighThresholdPercent ({high}) must be greater than "
            f"imageGCLowThresholdPercent ({low})"
        )


def _entries(name: str, values: Any, keys: _Keys, wrong: Callable[[str], str]) -> Iterator[str]:
    """Yield the mistakes of a map; `wrong` returns why a value is invalid, empty if it is valid."""
    if values is None:
        return
    if not isinstance(values, Mapping):
        yield f".{name}: must be a map {keys.form}"
        return
    for key, value in sorted(values.items()):
        if key not in keys.allowed:
            yield (
                f".{name}: {_quote(key)} isn't a {keys.noun}, must be one of "
                f"{', '.join(keys.allowed)}"
            )
        if problem := wrong(value) if isinstance(value, str) else _NO_TEXT:
            yield f".{name}[{_shorten(key)}]: {_quote(value)} {problem}"


def _unmatched_signals(name: str, other: str, kubelet: Mapping[str, Any]) -> Iterator[str]:
    """Yield each signal of the soft eviction that only one of the two maps has."""
    signals, others = kubelet.get(name) or {}, kubelet.get(other) or {}
    if isinstance(signals, Mapping) and isinstance(others, Mapping):
        for signal in sorted(set(signals) - set(others)):
            yield f".{name}[{_shorten(signal)}]: has no matching {other}"


def _wrong_amount(text: str) -> str:
    # It may be an expression, which is validated elsewhere.
    return _NEGATIVE if text.startswith("-") else ""


def _wrong_threshold(text: str) -> str:
    if text.endswith("%"):
        is_share = _SHARE.fullmatch(text) is not None and 0 <= float(text[:-1]) <= 100
        return "" if is_share else _NO_THRESHOLD
    if not is_quantity(text):
        return _NO_THRESHOLD
    return _NEGATIVE if parse(text) < 0 else ""


def _wrong_period(text: str) -> str:
    if not re.fullmatch(DURATION, text):
        return "must be a duration, such as 1m30s"
    return "can't be a negative duration" if text.startswith("-") else ""


def _whole(name: str, value: Any, wrong: str, *, most: int = MOST) -> Iterator[str]:
    if value is None:
        return
    if not _is_whole(value) or not -MOST <= value <= MOST:
        yield f".{name}: {_quote(value)} must be a whole number, at most {most}"
    elif not 0 <= value <= most:
        yield f".{name}: {value} {wrong}"


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _quote(value: Any) -> str:
    """Return a value as JSON; long values are cut."""
    return _shorten(json.dumps(value, ensure_ascii=False))


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
