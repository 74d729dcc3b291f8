"""The control API of the testbed, under `/testbed/`, in JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs

from testbed.cloud import leftovers, zonalshift
from testbed.cloud.ec2 import addresses, images, networks, prices, spot
from testbed.cloud.ec2.instances import decoded_user_data, get
from testbed.cloud.ec2.instancetypes import TYPES, pods_by_interfaces, usage_classes, zones_of
from testbed.cloud.eks import service
from testbed.cloud.eks.accessentries import grants_access
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.wire import Response
from testbed.cloud.state.faults import Fault
from testbed.cloud.state.inventory import Instance
from testbed.cloud.state.world import World, now

LONGEST_WAIT = 60.0
"""Longest duration of a long poll, in seconds."""

GPU_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "habana": "habana.ai/gaudi"}
"""Manufacturer of a GPU → the extended resource of its device plugin."""

DESCRIBED_OF_ENTRY = ("clusterName", "principalArn", "type", "username", "kubernetesGroups")
DESCRIBED_OF_ASSOCIATION = ("clusterName", "namespace", "serviceAccount", "roleArn")

Query = Mapping[str, str]
Content = Mapping[str, Any]


def answer(world: World, environ: Mapping[str, Any], body: bytes) -> Response:
    """Answer one request to the control API.

    Status 400 for an invalid parameter, 404 for an unknown route or resource; the body's `error`
    gives the reason.
    """
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].removeprefix("/testbed/")
    query = {k: v[-1] for k, v in parse_qs(environ.get("QUERY_STRING", "")).items()}
    route = ROUTES.get((method, path.rstrip("/")))
    if route is None:
        return _json(404, {"error": f"there is no {method} /testbed/{path}"})
    try:
        content = json.loads(body) if body else {}
        return _json(200, route(world, query, content))
    except (ValueError, TypeError) as error:
        return _json(400, {"error": str(error)})
    except KeyError as error:
        return _json(400, {"error": f"{error} is missing"})
    except AwsError as error:
        return _json(404, {"error": error.message})


def _json(status: int, content: Any) -> Response:
    return Response(status, json.dumps(content).encode(), "application/json")


def _instances(world: World, query: Query, _: Content) -> Any:
    if "since" in query:
        timeout = min(float(query.get("timeout", 0)), LONGEST_WAIT)
        world.changes.wait(int(query["since"]), timeout=timeout)
    with world.lock:
        instances = list(world.instances.values())
        ways_out = {
            subnet: networks.reaches_out(world, subnet)
            for subnet in {each.subnet for each in instances}
        }
        return {
            "revision": world.changes.revision,
            "instances": [
                _instance(world, each, reaches_out=ways_out[each.subnet]) for each in instances
            ],
        }


def _instance(world: World, instance: Instance, *, reaches_out: bool) -> dict[str, Any]:
    return {
        "instanceId": instance.identity,
        "state": instance.state,
        "reboots": instance.reboots,
        "instanceType": instance.instance_type,
        "architecture": instance.architecture,
        "zone": instance.zone,
        "zoneId": instance.zone_id,
        "subnetId": instance.subnet,
        "reachesOut": reaches_out,
        "securityGroupIds": list(instance.interfaces[0].groups),
        "imageId": instance.image,
        "imageName": world.images[instance.image].name,
        "privateIp": instance.address,
        "privateDnsName": instance.private_dns_name,
        "userData": decoded_user_data(instance),
        "roleArn": instance.role,
        "capacityType": instance.capacity_type,
        "price": prices.price(instance.capacity_type, instance.instance_type, instance.zone),
        **_hardware(world, instance),
        "tags": world.all_tags(instance.identity),
        "revision": instance.revision,
    }


def _hardware(world: World, instance: Instance) -> dict[str, Any]:
    """Return the instance's hardware, from which the kubelet computes the node's capacity."""
    facts = TYPES[instance.instance_type]
    sizes = {volume.device: volume.settings["VolumeSize"] for volume in instance.volumes}
    is_bottlerocket = world.images[instance.image].name.startswith("bottlerocket")
    device = "/dev/xvdb" if is_bottlerocket and "/dev/xvdb" in sizes else instance.root_device
    return {
        "cpu": facts["VCpuInfo"]["DefaultVCpus"],
        "memoryMiB": facts["MemoryInfo"]["SizeInMiB"],
        "maxPods": pods_by_interfaces(instance.instance_type),
        "storageGiB": sizes[device],
        "localStorageGB": (facts.get("InstanceStorageInfo") or {}).get("TotalSizeInGB") or 0,
        "extendedResources": _extended_resources(instance, facts),
    }


def _extended_resources(instance: Instance, facts: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of devices that the device plugins on the node report."""
    counts: Counter[str] = Counter()
    for gpu in (facts.get("GpuInfo") or {}).get("Gpus") or []:
        if resource := GPU_RESOURCES.get(gpu["Manufacturer"].lower()):
            # EC2 counts a fractional GPU as 0; the device plugin counts one device.
            counts[resource] += gpu["Count"] or gpu.get("LogicalGpuCount") or 0
    for device in (facts.get("NeuronInfo") or {}).get("NeuronDevices") or []:
        counts["aws.amazon.com/neuron"] += device["Count"]
        counts["aws.amazon.com/neuroncore"] += device["Count"] * device["CoreInfo"]["Count"]
    counts["vpc.amazonaws.com/efa"] = sum(i.kind.startswith("efa") for i in instance.interfaces)
    return dict(+counts)


