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
import math
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import yaml

from controller.apis import kinds, labels
from controller.apis.karpenter.capacitybuffer import CapacityBuffer
from controller.apis.karpenter.nodeoverlay import NodeOverlay
from controller.apis.kinds import Kind
from controller.apis.kubernetes import schedulerconfig
from controller.apis.kubernetes.meta import KubernetesObject, Wire, to_wire
from controller.apiserver.errors import ApiError, NotFoundError, UnavailableError
from controller.apiserver.port import ApiServer
from controller.apiserver.readonly import ReadOnlyApiServer
from controller.disruption.advice.adoption import SAFE_TO_EVICT
from controller.kube import access
from controller.kube.client import Client
from controller.offline.commandline import (
    CONTEXT,
    CommandError,
    Progress,
    add_connection,
    connection,
    messages,
    parse_with_settings,
    run_command,
    seconds,
)
from controller.offline.disrupt import DISRUPTION_SETTINGS
from controller.offline.pending import failure_events
from controller.offline.record.deployed import controller_options
from controller.offline.record.offers import (
    InstanceTypeSource,
    Report,
    aws_source,
    instance_types_of,
)
from controller.offline.record.redacting import redact
from controller.offline.solve import read
from controller.offline.wirevalues import WorldError, objects, readable
from controller.offline.world import KEYS, KINDS, World, effective, load
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
    "csiDrivers",
    "csiStorageCapacities",
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


def record(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `record`; return the exit code."""
    chosen, settings = parse_with_settings(record_parser(), argv)
    where = connection(chosen, environ)

    def write() -> int:
        world = live(settings, where, seconds=chosen.time_limit)
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
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="end with an error if AWS has not responded within this time (default 60)",
    )
    return parser


def world_of(
    chosen: argparse.Namespace, settings: Sequence[str], environ: Mapping[str, str]
) -> World:
    """Return the recorded world that a command line selects, or else the environment's cluster.

    `settings` are flags of `run` that replace the settings of the cluster's controller.

    Raises:
        CommandError: the file or the cluster cannot be read.

    """
    if chosen.world is not None:
        return read(chosen.world)
    try:
        return load(live(settings, environ, seconds=chosen.time_limit))
    except WorldError as error:
        raise CommandError(f"cannot read the cluster: {error}") from error


def live(argv: Sequence[str], environ: Mapping[str, str], *, seconds: float) -> dict[str, Any]:
    """Return the cluster of the environment's kubeconfig as a world; shows progress.

    `argv` are flags of `run` that replace the settings of the cluster's controller. AWS has at most
    `seconds` to respond.

    Raises:
        CommandError: the cluster cannot be reached, a required kind cannot be listed, or AWS
            returns no instance types or prices.

    """
    try:
        return asyncio.run(_live(argv, environ, seconds))
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
    context, default_path = environ.get(CONTEXT, ""), _default_kubeconfig(environ)
    if default_path is not None:
        return access.from_kubeconfig(default_path, context=context)
    return access.from_environment(environ, context=context)


def context_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the contexts of the kubeconfig; raises `AccessError` if it is invalid."""
    default_path = _default_kubeconfig(environ)
    given = [Path(path) for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return access.context_names(*(given if default_path is None else [default_path]))


def _default_kubeconfig(environ: Mapping[str, str]) -> Path | None:
    """Return `~/.kube/config` if it is a file and KUBECONFIG is not set or empty."""
    path = Path(environ.get("HOME", "")) / ".kube" / "config"
    is_default = not environ.get("KUBECONFIG") and path.is_absolute() and path.is_file()
    return path if is_default else None


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


async def _live(argv: Sequence[str], environ: Mapping[str, str], seconds: float) -> dict[str, Any]:
    with messages() as report:
        async with connected(argv, environ, report) as (api, options):
            return await record_cluster(api, aws_source(options), options, report, seconds=seconds)


async def record_cluster(
    api: ApiServer,
    source: InstanceTypeSource,
    options: Options,
    report: Report,
    *,
    seconds: float = math.inf,
) -> dict[str, Any]:
    """Return the objects of an API server and the instance types of `source` as a world.

    Objects that a world cannot have, or that the controller ignores, are left out. `report` is
    called with progress and warnings. AWS has at most `seconds` to respond.

    Raises:
        CommandError: a required kind cannot be listed, or AWS returns no instance types or prices.

    """
    world: dict[str, Any] = {}
    for kind in kinds_of(options):
        key = KEYS[kind.type]
        try:
            objects = await api.list(kind)
        except ApiError as error:
            if key in ESSENTIAL and not isinstance(error, NotFoundError):
                raise CommandError(f"cannot list {kind.plural}: {error}{_advice(error)}") from error
            text = f"cannot list {kind.plural}; the world will have none: {error}"
            report(Progress(text) if isinstance(error, NotFoundError) else text)
            continue
        rows = [_without_secrets(to_wire(stored)) for stored in objects]
        world[key], faults = readable(rows, key, KINDS[key])
        report(Progress(f"{kind.plural}: {len(world[key])}"))
        for fault in faults:
            report(f"{fault}; the world is without this object")
    try:
        world["events"] = [to_wire(event) for event in await failure_events(api)]
    except ApiError as error:
        report(f"cannot list events; the world will have none: {error}")
    _leave_out_ignored(world, report)
    world["settings"] = settings_of(options)
    world["instanceTypes"] = await instance_types_of(api, source, report, seconds=seconds)
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
