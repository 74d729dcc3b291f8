"""A NodePool that can never be Ready is named before `pulumi up` waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis import labels
from infra.guards.poolreadiness import FAMILY, never_ready
from infra.nodepools import default_manifests

ZONES = frozenset({"us-west-2a", "us-west-2b", "us-west-2c"})


def manifests(*requirements: dict[str, Any], node_class: str = "default") -> list[dict[str, Any]]:
    """Return the default manifests with other requirements and another reference."""
    node_class_wire, pool = default_manifests()
    spec = pool["spec"]["template"]["spec"]
    spec["requirements"] = list(requirements)
    spec["nodeClassRef"] = {**spec["nodeClassRef"], "name": node_class}
    return [node_class_wire, pool]


def within(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def reported(wires: list[dict[str, Any]], *, classes: frozenset[str] = frozenset()) -> list[str]:
    return never_ready(wires, zones=lambda: ZONES, classes=classes)


@pytest.mark.parametrize(
    ("wires", "cause"),
    [
        (manifests(within(FAMILY, "m55")), f"no instance type has {FAMILY} In [m55]; did you mean"),
        (
            manifests(within(labels.INSTANCE_TYPE, "m5.lagre")),
            f"no instance type has {labels.INSTANCE_TYPE} In [m5.lagre]; did you mean m5.large?",
        ),
        (
            manifests(within(labels.ZONE, "eu-central-1a")),
            f"no instance type has {labels.ZONE} In [eu-central-1a]: allowed are us-west-2a, "
            "us-west-2b, us-west-2c",
        ),
        (
            manifests(node_class="defualt"),
            "EC2NodeClass defualt is neither in this stack nor in the cluster: create it, or "
            "correct spec.template.spec.nodeClassRef.name; did you mean default?",
        ),
    ],
)
def test_a_nodepool_that_can_never_be_ready_is_named_with_the_cause(
    wires: list[dict[str, Any]], cause: str
) -> None:
    (line,) = reported(wires)

    assert line.startswith(f"NodePool default would never be Ready: {cause}")


def test_a_nodepool_that_may_be_ready_is_not_named() -> None:
    placeholders = within(FAMILY, "${FAMILY}")
    possible = within(FAMILY, "m55", "m5"), within(labels.ZONE, "us-west-2a")

    assert reported(default_manifests()) == []
    assert reported(manifests(placeholders, *possible)) == []
    assert reported(manifests(node_class="shared"), classes=frozenset({"shared"})) == []
