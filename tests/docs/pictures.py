"""The picture of what constraints of pods cost, drawn from solves of the engine.

`make reference` renders it, and a test fails on any difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from controller.apis import labels
from controller.aws.instancetypes.catalogue import instance_type_info
from controller.offline import world
from controller.offline.solve import solve_world
from controller.scheduling.results import NewNode, Results
from testbed.cloud.ec2.instancetypes import TYPES
from testbed.cloud.ec2.prices import price
from tests.docs.instancetypes import allocatable

PODS = 9
CPU, MEMORY = "1", "2Gi"
ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
SIZES = ("medium", "large", "xlarge", "2xlarge", "4xlarge")
OFFERED = [f"{family}.{size}" for family in ("c7g", "m7g", "r7g") for size in SIZES]
APP = {"app": "web"}

Wire = Mapping[str, Any]


def _spread(key: str) -> Wire:
    constraint = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**constraint, "labelSelector": {"matchLabels": APP}}]}


def _affinity(kind: str, key: str) -> Wire:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": APP}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


CASES: Mapping[str, Wire] = {
    "no constraint": {},
    "spread over zones, maxSkew 1": _spread(labels.ZONE),
    "affinity over zones: all in one zone": _affinity("podAffinity", labels.ZONE),
    "spread over hostnames, maxSkew 1": _spread(labels.HOSTNAME),
    "anti-affinity over hostnames: one pod per node": _affinity("podAntiAffinity", labels.HOSTNAME),
    "node selector karpenter.sh/capacity-type: on-demand": {
        "nodeSelector": {labels.CAPACITY_TYPE: labels.ON_DEMAND}
    },
}
"""The constraints that the pods of the picture have, by title; the first is the reference."""


def solved(constraints: Wire) -> Results:
    """Return how the engine schedules the pods with these constraints on an empty cluster."""
    pods = [
        {
            "metadata": {"name": f"web-{number}", "namespace": "default", "labels": APP},
            "spec": {
                **constraints,
                "containers": [
                    {"name": "web", "resources": {"requests": {"cpu": CPU, "memory": MEMORY}}}
                ],
            },
        }
        for number in range(PODS)
    ]
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    bought = [labels.SPOT, labels.ON_DEMAND]
    needed = {"key": labels.CAPACITY_TYPE, "operator": "In", "values": bought}
    pool = {
        "metadata": {"name": "default"},
        "spec": {"template": {"spec": {"nodeClassRef": reference, "requirements": [needed]}}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    types = [_instance_type(name) for name in OFFERED]
    content = {"pods": pods, "nodePools": [pool], "instanceTypes": types}
    return solve_world(lambda: world.load(content)).results


def _instance_type(name: str) -> Wire:
    cpu, memory, _, pods = allocatable(instance_type_info(TYPES[name]))
    offerings = [
        {
            "requirements": {labels.CAPACITY_TYPE: bought, labels.ZONE: zone},
            "price": price(bought, name, zone),
            "available": True,
        }
        for bought in (labels.SPOT, labels.ON_DEMAND)
        for zone in ZONES
    ]
    fixed = {labels.ARCH: "arm64", labels.OS: "linux"}
    return {
        "name": name,
        "requirements": [
            {"key": key, "operator": "In", "values": [value]} for key, value in fixed.items()
        ],
        "offerings": offerings,
        "capacity": {"cpu": cpu, "memory": f"{memory}Mi", "pods": pods},
        "overhead": {},
    }


# The drawing, in pixels.

WIDTH, MARGIN, ROW, POD = 760, 12, 74, 12
FONT = 'font-family="sans-serif" font-size="12"'


def picture() -> str:
    """Return the picture as SVG."""
    results = [(title, solved(constraints)) for title, constraints in CASES.items()]
    reference = results[0][1].cost
    height = ROW * len(results) + MARGIN
    what = f"What constraints cost for {PODS} pods of {CPU} CPU and {MEMORY}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'width="{WIDTH}" height="{height}" {FONT}>',
        f"<title>{what}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (title, found) in enumerate(results):
        lines += _row(MARGIN + ROW * number, title, found, reference)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _row(top: int, title: str, found: Results, reference: float) -> Iterator[str]:
    more = f", {found.cost / reference - 1:+.0%}" if found.cost != reference else ""
    cost = f"{len(found.new_nodes)} nodes, ${found.cost:.3f} an hour{more}"
    yield f'<text x="{MARGIN}" y="{top + 12}" font-weight="bold">{escape(title)}</text>'
    yield f'<text x="{WIDTH - MARGIN}" y="{top + 12}" text-anchor="end">{cost}</text>'
    nodes = sorted(found.new_nodes, key=lambda node: (-len(node.pods), node.instance_types[0]))
    left = MARGIN
    space = (WIDTH - MARGIN) // len(nodes)
    for node in nodes:
        yield from _node(left, top + 20, min(space, 160) - 6, node)
        left += min(space, 160)


def _node(left: int, top: int, width: int, node: NewNode) -> Iterator[str]:
    yield (
        f'<rect x="{left}" y="{top}" width="{width}" height="44" rx="3" fill="#eef3f8" '
        'stroke="#5b7083"/>'
    )
    for number in range(len(node.pods)):
        x = left + 5 + number * (POD + 3)
        yield f'<rect x="{x}" y="{top + 5}" width="{POD}" height="{POD}" fill="#2f6fab"/>'
    size = 10 if width >= 90 else 9
    for line, text in enumerate((node.instance_types[0], _place(node))):
        at = top + 28 + 11 * line
        yield f'<text x="{left + 5}" y="{at}" font-size="{size}">{text}</text>'


def _place(node: NewNode) -> str:
    """Return the node's zone, if it has only one, and how it is bought."""
    allowed = {each.key: each.values for each in node.requirements if each.operator == "In"}
    zones: Sequence[str] = allowed.get(labels.ZONE) or ()
    zone = zones[0].removeprefix("us-west-") if len(zones) == 1 else ""
    bought = labels.SPOT if labels.SPOT in (allowed.get(labels.CAPACITY_TYPE) or ()) else "od"
    return " ".join(filter(None, (zone, bought)))
