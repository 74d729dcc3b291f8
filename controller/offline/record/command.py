"""The command `record`: writes the live cluster as a world for `solve` and other commands.

The world has only the fields that these commands read. All others are dropped when objects are
decoded, such as commands, environment variables and other fields that may hold secrets. Only
annotations that the engine reads are kept. Of the controller's settings, only those are written
that affect results.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

from controller.apis import kinds, labels
from controller.apis.karpenter.capacitybuffer import CapacityBuffer
from controller.apis.karpenter.ec2nodeclass import (
    AMIStatus,
    EC2NodeClass,
    EC2NodeClassSpec,
    EC2NodeClassStatus,
    SelectorTerm,
    SubnetStatus,
)
from controller.apis.karpenter.nodeoverlay import NodeOverlay
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import EC2_NODE_CLASS, NODE, NODE_POOL, Kind
from controller.apis.kubernetes import schedulerconfig
from controller.apis.kubernetes.meta import KubernetesObject, ObjectMeta, Wire, to_wire
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.taints import Requirement
from controller.apis.ownership import is_ours
from controller.apis.wording import with_count
from controller.apiserver.errors import ApiError, NotFoundError, UnavailableError
from controller.apiserver.port import ApiServer
from controller.apiserver.readonly import ReadOnlyApiServer
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption.advice.adoption import SAFE_TO_EVICT
from controller.kube import access
from controller.kube.client import Client
from controller.offline.commandline import (
    CONTEXT,
    CommandError,
    add_connection,
    connection,
    parse_with_settings,
    run_command,
)
from controller.offline.disrupt import DISRUPTION_SETTINGS
from controller.offline.instancetypes import to_row
from controller.offline.record.deployed import controller_options
from controller.offline.record.redacting import redact
from controller.offline.solve import read
from controller.offline.wirevalues import WorldError, objects, readable
from controller.offline.world import KEYS, KINDS, NO_NODE_POOL, World, effective, load
from controller.options import Options, OptionsError, to_environment

ESSENTIAL = ("pods", "nodes", "nodePools")
"""The objects that a world must have. A cluster without Karpenter's API has no NodePools."""

ALWAYS = (
    *ESSENTIAL,
    "nodeClaims",
    "daemonSets",
    "namespaces",
    "limitRanges",
    "persistentVolumes",
    "persistentVolumeClaims",
    "storageClasses",
    "csiNodes",
    "volumeAttachments",
    "podDisruptionBudgets",
)
BUFFERING = ("capacityBuffers", "podTemplates", "deployments", "replicaSets", "statefulSets")
SPREADING = ("services", "replicationControllers", "replicaSets", "statefulSets")
DEVICES = ("resourceSlices", "resourceClaims", "deviceClasses", "deviceTaintRules")
GANGS = ("podGroups", "coschedulingPodGroups")

READ_ANNOTATIONS = frozenset(
    {
        labels.DISRUPTION_COST,
        labels.POD_DELETION_COST,
        "kubernetes.io/config.source",
        "kubernetes.io/config.mirror",
        SAFE_TO_EVICT,
        labels.BIND_COMPLETED,
        labels.SELECTED_NODE,
    }
)
READ_DOMAINS = ("karpenter.sh/", "karpenter.k8s.aws/", "joiner.dev/")
"""The prefixes of the other annotations that the engine may read."""

_T = TypeVar("_T", bound=KubernetesObject)
_W = TypeVar("_W", bound=Wire)

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


