"""The instance types and prices of a cluster, read from AWS with the credentials of the user."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    AMIStatus,
    EC2NodeClass,
    EC2NodeClassSpec,
    EC2NodeClassStatus,
    SelectorTerm,
    SubnetStatus,
)
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import EC2_NODE_CLASS, NODE, NODE_POOL, Kind
from controller.apis.kubernetes.meta import KubernetesObject, ObjectMeta
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.taints import Requirement
from controller.apis.ownership import is_ours
from controller.apis.wording import with_count
from controller.apiserver.errors import ApiError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.errors import (
    CloudProviderError,
    NodeClassNotReadyError,
    ThrottledError,
)
from controller.cloudprovider.instancetypes import InstanceType
from controller.offline.commandline import CommandError, Progress
from controller.offline.instancetypes import to_row
from controller.offline.world import NO_NODE_POOL
from controller.options import Options

RIGHTS = (
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeSpotPriceHistory",
    "pricing:GetProducts",
)
"""The IAM actions that a user needs for the commands that read a cluster."""

SILENT_SECONDS = 2.0
"""How long AWS may take before a command says that it waits."""

_T = TypeVar("_T", bound=KubernetesObject)

Report = Callable[[str], None]


class InstanceTypeSource(Protocol):
    """The part of a cloud provider that lists instance types."""

    @property
    def region(self) -> str:
        """The AWS region of the instance types and prices."""

    async def start(self) -> None:
        """Load the instance types and prices."""

    async def shutdown(self) -> None:
        """Wait for pending calls."""

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every instance type that the EC2NodeClass could launch."""

    @property
    def price_error(self) -> str:
        """Why on-demand or spot prices could not be read; empty if they were."""


def aws_source(options: Options) -> InstanceTypeSource:
    """Return the instance types and prices of AWS, read with the user's credentials.

    Raises:
        CommandError: the region is unknown.

    """
    try:
        return AWSCloudProvider(options, aws=Session(waits=False))
    except CloudProviderError as error:
        raise unreadable(error) from error


async def instance_types_of(
    api: ApiServer, source: InstanceTypeSource, report: Report, *, seconds: float = math.inf
) -> list[dict[str, Any]]:
    """Return the instance types of Joiner's NodePools, in the format of a world.

    NodePools with equal lists of instance types share the list. A NodePool whose EC2NodeClass is
    missing or not ready has no instance types, and `report` says so.

    The types of nodes without a NodePool have the NodePool `NO_NODE_POOL`. They are the types for
    an EC2NodeClass with the alias al2023 and subnets in the zones of these nodes. If there is no
    NodePool, all types for this EC2NodeClass are returned.

    Raises:
        CommandError: AWS refuses a request, returns no prices, or has not responded within
            `seconds`; or the nodes are in another region.

    """
    reading = asyncio.create_task(_read(api, source, report))
    try:
        await asyncio.wait({reading}, timeout=min(SILENT_SECONDS, seconds))
        if not reading.done() and seconds > SILENT_SECONDS:
            report("waiting for AWS: its instance types and prices take longer than usual")
            limit = None if seconds == math.inf else seconds - SILENT_SECONDS
            await asyncio.wait({reading}, timeout=limit)
        if not reading.done():
            raise CommandError(
                f"AWS has not returned instance types and prices within {seconds:g} s: try again, "
                "or set a longer --time-limit"
            )
        return reading.result()
    finally:
        reading.cancel()


async def _read(api: ApiServer, source: InstanceTypeSource, report: Report) -> list[dict[str, Any]]:
    try:
        nodes, pools = await api.list(NODE), await _list_if_served(api, NODE_POOL)
        classes = {of.metadata.name: of for of in await _list_if_served(api, EC2_NODE_CLASS)}
    except ApiError as error:
        raise CommandError(f"cannot read the cluster: {error}") from error
    try:
        if other := _other_region(nodes, source.region):
            raise CommandError(
                f"the AWS region is {source.region}, but the nodes are in {other}, so there are no "
                f"prices: set AWS_REGION={other}"
            )
        await source.start()
        if source.price_error:
            raise unreadable(CloudProviderError(source.price_error))
        if not any(map(is_ours, pools)):
            return await _types_without_pools(nodes, source, report)
        offers = list[tuple[Sequence[InstanceType], list[str]]]()
        for pool in filter(is_ours, pools):
            offered = await _types_of_pool(pool, classes, source, report)
            equal = next((pools for types, pools in offers if types == offered), None)
            if equal is not None:
                equal.append(pool.metadata.name)
            elif offered:
                offers.append((offered, [pool.metadata.name]))
        others = await _types_outside(nodes, source)
    except CloudProviderError as error:
        raise unreadable(error) from error
    finally:
        await source.shutdown()
    is_one_list = len(offers) == 1 and not others
    return [
        to_row(instance_type, node_pools=() if is_one_list else pools)
        for offered, pools in (*offers, (others, [NO_NODE_POOL]))
        for instance_type in offered
    ]


