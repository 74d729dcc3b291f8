"""The command `record`: the live cluster as a world, for `solve`, `explain` and `disrupt`.

Only what those read is written: objects are cut to it on their way in, so that commands,
environments and whatever else of a container may hold a secret never get here. Of annotations
only those that are read are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import yaml

from controller.apis import kinds, labels
from controller.apis.ec2nodeclass import EC2NodeClass
from controller.apis.kinds import EC2_NODE_CLASS, NODE_POOL, Kind
from controller.apis.meta import to_wire
from controller.apis.nodepool import NodePool
from controller.apis.ownership import is_ours
from controller.apiserver.errors import ApiError
from controller.apiserver.port import ApiServer
from controller.apiserver.readonly import ReadOnlyApiServer
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.instancetypes import InstanceType
from controller.kube import access
from controller.kube.client import Client
from controller.offline.disrupt import CALMING
from controller.offline.instancetypes import written
from controller.offline.redacting import redacted
from controller.offline.solve import QuestionError, answered
from controller.offline.world import KINDS
from controller.options import Options, OptionsError, to_environment

ESSENTIAL = ("pods", "nodes", "nodePools")
"""Without these there is no world."""

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
    "podDisruptionBudgets",
)
BUFFERING = ("capacityBuffers", "podTemplates", "deployments", "replicaSets", "statefulSets")
SPREADING = ("services", "replicationControllers", "replicaSets", "statefulSets")
DEVICES = ("resourceSlices", "resourceClaims", "deviceClasses")

READ_ANNOTATIONS = frozenset(
    {
        labels.POD_DELETION_COST,
        "kubernetes.io/config.source",
        "kubernetes.io/config.mirror",
    }
)
READ_DOMAINS = ("karpenter.sh/", "karpenter.k8s.aws/", "joiner.dev/")
"""The annotations that the engine may read."""

PLACEHOLDER = "cluster"
"""A name for the cluster where none is given: nothing that is read depends on it."""

_BY_TYPE: Mapping[type, Kind[Any]] = {
    kind.type: kind for kind in vars(kinds).values() if isinstance(kind, Kind)
}

Say = Callable[[str], None]


class InstanceTypeSource(Protocol):
    """The part of a cloud that tells what can be bought."""

    async def start(self) -> None:
        """Load what every answer needs."""

    async def settle(self) -> None:
        """Wait for the calls under way."""

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every type the class could launch."""


