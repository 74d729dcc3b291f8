"""The page of instance types: the labels and the allocatable capacity of each, by family."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby

from controller.apis import labels
from controller.apis.kubernetes.quantities import MILLI
from controller.aws.bootstrap.families import family_of
from controller.aws.instancetypes.catalogue import (
    InstanceTypeInfo,
    Limits,
    capacity,
    instance_type_info,
    overhead,
    requirements,
    supports,
)
from controller.constraints.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, subtract
from testbed.cloud.ec2.instancetypes import TYPES
from tests.builders import make_nodeclass
from tests.docs import messages

HEAD = """\
# Instance types

Labels of nodes, and what a node offers to pods, by instance type. A requirement of a NodePool and a
node selector of a pod may name each label. Below a family are the labels that all its types share;
the table has those that differ.

- Labels without a group have `karpenter.k8s.aws/` before their names.
- `cpu`, `memory` (Mi), `ephemeral-storage` (Gi) and `pods` are allocatable: the capacity without
    what the kubelet reserves and keeps free, for AL2023 with a volume of 20 GiB,
    `VM_MEMORY_OVERHEAD_PERCENT=0.075` and no prefix delegation. Pods of DaemonSets use a part of
    it. Once a node of a type has joined, Joiner uses its real memory.
- No region offers all types. `joiner explain pod` says why a pod fits none of those that a NodePool
    allows.

`make reference` renders this page with the code that reads EC2's `DescribeInstanceTypes`, from the
descriptions that the testbed's cloud has. A test fails on any difference.

"""

LEFT_OUT = {"instance-family", "instance-size", "instance-tenancy", labels.INSTANCE_TYPE}
"""Labels that the headings and the first column have, or that every type has."""

OTHERS = (labels.ARCH, labels.CAPACITY_TYPE)
"""Labels of other groups that the page has."""


def described() -> list[InstanceTypeInfo]:
    """Return the instance types that the default EC2NodeClass can use, by family and size."""
    node_class = make_nodeclass()
    every = (instance_type_info(description) for description in TYPES.values())
    usable = (info for info in every if info.architectures and supports(info, node_class))
    return sorted(usable, key=_order)


def _order(info: InstanceTypeInfo) -> tuple[str, str, int, int, str]:
    return _category(info), family(info), info.cpus, info.memory, info.name


def family(info: InstanceTypeInfo) -> str:
    """Return the family of an instance type, such as m5."""
    return info.name.partition(".")[0]


def labels_of(info: InstanceTypeInfo) -> dict[str, str]:
    """Return the labels of an instance type's nodes, without those in `LEFT_OUT`."""
    of_nodes = requirements(info, family_of(make_nodeclass()), region="", zones=(), reserved=())
    named = {each.key.removeprefix(f"{labels.AWS_GROUP}/"): each for each in of_nodes}
    return {
        name: ", ".join(each.values)
        for name, each in named.items()
        if each.values and name not in LEFT_OUT and (name != each.key or name in OTHERS)
    }


def allocatable(info: InstanceTypeInfo) -> tuple[str, str, str, str]:
    """Return CPU, memory in Mi, ephemeral storage in Gi, and pods that a node offers to pods."""
    node_class, limits = make_nodeclass(), Limits()
    whole = capacity(info, node_class, limits)
    free = subtract(whole, overhead(info, node_class, limits, whole))
    return (
        f"{free[CPU]}m",
        str(free[MEMORY] // MILLI // 2**20),
        f"{free[EPHEMERAL_STORAGE] / MILLI / 2**30:.1f}",
        str(free[PODS] // MILLI),
    )


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for category, members in groupby(described(), key=_category):
        parts.append(f"## Category {category}\n\n" if category else "## Others\n\n")
        parts += [f"{_family(name, list(types))}\n" for name, types in groupby(members, key=family)]
    return "".join(parts).rstrip("\n") + "\n"


def _category(info: InstanceTypeInfo) -> str:
    return labels_of(info).get("instance-category", "")


def _family(name: str, types: Sequence[InstanceTypeInfo]) -> str:
    found = [labels_of(info) for info in types]
    names = list(dict.fromkeys(key for each in found for key in each))
    shared = [key for key in names if len({each.get(key) for each in found}) == 1]
    differing = [key for key in names if key not in shared]
    rows = [
        (f"`{info.size}`", *allocatable(info), *(each.get(key, "") for key in differing))
        for info, each in zip(types, found, strict=True)
    ]
    heads = ("instance-size", "cpu", "memory", "ephemeral-storage", "pods", *differing)
    alike = textwrap.fill(
        ", ".join(f"`{key}={found[0][key]}`" for key in shared),
        120,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"### {name}\n\n{alike}\n\n{messages.table(heads, rows)}"