def unreadable(error: CloudProviderError) -> CommandError:
    """Return the error of a command that cannot read instance types and prices."""
    todo = (
        "AWS throttles the requests of this account: try again in a minute"
        if isinstance(error, ThrottledError)
        else "the command uses your own AWS credentials: set AWS_PROFILE or run `aws sso login`, "
        f"and allow {', '.join(RIGHTS[:-1])} and {RIGHTS[-1]}"
    )
    return CommandError(
        f"cannot read instance types and prices, which every answer needs: {error.problem}; {todo}"
    )


async def _types_without_pools(
    nodes: Iterable[Node], source: InstanceTypeSource, report: Report
) -> list[dict[str, Any]]:
    """Return the types for an assumed EC2NodeClass; none if there are no nodes."""
    assumed = _assumed_class(nodes)
    zones = [subnet.zone for subnet in assumed.status.subnets]
    if not zones:
        return []
    family = assumed.spec.resolved_ami_family
    report(f"no NodePool: instance types for {family} in the zones {', '.join(zones)}")
    return [to_row(row) for row in await source.instance_types(assumed)]


async def _types_of_pool(
    pool: NodePool,
    classes: Mapping[str, EC2NodeClass],
    source: InstanceTypeSource,
    report: Report,
) -> Sequence[InstanceType]:
    """Return the types of a NodePool; none if its EC2NodeClass is missing or not ready."""
    name = pool.metadata.name
    class_name = pool.spec.template.spec.node_class_ref.name
    if class_name not in classes:
        report(f'NodePool {name} has no instance types: EC2NodeClass "{class_name}" not found')
        return ()
    try:
        offered = await source.instance_types(classes[class_name], pool)
    except NodeClassNotReadyError as error:
        report(f"NodePool {name} has no instance types: {error}")
        return ()
    report(Progress(f"NodePool {name}: {with_count(len(offered), 'instance type')}"))
    return offered


def _other_region(nodes: Iterable[Node], region: str) -> str:
    """Return the region of the nodes if none of them is in this one; otherwise empty."""
    regions = {node.metadata.labels.get(labels.REGION) for node in nodes} - {None}
    return "" if region in regions else min(filter(None, regions), default="")


async def _types_outside(nodes: Iterable[Node], source: InstanceTypeSource) -> list[InstanceType]:
    """Return the instance types of the nodes without a NodePool."""
    outside = [node for node in nodes if labels.NODEPOOL not in node.metadata.labels]
    names = {node.metadata.labels.get(labels.INSTANCE_TYPE) for node in outside}
    if not names - {None} or not any(labels.ZONE in node.metadata.labels for node in outside):
        return []
    offered = await source.instance_types(_assumed_class(outside))
    return [instance_type for instance_type in offered if instance_type.name in names]


async def _list_if_served(api: ApiServer, kind: Kind[_T]) -> Sequence[_T]:
    """Return the objects of a kind; none if the API server does not have the kind."""
    try:
        return await api.list(kind)
    except NotFoundError:
        return ()


def _assumed_class(nodes: Iterable[Node]) -> EC2NodeClass:
    """Return an EC2NodeClass for Amazon Linux 2023 in the zones of these nodes."""
    zones = sorted({zone for node in nodes if (zone := node.metadata.labels.get(labels.ZONE))})
    return EC2NodeClass(
        metadata=ObjectMeta(name="default"),
        spec=EC2NodeClassSpec(ami_selector_terms=[SelectorTerm(alias="al2023@latest")]),
        status=EC2NodeClassStatus(
            subnets=[SubnetStatus(id=zone, zone=zone) for zone in zones],
            amis=[
                AMIStatus(
                    id=arch,
                    requirements=[Requirement(key=labels.ARCH, operator="In", values=[arch])],
                )
                for arch in ("amd64", "arm64")
            ],
        ),
    )