def _order_fault(world: World, _: Query, content: Content) -> Any:
    world.faults.order(Fault.parse(content))


def _clear_faults(world: World, _: Query, __: Content) -> Any:
    world.faults.clear()


def _set_capacity(world: World, _: Query, content: Content) -> Any:
    capacity_type, available = content["capacityType"], content["available"]
    if capacity_type not in ("spot", "on-demand"):
        raise ValueError(f"capacityType must be spot or on-demand, not {capacity_type}")
    if available is not None and (not isinstance(available, int) or available < 0):
        raise ValueError("available must be a number of instances, or null for no limit")
    with world.lock:
        for pool in _pools(world, content):
            if available is None:
                world.capacity.pop((capacity_type, *pool), None)
            else:
                world.capacity[capacity_type, *pool] = available
            world.capacity_errors.pop((capacity_type, *pool), None)
            if content.get("code"):
                error = content["code"], content.get("message") or content["code"]
                world.capacity_errors[capacity_type, *pool] = error


def _pools(world: World, content: Content) -> list[tuple[str, str]]:
    offered = zones_of(world.region)
    name, zone = content.get("instanceType", "*"), content.get("zone", "*")
    if name != "*" and name not in offered:
        raise ValueError(f"{name} is not offered in {world.region}")
    zones = sorted({each for of_type in offered.values() for each in of_type})
    if zone != "*" and zone not in zones:
        choices = ", ".join(zones)
        raise ValueError(f"{zone} is not a zone of {world.region}; its zones are {choices}")
    return [
        (each, where)
        for each in ([name] if name != "*" else sorted(offered))
        for where in (sorted(offered[each]) if zone == "*" else [zone])
    ]


def _set_addresses(world: World, _: Query, content: Content) -> Any:
    with world.lock:
        pool = addresses.pool(world, content["subnetId"])
        pool.held += pool.free - int(content["free"])


def _interrupt(world: World, _: Query, content: Content) -> Any:
    with world.lock:
        instance = get(world, content["instanceId"])
        delay = content.get("delaySeconds")
        spot.announce(
            world,
            instance,
            kind=content.get("kind", "spot"),
            delay=None if delay is None else float(delay),
        )


