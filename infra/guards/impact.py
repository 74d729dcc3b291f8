"""Reports in a preview what a change, or a destroy, would do to running nodes.

The engine reads neither NodePools nor nodes in a preview, so the program reads them itself. It
changes nothing. If the cluster does not answer, the preview says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import boto3
import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from controller.apis import labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL
from controller.apis.wording import with_count
from infra.clusterapi import CLUSTER_ERRORS, ClusterApi, ClusterLocation, Wire
from infra.lifecycle.teardown import STACK_ANNOTATION, is_ours

Price = Callable[["Node"], float | None]
"""Returns the price of a node per hour in the region's currency, None if it is unknown."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A running node, read from its NodeClaim."""

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
    """The stack's objects, with all placeholders replaced."""

    stack: str
    """organization/project/stack: the annotation on objects that the stack applied before."""

    certificate_authority: str
    """The API server's CA certificate: PEM, base64-encoded. An EC2NodeClass's hash includes it."""

    has_controller: bool
    """Whether the stack also manages the controller, and so all of its nodes."""

    is_destroyed: bool = False
    """Whether the stack is being destroyed instead of changed."""


@dataclass(frozen=True)
class Effect:
    """A sentence about what a plan does to nodes, and whether it terminates any of them."""

    text: str
    terminates: bool = True


def expected_impact(location: ClusterLocation, plan: Plan) -> list[Effect]:
    """Return what the plan does to the cluster's nodes, for the preview."""
    try:
        cluster = ClusterApi.find(location)
        nodes = list(nodes_of(cluster.list(NODE_CLAIM.collection)))
        pools = cluster.list(NODE_POOL.collection)
    except CLUSTER_ERRORS as exc:
        return [Effect(f"the effect of this change on nodes is unknown: {exc}", terminates=False)]
    return list(effects(nodes, pools, plan, Prices(location).of)) if nodes else []


def nodes_of(claims: Iterable[Wire]) -> Iterator[Node]:
    """Yield the nodes of NodeClaims that reference an EC2NodeClass."""
    for claim in claims:
        metadata = claim["metadata"]
        held = metadata.get("labels") or {}
        if is_ours(claim["spec"]):
            yield Node(
                pool=held.get(labels.NODEPOOL, ""),
                node_class=claim["spec"]["nodeClassRef"].get("name", ""),
                instance_type=held.get(labels.INSTANCE_TYPE, ""),
                capacity_type=held.get(labels.CAPACITY_TYPE, labels.ON_DEMAND),
                zone=held.get(labels.ZONE, ""),
                annotations=metadata.get("annotations") or {},
            )


def effects(
    nodes: Sequence[Node], pools: Sequence[Wire], plan: Plan, price: Price
) -> Iterator[Effect]:
    """Yield each effect of the plan on nodes.

    Args:
        nodes: the running nodes.
        pools: the cluster's current NodePools.
        plan: what the stack is about to apply.
        price: returns the price of a node per hour, None if it is unknown.

    """
    wanted = {wire["metadata"]["name"] for wire in plan.manifests if wire["kind"] == NODE_POOL.name}
    at_stake = [node for node in nodes if plan.has_controller or node.pool in wanted]
    if plan.is_destroyed:
        if at_stake:
            yield Effect(
                f"pulumi destroy would drain and terminate {_number_and_price(at_stake, price)}"
            )
        return
    changes = [
        *_deleted_pools(nodes, pools, wanted, plan, price),
        *_drift_causes(nodes, plan, price),
    ]
    yield from map(Effect, changes)
    if at_stake and not changes:
        keeps = "keeps" if len(at_stake) == 1 else "keep"
        kept = f"{_number_and_price(at_stake, price)} {keeps} running"
        yield Effect(f"this change disrupts no node: {kept}", terminates=False)


def _deleted_pools(
    nodes: Sequence[Node], pools: Sequence[Wire], wanted: Container[str], plan: Plan, price: Price
) -> Iterator[str]:
    """Yield the NodePools that the change deletes, with their nodes."""
    for pool in pools:
        name = pool["metadata"]["name"]
        owner = (pool["metadata"].get("annotations") or {}).get(STACK_ANNOTATION)
        going = [node for node in nodes if node.pool == name]
        if going and owner == plan.stack and name not in wanted:
            yield f"NodePool {name} would be deleted with {_number_and_price(going, price)}"


def _drift_causes(nodes: Sequence[Node], plan: Plan, price: Price) -> Iterator[str]:
    """Yield the NodePools and EC2NodeClasses whose change makes nodes drift."""
    for wire in plan.manifests:
        if drifting := list(_drifting_nodes(wire, nodes, plan)):
            yield (
                f"{wire['kind']} {wire['metadata']['name']} changes: "
                f"{_number_and_price(drifting, price)} would drift and be replaced "
                "within the disruption budgets of the NodePool"
            )


def _drifting_nodes(wire: Wire, nodes: Sequence[Node], plan: Plan) -> Iterator[Node]:
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


def _number_and_price(nodes: Sequence[Node], price: Price) -> str:
    prices = [price(node) for node in nodes]
    known = [each for each in prices if each is not None]
    count = with_count(len(nodes), "node")
    if not known:
        return f"{count} (price unknown)"
    unknown = len(prices) - len(known)
    more = f", and {unknown} of unknown price" if unknown else ""
    return f"{count} (${sum(known):.2f} an hour{more})"


class Prices:
    """Reads prices of instances from AWS and caches them. A failed request means no price."""

    def __init__(self, location: ClusterLocation) -> None:
        self._location = location
        self._known: dict[tuple[str, str, str], float | None] = {}

    def of(self, node: Node) -> float | None:
        """Return the price of a node per hour in the region's currency, None if it is unknown."""
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
        return max((_most_expensive(json.loads(product)) for product in listed), default=None)


def _most_expensive(product: Mapping[str, Any]) -> float:
    return max(
        (
            float(price)
            for term in product["terms"]["OnDemand"].values()
            for dimension in term["priceDimensions"].values()
            for price in dimension["pricePerUnit"].values()
        ),
        default=0.0,
    )
