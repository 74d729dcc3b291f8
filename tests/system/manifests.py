"""Manifests as users write them: NodePools and node classes like the demo's, and pods for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from testbed.environment import CHECKOUT
from testbed.kube.client import Object

DEMO = CHECKOUT / "testbed" / "nodepools" / "demo.yaml"


def node_pool(name: str, **spec: Any) -> Object:
    """Return the demo's NodePool under another name.

    The arguments replace parts of its spec or of its template's spec.
    """
    wire = _of_the_demo("NodePool", name)
    template = wire["spec"]["template"]["spec"]
    for key, value in spec.items():
        (template if key in ("nodeClassRef", "requirements", "taints") else wire["spec"])[key] = (
            value
        )
    return wire


def node_class(name: str, **spec: Any) -> Object:
    """Return the demo's node class under another name.

    The arguments replace parts of its spec; None removes one.
    """
    text = DEMO.read_text().replace("${CLUSTER_NAME}", "joiner")
    wire = _of_the_demo(
        "EC2NodeClass", name, text.replace("${INSTANCE_PROFILE}", "KarpenterNodeRole-joiner")
    )
    changed = {**wire["spec"], **spec}
    return {**wire, "spec": {key: value for key, value in changed.items() if value is not None}}


def _of_the_demo(kind: str, name: str, text: str = "") -> Object:
    wires = yaml.safe_load_all(text or DEMO.read_text())
    wire: Object = next(w for w in wires if w["kind"] == kind)
    return {**wire, "metadata": {"name": name}}


def class_ref(name: str) -> Mapping[str, str]:
    """Return the nodeClassRef of a node class."""
    return {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": name}


def need(key: str, operator: str, *values: str) -> Mapping[str, Any]:
    """Return a requirement."""
    return {"key": key, "operator": operator, "values": list(values)}


def in_pool(name: str) -> Mapping[str, Any]:
    """Return the node selector that restricts pods to one NodePool."""
    return {"nodeSelector": {"karpenter.sh/nodepool": name}}


def asking(requests: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a container's resources; devices are requested and limited."""
    limits = {name: amount for name, amount in requests.items() if "/" in name}
    resources = {"requests": requests, "limits": limits}
    return {"containers": [{"name": "main", "image": "none", "resources": resources}]}