def _impair(world: World, _: Query, content: Content) -> Any:
    orders: dict[str, Any] = {}
    for kind in ("instance", "system"):
        if content.get(kind):
            orders[kind] = now() - timedelta(seconds=float(content.get("sinceSeconds", 0)))
    if content.get("eventCode"):
        orders["events"] = [
            {
                "Code": content["eventCode"],
                "Description": "Ordered by the test",
                "InstanceEventId": "instance-event-0123456789abcdef0",
                "NotBefore": now() + timedelta(days=1),
            }
        ]
    with world.lock:
        get(world, content["instanceId"]).impaired = orders or None


def _change_settings(world: World, _: Query, content: Content) -> Any:
    world.settings.change(content)


def _limit_pages(world: World, _: Query, content: Content) -> Any:
    largest = content["largest"]
    if largest is not None and (not isinstance(largest, int) or largest < 1):
        raise ValueError("largest must be a number of at least 1, or null for no limit")
    world.largest_page = largest


def _set_authentication_mode(world: World, _: Query, content: Content) -> Any:
    mode = content["mode"]
    if mode not in service.AUTHENTICATION_MODES:
        raise ValueError(
            f"mode must be one of {', '.join(service.AUTHENTICATION_MODES)}, not {mode}"
        )
    with world.lock:
        service.cluster(world, world.cluster.name)["accessConfig"]["authenticationMode"] = mode


def _access_entries(world: World, _: Query, __: Content) -> Any:
    with world.lock:
        return [
            {key: entry[key] for key in DESCRIBED_OF_ENTRY}
            for entry in world.clusters.access_entries.values()
            if grants_access(entry)
        ]


def _associations(world: World, _: Query, __: Content) -> Any:
    with world.lock:
        return [
            {key: each[key] for key in DESCRIBED_OF_ASSOCIATION}
            | {"isSeen": world.is_seen(each["associationId"])}
            for each in (*world.clusters.associations.values(), *world.lingering.values())
        ]


def _price(world: World, query: Query, _: Content) -> Any:
    name, zone, capacity_type = query["type"], query["zone"], query["capacityType"]
    if zone not in zones_of(world.region).get(name, ()) or capacity_type not in usage_classes(name):
        raise ValueError(f"{name} is not offered in {zone} as {capacity_type}")
    return prices.price(capacity_type, name, zone)


def _publish_images(world: World, _: Query, content: Content) -> Any:
    with world.lock:
        return images.publish_release(world, str(content["release"]))


def _shift(world: World, _: Query, content: Content) -> Any:
    zone = content["zoneId"]
    with world.lock:
        if content.get("active", True):
            zonalshift.start(world, zone)
        else:
            world.zonal_shifts.pop(zone, None)


def _clear_calls(world: World, _: Query, __: Content) -> Any:
    world.call_log.clear()


ROUTES: dict[tuple[str, str], Callable[[World, Query, Content], Any]] = {
    ("GET", "instances"): _instances,
    ("POST", "faults"): _order_fault,
    ("DELETE", "faults"): _clear_faults,
    ("POST", "capacity"): _set_capacity,
    ("POST", "addresses"): _set_addresses,
    ("POST", "interrupt"): _interrupt,
    ("POST", "impair"): _impair,
    ("POST", "settings"): _change_settings,
    ("POST", "pages"): _limit_pages,
    ("POST", "authentication-mode"): _set_authentication_mode,
    ("GET", "access-entries"): _access_entries,
    ("GET", "pod-identity-associations"): _associations,
    ("GET", "price"): _price,
    ("POST", "images"): _publish_images,
    ("POST", "zonal-shift"): _shift,
    ("GET", "leftovers"): lambda world, _, __: leftovers.report(world),
    ("GET", "calls"): lambda world, _, __: world.call_log.calls(),
    ("DELETE", "calls"): _clear_calls,
    ("GET", "rights"): lambda world, _, __: world.call_log.rights(),
    ("GET", "denied"): lambda world, _, __: world.call_log.denials(),
    ("GET", "unimplemented"): lambda world, _, __: world.call_log.missing_calls(),
}
"""(method, path under /testbed/) → function that answers the request."""