def record(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `record`; return the exit code."""
    chosen, settings = parse_with_settings(record_parser(), argv)
    where = connection(chosen, environ)

    def write() -> int:
        world = live(settings, where)
        sys.stdout.write(json.dumps(redact(world) if chosen.redact else world) + "\n")
        return 0

    return run_command(write)


def record_parser() -> argparse.ArgumentParser:
    """Return the parser of the command `record`."""
    parser = argparse.ArgumentParser(
        prog="joiner record",
        description="Write the cluster of KUBECONFIG as a recorded world to standard output. "
        "Instance types and prices come from AWS. The controller's settings (FEATURE_GATES, "
        "PREFERENCE_POLICY, …) come from its Deployment, or from environment variables if there "
        "is none; flags of `run` take precedence. The command changes nothing.",
    )
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace names, namespaces and label values; the answers stay the same",
    )
    add_connection(parser)
    return parser


def world_of(path: Path | None, settings: Sequence[str], environ: Mapping[str, str]) -> World:
    """Return the recorded world in a file, or the environment's cluster if `path` is None.

    `settings` are flags of `run` that replace the settings of the cluster's controller.

    Raises:
        CommandError: the file or the cluster cannot be read.

    """
    if path is not None:
        return read(path)
    try:
        return load(live(settings, environ))
    except WorldError as error:
        raise CommandError(f"cannot read the cluster: {error}") from error


def live(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the cluster of the environment's kubeconfig as a world; writes progress to stderr.

    `argv` are flags of `run` that replace the settings of the cluster's controller.

    Raises:
        CommandError: the cluster cannot be reached, or a required kind cannot be listed.

    """
    try:
        return asyncio.run(_live(argv, environ))
    except (OptionsError, access.AccessError) as error:
        raise CommandError(str(error)) from error
    except UnavailableError as error:
        raise CommandError(f"cannot read the cluster: {error}") from error


def access_of(environ: Mapping[str, str]) -> access.Access:
    """Return the access to the cluster: a kubeconfig, else the service account of this pod.

    The kubeconfig is that of `KUBECONFIG`, or `~/.kube/config` if that is not set or empty.

    Raises:
        AccessError: neither exists, or the one that exists cannot be used.

    """
    default_path = Path(environ.get("HOME", "")) / ".kube" / "config"
    context = environ.get(CONTEXT, "")
    is_unset = not environ.get("KUBECONFIG")
    if is_unset and default_path.is_absolute() and default_path.is_file():
        return access.from_kubeconfig(default_path, context=context)
    return access.from_environment(environ, context=context)


@asynccontextmanager
async def connected(
    argv: Sequence[str], environ: Mapping[str, str], report: Report
) -> AsyncIterator[tuple[ApiServer, Options]]:
    """Connect to the environment's cluster for reading; yield the connection and the settings.

    `argv` are flags of `run` that replace the settings of the cluster's controller. `report` is
    called with warnings.

    Raises:
        AccessError: there is no kubeconfig, or it cannot be used.
        UnavailableError: the API server does not answer.
        OptionsError: a flag is unknown, or a value is not allowed.

    """
    async with Client(access_of(environ), user_agent="joiner") as client:
        settings = await controller_options(client, argv, environ, report)
        yield ReadOnlyApiServer(client), replace(settings, disruption_mode="observe")


def aws_source(options: Options, report: Report) -> InstanceTypeSource | None:
    """Return the instance types and prices of AWS, or None if its client cannot be created."""
    try:
        return AWSCloudProvider(options)
    except CloudProviderError as error:
        report(f"cannot read instance types; the world will have none: {error}")
        return None


async def _live(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    async with connected(argv, environ, _report) as (api, options):
        return await record_cluster(api, aws_source(options, _report), options, _report)


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def record_cluster(
    api: ApiServer, source: InstanceTypeSource | None, options: Options, report: Report
) -> dict[str, Any]:
    """Return the objects of an API server and the instance types of `source` as a world.

    Objects that a world cannot have, or that the controller ignores, are left out. `report` is
    called with progress and warnings.

    Raises:
        CommandError: a required kind cannot be listed.

    """
    world: dict[str, Any] = {}
    for kind in kinds_of(options):
        key = KEYS[kind.type]
        try:
            objects = await api.list(kind)
        except ApiError as error:
            if key in ESSENTIAL and not isinstance(error, NotFoundError):
                raise CommandError(f"cannot list {kind.plural}: {error}{_advice(error)}") from error
            report(f"cannot list {kind.plural}; the world will have none: {error}")
            continue
        rows = [_without_secrets(to_wire(stored)) for stored in objects]
        world[key], faults = readable(rows, key, KINDS[key])
        report(f"{kind.plural}: {len(world[key])}")
        for fault in faults:
            report(f"{fault}; the world is without this object")
    _leave_out_ignored(world, report)
    world["settings"] = settings_of(options)
    world["instanceTypes"] = await instance_types_of(api, source, report)
    return world


def _advice(error: ApiError) -> str:
    """Return what to do about an error, to append to it; empty if its text says enough."""
    if error.status != HTTPStatus.UNAUTHORIZED:
        return ""
    return (
        "; the API server does not accept the credentials of the kubeconfig: log in again, or "
        "select another user or context"
    )


def _leave_out_ignored(world: dict[str, Any], report: Report) -> None:
    """Remove the objects that the controller ignores, and report each."""

    def of(kind: type[_W]) -> Sequence[_W]:
        return objects(world, KEYS[kind], kind)

    of_effective, faults = effective(of)
    for fault in faults:
        report(f"{fault}; the controller ignores this object, and the world is without it")
    if not faults:
        return
    world[KEYS[NodeOverlay]] = list(map(to_wire, of_effective(NodeOverlay)))
    world[KEYS[CapacityBuffer]] = list(map(to_wire, of_effective(CapacityBuffer)))


def kinds_of(options: Options) -> tuple[Kind[Any], ...]:
    """Return the kinds that a world of a cluster with these settings contains."""
    gates = options.feature_gates
    keys = (
        *ALWAYS,
        *(("nodeOverlays",) if gates.node_overlay else ()),
        *(BUFFERING if gates.capacity_buffer else ()),
        *(SPREADING if options.scheduler_config else ()),
        *(() if options.ignore_dra_requests else DEVICES),
        *(GANGS if options.gang_scheduling else ()),
    )
    return tuple(kinds.KIND_OF[KINDS[key]] for key in dict.fromkeys(keys))


def settings_of(options: Options) -> dict[str, Any]:
    """Return the settings of a world from the settings of the cluster's controller.

    Raises:
        CommandError: the file of SCHEDULER_CONFIG cannot be read.

    """
    settings: dict[str, Any] = {
        "PREFERENCE_POLICY": options.preference_policy,
        "MIN_VALUES_POLICY": options.min_values_policy,
        "IGNORE_DRA_REQUESTS": options.ignore_dra_requests,
        "GANG_SCHEDULING": options.gang_scheduling,
    }
    if options.node_price_per_hour:
        settings["NODE_PRICE_PER_HOUR"] = options.node_price_per_hour
    chosen = to_environment(options)
    settings |= {name: chosen[name] for name in DISRUPTION_SETTINGS if name in chosen}
    if options.feature_gates.spot_to_spot_consolidation:
        settings["FEATURE_GATES"] = "SpotToSpotConsolidation=true"
    if given := options.scheduler_config:
        try:
            settings["SCHEDULER_CONFIG"] = schedulerconfig.document(given)
        except (OSError, yaml.YAMLError) as error:
            raise CommandError(f"cannot read SCHEDULER_CONFIG={given!r}: {error}") from error
    return settings


async def instance_types_of(
    api: ApiServer, source: InstanceTypeSource | None, report: Report
) -> list[dict[str, Any]]:
    """Return the instance types of Joiner's NodePools, in the format of a world.

    NodePools with equal lists of instance types share the list.

    The types of nodes without a NodePool have the NodePool `NO_NODE_POOL`. They are the types for
    an EC2NodeClass with the alias al2023 and subnets in the zones of these nodes. If there is no
    NodePool, all types for this EC2NodeClass are returned.
    """
    if source is None:
        return []
    offers: list[tuple[Sequence[InstanceType], list[str]]] = []
    try:
        classes = {
            node_class.metadata.name: node_class
            for node_class in await _list_if_served(api, EC2_NODE_CLASS)
        }
        nodes = await api.list(NODE)
        if other := _other_region(nodes, source.region):
            report(
                f"the AWS region is {source.region}, but the nodes are in {other}, so instance "
                f"types and prices are not read: set AWS_REGION={other}"
            )
            return []
        await source.start()
        pools = await _list_if_served(api, NODE_POOL)
        if not any(map(is_ours, pools)):
            assumed = _assumed_class(nodes)
            report(
                f"no NodePool: instance types for {assumed.spec.resolved_ami_family} in the zones "
                f"{', '.join(subnet.zone for subnet in assumed.status.subnets)}"
            )
            return [to_row(row) for row in await source.instance_types(assumed)]
        for pool in pools:
            name = pool.metadata.name
            class_name = pool.spec.template.spec.node_class_ref.name
            if not is_ours(pool):
                continue
            if class_name not in classes:
                report(
                    f'NodePool {name} has no instance types: EC2NodeClass "{class_name}" not found'
                )
                continue
            try:
                offered = await source.instance_types(classes[class_name], pool)
            except CloudProviderError as error:
                report(f"cannot read the instance types of NodePool {name}: {error}")
                continue
            report(f"NodePool {name}: {with_count(len(offered), 'instance type')}")
            equal = next((pools for types, pools in offers if types == offered), None)
            if equal is None:
                offers.append((offered, [name]))
            else:
                equal.append(name)
        others = await _types_outside(nodes, source)
    except (ApiError, CloudProviderError) as error:
        report(f"cannot read instance types; the world will have none: {error}")
        return []
    finally:
        await source.shutdown()
    is_one_list = len(offers) == 1 and not others
    return [
        to_row(instance_type, node_pools=() if is_one_list else pools)
        for offered, pools in (*offers, (others, [NO_NODE_POOL]))
        for instance_type in offered
    ]


def _other_region(nodes: Iterable[Node], region: str) -> str:
    """Return the region of the nodes if none of them is in this one; otherwise empty."""
    regions = {node.metadata.labels.get(labels.REGION) for node in nodes} - {None}
    return "" if region in regions else min(filter(None, regions), default="")


async def _types_outside(nodes: Iterable[Node], source: InstanceTypeSource) -> list[InstanceType]:
    """Return the instance types of the nodes without a NodePool."""
    outside = [node for node in nodes if labels.NODEPOOL not in node.metadata.labels]
    names = {node.metadata.labels.get(labels.INSTANCE_TYPE) for node in outside}
    if not names - {None}:
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


def _without_secrets(value: Any) -> Any:
    """Remove fields that no command reads and that may hold secrets."""
    if isinstance(value, list):
        return [_without_secrets(member) for member in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _read_annotations((inner or {}).items())
        if name == "annotations"
        else _without_secrets(inner)
        for name, inner in value.items()
        if name != "image" or not isinstance(inner, str)
    }


def _read_annotations(annotations: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {
        name: value
        for name, value in annotations
        if name in READ_ANNOTATIONS or name.startswith(READ_DOMAINS)
    }
