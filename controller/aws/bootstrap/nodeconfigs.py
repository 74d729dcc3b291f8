"""The NodeConfig documents of a user's `spec.userData`, which nodeadm reads on AL2023.

A node whose nodeadm cannot read a document does not join. So the documents are checked before a
launch. Messages do not repeat the content, which may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

NODE_CONFIG = "application/node.eks.aws"
"""The content type of a NodeConfig in MIME."""

GROUP = "node.eks.aws"
KIND = "NodeConfig"

_INTENDED = re.compile(
    r"^(apiVersion: *['\"]?node\.eks\.aws|kind: *['\"]?NodeConfig)", re.MULTILINE
)

SHAPES: Mapping[str, tuple[type, str]] = {
    "spec": (dict, "a map"),
    "spec.cluster": (dict, "a map"),
    "spec.containerd": (dict, "a map"),
    "spec.containerd.config": (str, "a text"),
    "spec.instance": (dict, "a map"),
    "spec.featureGates": (dict, "a map"),
    "spec.kubelet": (dict, "a map"),
    "spec.kubelet.config": (dict, "a map"),
    "spec.kubelet.flags": (list, "a list of texts"),
}
"""The types of the fields that users set."""


class UserDataError(ValueError):
    """The user's `spec.userData` cannot be merged; the message says why."""


def is_node_config(text: str) -> bool:
    """Return whether text without MIME headers is meant to be a NodeConfig, valid or not.

    It is if it is a YAML map, or says so at the beginning of a line.
    """
    if text.lstrip().startswith("#!"):
        return False
    try:
        return isinstance(yaml.safe_load(text), dict) or _INTENDED.search(text) is not None
    except (yaml.YAMLError, ValueError, RecursionError):  # for example, a date that does not exist
        return _INTENDED.search(text) is not None


def check_node_config(text: str) -> None:
    """Check that nodeadm can read a NodeConfig.

    Raises:
        UserDataError: it cannot.

    """
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.MarkedYAMLError as error:
        where = error.problem_mark
        place = f" (line {where.line + 1}, column {where.column + 1})" if where else ""
        raise UserDataError(f"spec.userData: a NodeConfig is not valid YAML{place}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserDataError("spec.userData: a NodeConfig is not valid YAML") from None
    if len(documents) != 1:
        raise UserDataError(
            f"spec.userData: {len(documents)} YAML documents in one NodeConfig part; nodeadm reads "
            "one: put each into its own MIME part"
        )
    (document,) = documents
    if not isinstance(document, dict):
        raise UserDataError("spec.userData: a NodeConfig is not a YAML map")
    group = str(document.get("apiVersion", "")).partition("/")[0]
    if (group, document.get("kind")) != (GROUP, KIND):
        raise UserDataError(
            f"spec.userData is a YAML map, but not a {KIND}: it needs apiVersion: {GROUP}/v1alpha1 "
            f"and kind: {KIND}; a script begins with #!, and cloud-init's YAML with #cloud-config"
        )
    for path, (kind, name) in SHAPES.items():
        value = _at(document, path)
        if value is not None and not isinstance(value, kind):
            raise UserDataError(f"spec.userData: {path} of the {KIND} is not {name}")
    if not all(isinstance(flag, str) for flag in _at(document, "spec.kubelet.flags") or ()):
        raise UserDataError(
            f"spec.userData: spec.kubelet.flags of the {KIND} is not a list of texts"
        )


def _at(document: Any, path: str) -> Any:
    """Return the value at a dotted path; None if there is none."""
    for key in path.split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document
