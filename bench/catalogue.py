"""Write the instance types and prices that Joiner reads, for Karpenter's kwok provider.

    python -m bench.catalogue POOL.yaml CLASS.json OUT.json

Both controllers then choose from one list: the instance types the NodePool allows, the allocatable
capacity of each, and the price of the instance in every zone and capacity type. CLASS.json is an
EC2NodeClass with resolved subnets and AMIs. The cloud and the cluster name come from the
environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodepool import NodePool
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.compatibility import Choice, choices
from controller.cloudprovider.instancetypes import Offering
from controller.constraints.resources import CPU, MEMORY, Resources, total
from controller.options import Options

KWOK_OVERHEAD = {CPU: 100, MEMORY: 10 * 2**20 * 1000}
"""What the kwok provider subtracts from the capacity of every instance type, in thousandths."""


def node_pool(manifests: Path) -> NodePool:
    """Return the first NodePool in a file of manifests. Raises ValueError if there is none."""
    for manifest in yaml.safe_load_all(manifests.read_text()):
        if manifest["kind"] == "NodePool":
            return msgspec.convert(manifest, NodePool, strict=False)
    raise ValueError(f"{manifests} has no NodePool")


async def allowed_types(pool: NodePool, node_class: EC2NodeClass) -> list[Choice]:
    """Return the instance types that the NodePool allows, read through Joiner's AWS adapter."""
    cloud = AWSCloudProvider(Options.parse([], os.environ))
    types = await cloud.instance_types(node_class, pool)
    return choices(types, pool.spec.template.spec.requirements, {})


def row(choice: Choice) -> dict[str, Any]:
    """Return one instance type as the kwok provider reads it.

    Its allocatable capacity is the same for both controllers.
    """
    kind = choice.instance_type
    architecture = next(r for r in kind.requirements if r.key == labels.ARCH)
    return {
        "name": kind.name,
        "architecture": architecture.values[0],
        "operatingSystems": ["linux"],
        "resources": _quantities(total((kind.allocatable, KWOK_OVERHEAD))),
        "offerings": [_offering(offering) for offering in choice.offerings],
    }


def _quantities(amounts: Resources) -> dict[str, str]:
    return {
        name: f"{amount}m" if name == CPU else str(amount // 1000)
        for name, amount in amounts.items()
    }


def _offering(offering: Offering) -> dict[str, Any]:
    named = {labels.CAPACITY_TYPE: offering.capacity_type, labels.ZONE: offering.zone}
    return {
        "Price": offering.instance_price,
        "Available": True,
        "Requirements": [
            {"key": key, "operator": "In", "values": [value]} for key, value in named.items()
        ],
    }


def main() -> int:
    """Write the list and print its length."""
    manifests, described, out = (Path(argument) for argument in sys.argv[1:])
    node_class = msgspec.json.decode(described.read_bytes(), type=EC2NodeClass)
    choices = asyncio.run(allowed_types(node_pool(manifests), node_class))
    out.write_text(json.dumps([row(choice) for choice in choices]))
    print(f"{len(choices)} types, {sum(len(choice.offerings) for choice in choices)} offerings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
