"""Validates `spec.kubelet` of an EC2NodeClass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from controller.apis.karpenter.ec2nodeclass import EVICTION_SIGNALS, RESERVABLE
from controller.apis.kubernetes.quantities import parse
from controller.aws.bootstrap.families import Family
from controller.aws.bootstrap.kubeletexpressions import expressions, is_quantity
from controller.aws.bootstrap.kubeletfields import DURATION, invalid_field

COUNTS = ("maxPods", "podsPerCore", "evictionMaxPodGracePeriod")
PERCENTAGES = ("imageGCHighThresholdPercent", "imageGCLowThresholdPercent")

_NO_TEXT = "is not a string: put it in quotes"

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
    """Return the settings that the kubelet would reject, each with the reason.

    Expressions are not validated.
    """
    return [f"spec.kubelet.{problem}" for problem in _problems(kubelet)]


def closed(kubelet: Mapping[str, Any]) -> str:
    """Return a message about the fields with expressions, which need the gate NodeClassCEL.

    It is empty if no field has an expression.
    """
    wanted = {"maxPods": "whole number"}
    return "; ".join(
        f"spec.kubelet.{path}: {text!r} is not a {wanted.get(path, 'quantity')}, and "
        "expressions need AWS_FEATURE_GATES=NodeClassCEL=true"
        for path, text in expressions(kubelet)
    )


def unsupported(kubelet: Mapping[str, Any], family: Family) -> list[str]:
    """Return the fields that the AMI family does not support."""
    if family.name in ("AL2023", "Custom"):
        return []
    fields = sorted(set(kubelet) - PORTABLE)
    if not family.supports_pods_per_core and kubelet.get("podsPerCore"):
        fields.append("podsPerCore")
    if len(kubelet.get("clusterDNS") or []) > 1:
        fields.append("clusterDNS with more than one address")
    return fields


def _problems(kubelet: Mapping[str, Any]) -> Iterator[str]:
    unreadable = invalid_field(kubelet)
    if unreadable:
        yield unreadable
    if "registerWithTaints" in kubelet:
        yield "registerWithTaints is set by the controller: set taints on the NodePool"
    for name in ("kubeReserved", "systemReserved"):
        yield from _amounts(name, kubelet.get(name), RESERVABLE)
    for name in ("evictionHard", "evictionSoft", "evictionMinimumReclaim"):
        yield from _signals(name, kubelet.get(name), _threshold)
    yield from _signals("evictionSoftGracePeriod", kubelet.get("evictionSoftGracePeriod"), _grace)
    soft, grace = kubelet.get("evictionSoft") or {}, kubelet.get("evictionSoftGracePeriod") or {}
    if isinstance(soft, Mapping) and isinstance(grace, Mapping) and set(soft) != set(grace):
        yield "evictionSoft and evictionSoftGracePeriod must have the same signals as keys"
    for name in COUNTS:
        if name != "maxPods" or not isinstance(kubelet.get(name), str):
            yield from _whole(name, kubelet.get(name), 2**31 - 1)
    for name in PERCENTAGES:
        yield from _whole(name, kubelet.get(name), 100)
    high, low = (kubelet.get(name) for name in PERCENTAGES)
    if isinstance(high, int) and isinstance(low, int) and high <= low:
        yield "imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent"


def _amounts(name: str, amounts: Any, allowed: tuple[str, ...]) -> Iterator[str]:
    if amounts is None:
        return
    if not isinstance(amounts, Mapping):
        yield f"{name} must be a map from resource to quantity"
        return
    for key, amount in amounts.items():
        if key not in allowed:
            yield f"{name}: {key!r} is not one of {', '.join(allowed)}"
        elif not isinstance(amount, str):
            yield f"{name}.{key}: {amount!r} {_NO_TEXT}"
        elif is_quantity(amount) and not _is_amount(amount):
            yield f"{name}.{key}: {amount!r} is not a quantity of at least 0, such as 100m or 1Gi"


def _signals(name: str, values: Any, wrong: Callable[[str], str]) -> Iterator[str]:
    if values is None:
        return
    if not isinstance(values, Mapping):
        yield f"{name} must be a map with eviction signals as keys"
        return
    for signal, value in values.items():
        if signal not in EVICTION_SIGNALS:
            yield f"{name}: {signal!r} is not one of {', '.join(EVICTION_SIGNALS)}"
        elif not isinstance(value, str):
            yield f"{name}.{signal}: {value!r} {_NO_TEXT}"
        elif problem := wrong(value):
            yield f"{name}.{signal}: {value!r} {problem}"


def _threshold(text: str) -> str:
    return "" if _is_amount(text) or _is_share(text) else "is neither a quantity nor 0% to 100%"


def _grace(text: str) -> str:
    if re.match(DURATION, text) and not text.startswith("-"):
        return ""
    return "is not a duration of at least 0, such as 1m30s"


def _is_amount(text: str) -> bool:
    return is_quantity(text) and parse(text) >= 0


def _is_share(text: str) -> bool:
    return re.fullmatch(r"\+?(\d+\.?\d*|\.\d+)%", text) is not None and float(text[:-1]) <= 100


def _whole(name: str, value: Any, most: int) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        yield f"{name}: {value!r} is not a whole number from 0 to {most}"
