"""The labels that a user's `spec.userData` gives to nodes.

The kubelet sets the labels of its flag `--node-labels`, and Bottlerocket those of its settings. So
pods may select them, as they may select the labels of the NodePool.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from controller.apis import labels
from controller.apis.karpenter.validation import is_restricted
from controller.aws.bootstrap.families import BOTTLEROCKET, Family

_FLAG = re.compile(r"--node-labels(?:=|\s+)[\"']?([^\s\"'\\]+)")
_LABEL = re.compile(r"(?:[a-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*")
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?")

KUBELET_PREFIXES = ("node.kubernetes.io/", "kubelet.kubernetes.io/")
"""Labels of Kubernetes that a kubelet may set on its own node."""


@lru_cache(maxsize=64)
def labels_of_user_data(family: Family, text: str) -> Mapping[str, str]:
    """Return the labels that user data gives to each node.

    Labels that Joiner or the cloud sets are left out, and so are values that a script computes.
    """
    pairs = _of_settings(text) if family is BOTTLEROCKET else _of_flags(text)
    return {key: value for key, value in pairs if _can_be_set(key) and _VALUE.fullmatch(value)}


def _of_settings(text: str) -> Iterator[tuple[str, str]]:
    try:
        table: Any = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return  # the condition of the EC2NodeClass reports it
    for name in ("settings", "kubernetes", "node-labels"):
        table = table.get(name) if isinstance(table, dict) else None
    for key, value in table.items() if isinstance(table, dict) else ():
        if isinstance(value, str):
            yield key, value


def _of_flags(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if not line.lstrip().startswith("#"):
            for flag in _FLAG.finditer(line):
                for pair in flag[1].split(","):
                    key, equals, value = pair.partition("=")
                    if equals:
                        yield key, value


def _can_be_set(key: str) -> bool:
    if key in labels.WELL_KNOWN or labels.normalize(key) != key or is_restricted(key):
        return False
    prefix = key.rpartition("/")[0]
    is_of_kubernetes = any(
        prefix == domain or prefix.endswith(f".{domain}") for domain in ("kubernetes.io", "k8s.io")
    )
    return bool(_LABEL.fullmatch(key)) and (
        not is_of_kubernetes or key.startswith(KUBELET_PREFIXES)
    )