def record(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `record`."""
    parser = argparse.ArgumentParser(
        prog="python -m controller record",
        description="Write the cluster that KUBECONFIG names as a world, to standard output. "
        "Nothing is changed anywhere. Instance types and prices are asked of AWS. What the "
        "controller runs with (FEATURE_GATES, PREFERENCE_POLICY …) is taken from the environment, "
        "or as flags of `run`.",
    )
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace names, namespaces and the values of labels; the world has the same answers",
    )
    chosen, settings = parser.parse_known_args(argv)

    def write() -> int:
        world = live(settings, environ)
        sys.stdout.write(json.dumps(redacted(world) if chosen.redact else world) + "\n")
        return 0

    return answered(write)


def live(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the cluster that the environment names, as a world; tells its progress on stderr.

    Raises:
        QuestionError: there is no way to it, or what there must be cannot be read.

    """
    try:
        options = Options.parse(argv, {"CLUSTER_NAME": PLACEHOLDER, **environ})
        cluster_access = access_of(environ)
        return asyncio.run(_live(replace(options, disruption_mode="observe"), cluster_access))
    except (OptionsError, access.AccessError) as error:
        raise QuestionError(str(error)) from error


def access_of(environ: Mapping[str, str]) -> access.Access:
    """Return the way to the cluster, as kubectl finds it.

    Raises:
        AccessError: there is none, or one that cannot be used.

    """
    usual = Path(environ.get("HOME", "")) / ".kube" / "config"
    if "KUBECONFIG" not in environ and usual.is_absolute() and usual.is_file():
        return access.from_kubeconfig(usual)
    return access.from_environment(environ)


async def _live(options: Options, cluster_access: access.Access) -> dict[str, Any]:
    async with Client(cluster_access, user_agent="joiner") as client:
        try:
            market: InstanceTypeSource | None = AWSCloudProvider(options)
        except CloudProviderError as error:
            _say(f"instance types cannot be read: {error}")
            market = None
        return await recorded(ReadOnlyApiServer(client), market, options, _say)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def recorded(
    api: ApiServer, market: InstanceTypeSource | None, options: Options, say: Say
) -> dict[str, Any]:
    """Return what an API server and a market tell, as a world; `say` hears of progress, and of
    what cannot be read.

    Raises:
        QuestionError: what there must be cannot be read.

    """
    world: dict[str, Any] = {}
    for key in _wanted(options):
        kind = _BY_TYPE[KINDS[key]]
        try:
            objects = await api.list(kind)
        except ApiError as error:
            if key in ESSENTIAL:
                raise QuestionError(f"{kind.plural} cannot be read: {error}") from error
            say(f"{kind.plural} cannot be read, and are left out: {error}")
            continue
        world[key] = [_cut(to_wire(stored)) for stored in objects]
        say(f"{kind.plural}: {len(objects)}")
    world["settings"] = _settings(options)
    world["instanceTypes"] = await _types(api, market, say)
    return world


def _wanted(options: Options) -> list[str]:
    gates = options.feature_gates
    wanted = [
        *ALWAYS,
        *(("nodeOverlays",) if gates.node_overlay else ()),
        *(BUFFERING if gates.capacity_buffer else ()),
        *(SPREADING if options.scheduler_config else ()),
        *(() if options.ignore_dra_requests else DEVICES),
    ]
    return list(dict.fromkeys(wanted))


def _settings(options: Options) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "PREFERENCE_POLICY": options.preference_policy,
        "MIN_VALUES_POLICY": options.min_values_policy,
        "IGNORE_DRA_REQUESTS": options.ignore_dra_requests,
    }
    chosen = to_environment(options)
    settings |= {name: chosen[name] for name in CALMING if name in chosen}
    if options.feature_gates.spot_to_spot_consolidation:
        settings["FEATURE_GATES"] = "SpotToSpotConsolidation=true"
    if given := options.scheduler_config:
        try:
            text = given if given.startswith("{") else Path(given).read_text()
            settings["SCHEDULER_CONFIG"] = yaml.safe_load(text)
        except (OSError, yaml.YAMLError) as error:
            raise QuestionError(f"SCHEDULER_CONFIG={given!r} cannot be read: {error}") from error
    return settings


async def _types(
    api: ApiServer, market: InstanceTypeSource | None, say: Say
) -> list[dict[str, Any]]:
    """Return what each pool of ours can buy; types that all see alike stand there once."""
    if market is None:
        return []
    offers: list[tuple[Sequence[InstanceType], list[str]]] = []
    try:
        classes = {
            node_class.metadata.name: node_class for node_class in await api.list(EC2_NODE_CLASS)
        }
        await market.start()
        for pool in await api.list(NODE_POOL):
            name = pool.metadata.name
            wanted = pool.spec.template.spec.node_class_ref.name
            if not is_ours(pool):
                continue
            if wanted not in classes:
                say(f"NodePool {name} can buy nothing: there is no EC2NodeClass {wanted}")
                continue
            try:
                types = await market.instance_types(classes[wanted], pool)
            except CloudProviderError as error:
                say(f"what NodePool {name} can buy cannot be read: {error}")
                continue
            say(f"NodePool {name}: {len(types)} instance types")
            known = next((pools for there, pools in offers if there == types), None)
            if known is None:
                offers.append((types, [name]))
            else:
                known.append(name)
    except (ApiError, CloudProviderError) as error:
        say(f"instance types cannot be read, and are left out: {error}")
        return []
    finally:
        await market.settle()
    alike = len(offers) == 1
    return [
        written(instance_type, node_pools=() if alike else pools)
        for types, pools in offers
        for instance_type in types
    ]


def _cut(value: Any) -> Any:
    """Leave out what nothing reads, and what may be a secret."""
    if isinstance(value, list):
        return [_cut(member) for member in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _kept((inner or {}).items()) if name == "annotations" else _cut(inner)
        for name, inner in value.items()
        if name != "image" or not isinstance(inner, str)
    }


def _kept(annotations: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {
        name: value
        for name, value in annotations
        if name in READ_ANNOTATIONS or name.startswith(READ_DOMAINS)
    }
