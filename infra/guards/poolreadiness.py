"""NodePools of a stack that can never be Ready, for which `pulumi up` would wait in vain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import botocore.session

from controller.apis import labels
from controller.apis.kinds import EC2_NODE_CLASS, NODE_POOL
from controller.options import nearest
from infra.clusterapi import ClusterLocation

Wire = Mapping[str, Any]

FAMILY = "karpenter.k8s.aws/instance-family"


def never_ready(
    manifests: Sequence[Wire], *, zones: Callable[[], Collection[str]], classes: Collection[str]
) -> list[str]:
    """Return a sentence for each NodePool that can never be Ready, with the cause and what to do.

    `zones` returns the availability zones of the region. `classes` are the names of the
    EC2NodeClasses of the cluster. Values with placeholders are not checked.
    """
    own = {_name(wire) for wire in manifests if wire["kind"] == EC2_NODE_CLASS.name}
    return [
        f"NodePool {_name(wire)} would never be Ready: {cause}"
        for wire in manifests
        if wire["kind"] == NODE_POOL.name
        for cause in _causes(wire["spec"]["template"]["spec"], zones, {*own, *classes})
    ]


def zones_of(location: ClusterLocation) -> Collection[str]:
    """Return the availability zones of the cluster's region, local zones included."""
    found = location.client("ec2").describe_availability_zones(AllAvailabilityZones=True)
    return {zone["ZoneName"] for zone in found["AvailabilityZones"]}


def _causes(
    spec: Wire, zones: Callable[[], Collection[str]], classes: Collection[str]
) -> Iterator[str]:
    reference = spec["nodeClassRef"]["name"]
    if reference not in classes and "$" not in reference:
        yield (
            f"EC2NodeClass {reference} is neither in this stack nor in the cluster: create it, or "
            f"correct spec.template.spec.nodeClassRef.name{nearest(reference, classes)}"
        )
    known: Mapping[str, Callable[[], Collection[str]]] = {
        FAMILY: lambda: {name.partition(".")[0] for name in _instance_types()},
        labels.INSTANCE_TYPE: _instance_types,
        labels.ZONE: zones,
    }
    for term in spec.get("requirements") or ():
        values = term.get("values") or ()
        if term["operator"] != "In" or term["key"] not in known or not values:
            continue
        possible = known[term["key"]]()
        if (
            possible
            and set(values).isdisjoint(possible)
            and not any("$" in each for each in values)
        ):
            few = f": allowed are {', '.join(sorted(possible))}" if len(possible) < 10 else ""
            yield (
                f"no instance type has {term['key']} In [{', '.join(values)}]"
                f"{nearest(values[0], possible) or few}"
            )


@cache
def _instance_types() -> frozenset[str]:
    """Return the names of EC2's instance types, as botocore's model of EC2 lists them."""
    model = botocore.session.get_session().get_service_model("ec2")
    return frozenset(model.shape_for("InstanceType").enum)


def _name(wire: Wire) -> str:
    return str(wire["metadata"]["name"])
