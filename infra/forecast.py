"""What a change, or a destroy, would do to the nodes that run: told before anything happens.

A preview runs the program and asks nobody who is in the way; so the program looks at the cluster
itself. It only reads, and what it cannot read it says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import boto3
import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from controller.apis import hashes, labels
from controller.apis.ec2nodeclass import EC2NodeClass
from controller.apis.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL
from controller.apis.nodepool import NodePool
from infra.clusterapi import (
    ApiError,
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterUnreachableError,
    Wire,
)
from infra.teardown import STACK_ANNOTATION

Price = Callable[["Node"], float | None]
"""What a node costs an hour, in the region's currency; None where nobody tells."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that runs, by its NodeClaim."""

    pool: str
    node_class: str
    instance_type: str
    capacity_type: str
    zone: str
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a stack is about to apply."""

    manifests: Sequence[Wire]
    """With every placeholder filled."""

    stack: str
    """organization/project/stack, which is on what it has applied before."""

    certificate_authority: str
    """Base64 of PEM; part of what nodes of a class are made from."""

    has_controller: bool
    """Whether the controller is the stack's too, and with it every node there is."""


def forecast(location: ClusterLocation, plan: Plan) -> list[str]:
    """Look at the cluster, and say in lines what becomes of its nodes."""
    try:
        cluster = ClusterApi.find(location)
        nodes = list(nodes_of(cluster.list(f"{NODE_CLAIM.root}/{NODE_CLAIM.plural}")))
        pools = cluster.list(f"{NODE_POOL.root}/{NODE_POOL.plural}")
    except (ApiError, ClusterGoneError, ClusterUnreachableError) as exc:
        return [f"what becomes of nodes is not known: {exc}"]
    return list(lines(nodes, pools, plan, Prices(location).of)) if nodes else []


def nodes_of(claims: Iterable[Wire]) -> Iterator[Node]:
    """Read the nodes of our kind of class from their NodeClaims."""
    for claim in claims:
        reference, metadata = claim["spec"].get("nodeClassRef", {}), claim["metadata"]
        held = metadata.get("labels") or {}
        if (reference.get("group"), reference.get("kind")) == (
            EC2_NODE_CLASS.group,
            EC2_NODE_CLASS.name,
        ):
            yield Node(
                pool=held.get(labels.NODEPOOL, ""),
                node_class=reference.get("name", ""),
                instance_type=held.get(labels.INSTANCE_TYPE, ""),
                capacity_type=held.get(labels.CAPACITY_TYPE, labels.ON_DEMAND),
                zone=held.get(labels.ZONE, ""),
                annotations=metadata.get("annotations") or {},
            )


def lines(nodes: Sequence[Node], pools: Sequence[Wire], plan: Plan, price: Price) -> Iterator[str]:
    """Say what becomes of nodes, in sentences.

    Args:
        nodes: those that run.
        pools: the cluster's NodePools as they are.
        plan: what is about to be applied.
        price: what a node costs.

    """
    wanted = {wire["metadata"]["name"] for wire in plan.manifests if wire["kind"] == NODE_POOL.name}
    for pool in pools:
        name = pool["metadata"]["name"]
        owner = (pool["metadata"].get("annotations") or {}).get(STACK_ANNOTATION)
        going = [node for node in nodes if node.pool == name]
        if going and owner == plan.stack and name not in wanted:
            yield f"NodePool {name} goes, and with it {_counted(going, price)}"
    for wire in plan.manifests:
        if drifting := list(_drifting(wire, nodes, plan)):
            yield (
                f"{wire['kind']} {wire['metadata']['name']} changes: {_counted(drifting, price)} "
                "drift, and are replaced within the budgets of their pools"
            )
    at_stake = [node for node in nodes if plan.has_controller or node.pool in wanted]
    if at_stake:
        yield f"pulumi destroy would drain and end {_counted(at_stake, price)}"


def _drifting(wire: Wire, nodes: Sequence[Node], plan: Plan) -> Iterator[Node]:
    name = wire["metadata"]["name"]
    if wire["kind"] == NODE_POOL.name:
        now = {
            labels.NODEPOOL_HASH: hashes.node_pool_hash(msgspec.convert(wire, NodePool)),
            labels.NODEPOOL_HASH_VERSION: hashes.NODE_POOL_VERSION,
        }
        made = [node for node in nodes if node.pool == name]
    elif wire["kind"] == EC2_NODE_CLASS.name:
        node_class = msgspec.convert(wire, EC2NodeClass)
        now = {
            labels.NODECLASS_HASH: hashes.node_class_hash(
                node_class, ca_bundle=plan.certificate_authority
            ),
            labels.NODECLASS_HASH_VERSION: hashes.NODE_CLASS_VERSION,
        }
        made = [node for node in nodes if node.node_class == name]
    else:
        return
    hash_, version = now
    for node in made:
        if hashes.differ(node.annotations, now, hash_, version):
            yield node


def _counted(nodes: Sequence[Node], price: Price) -> str:
    prices = [price(node) for node in nodes]
    told = [each for each in prices if each is not None]
    count = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    if not told:
        return f"{count} (AWS does not tell at what cost)"
    unknown = len(prices) - len(told)
    more = f", and {unknown} of unknown price" if unknown else ""
    return f"{count} (${sum(told):.2f} an hour{more})"


class Prices:
    """What AWS says that instances cost; each is asked for once, and a refusal is no price."""

    def __init__(self, location: ClusterLocation) -> None:
        self._location = location
        self._known: dict[tuple[str, str, str], float | None] = {}

    def of(self, node: Node) -> float | None:
        """Return what a node costs an hour."""
        is_spot = node.capacity_type == labels.SPOT
        key = (node.instance_type, node.capacity_type, node.zone if is_spot else "")
        if key not in self._known:
            ask = self._spot if is_spot else self._on_demand
            try:
                self._known[key] = ask(node)
            except (BotoCoreError, ClientError, KeyError, ValueError):
                self._known[key] = None
        return self._known[key]

    def _spot(self, node: Node) -> float | None:
        answer = self._location.client("ec2").describe_spot_price_history(
            InstanceTypes=[node.instance_type],
            AvailabilityZone=node.zone,
            ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
            StartTime=datetime.now(UTC),
        )
        rows = sorted(answer["SpotPriceHistory"], key=lambda row: row["Timestamp"])
        return float(rows[-1]["SpotPrice"]) if rows else None

    def _on_demand(self, node: Node) -> float | None:
        region = self._location.region
        wanted = {
            "regionCode": region,
            "instanceType": node.instance_type,
            "operatingSystem": "Linux",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
            "marketoption": "OnDemand",
            "tenancy": "Shared",
        }
        pricing = boto3.client(
            "pricing",
            region_name="cn-northwest-1" if region.startswith("cn-") else "us-east-1",
            endpoint_url=self._location.aws_endpoint or None,
        )
        listed = pricing.get_products(
            ServiceCode="AmazonEC2",
            Filters=[{"Type": "TERM_MATCH", "Field": f, "Value": v} for f, v in wanted.items()],
        )["PriceList"]
        return max((_dearest(json.loads(product)) for product in listed), default=None)


def _dearest(product: Mapping[str, Any]) -> float:
    return max(
        (
            float(price)
            for term in product["terms"]["OnDemand"].values()
            for dimension in term["priceDimensions"].values()
            for price in dimension["pricePerUnit"].values()
        ),
        default=0.0,
    )
