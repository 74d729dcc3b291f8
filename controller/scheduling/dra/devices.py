"""Devices: what there is, from which nodes it can be reached, and what of it is taken.

Published devices stand in ResourceSlices, those of nodes yet to be made in the templates of
their instance types. Amounts are in thousandths of their unit.
Source: https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.apis import devices as wire
from controller.apis.quantities import parse
from controller.apis.taints import Taint
from controller.constraints.cel import CelError, Quantity, Semver
from controller.scheduling.pods.devicerequests import EVERYWHERE, Reach, reach_of

Key = tuple[str, str, str, str]
"""Where a device is promised (empty for a published one), its driver, pool and name."""

CounterKey = tuple[str, str, str, str, str]
"""The same of a counter: place, driver, pool, counter set and counter."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AllocatableDevice:
    """One device.

    `attributes` are by full name (`domain/id`), `capacity` as well; `counters` says what
    it takes of each counter and how much there is in all; `scope` is what CEL sees.
    `bound` numbers, per attribute, the devices known to share a value yet unknown.
    """

    key: Key
    attributes: Mapping[str, Any]
    capacity: Mapping[str, wire.DeviceCapacity]
    counters: tuple[tuple[CounterKey, int, int], ...]
    taints: tuple[Taint, ...]
    shared: bool
    reach: Reach
    scope: Mapping[str, Any]
    bound: Mapping[str, int] = field(default_factory=dict)

    @property
    def driver(self) -> str:
        """The driver that looks after it."""
        return self.key[1]

    @property
    def is_published(self) -> bool:
        """Whether it is there, and not just promised."""
        return not self.key[0]

    def full(self, name: str) -> str:
        """Return the full name of an attribute or of a capacity."""
        return _full(name, self.driver)

    def __str__(self) -> str:
        """`driver/pool/name`, the way Kubernetes names a device."""
        return "/".join(self.key[1:])


@dataclass(slots=True)
class DeviceLedger:
    """What of the devices is taken."""

    used: set[Key] = field(default_factory=set)
    counters: dict[CounterKey, int] = field(default_factory=dict)
    shares: dict[Key, list[Mapping[str, int]]] = field(default_factory=dict)

    def fork(self) -> DeviceLedger:
        """Return a copy to try things on."""
        shares = {key: list(parts) for key, parts in self.shares.items()}
        return DeviceLedger(set(self.used), dict(self.counters), shares)

    def is_free(self, device: AllocatableDevice, share: Mapping[str, int]) -> bool:
        """Whether the device, or this share of one that can be shared, is still to be had."""
        if device.key in self.used:
            return False
        parts = self.shares.get(device.key, ())
        if device.shared:
            for name, amount in share.items():
                taken = sum(part.get(name, 0) for part in parts)
                if taken + amount > parse(device.capacity[name].value):
                    return False
        if parts:
            return True  # whoever took the first share has paid the counters
        return all(
            self.counters.get(key, 0) + amount <= total for key, amount, total in device.counters
        )

    def take(self, device: AllocatableDevice, share: Mapping[str, int]) -> None:
        """Take the device, or a share of it."""
        if not device.shared:
            self.used.add(device.key)
        elif device.key in self.shares:
            self.shares[device.key].append(share)
            return
        else:
            self.shares[device.key] = [share]
        for key, amount, _ in device.counters:
            self.counters[key] = self.counters.get(key, 0) + amount

    def give_back(self, device: AllocatableDevice, share: Mapping[str, int]) -> None:
        """Undo `take`."""
        if not device.shared:
            self.used.discard(device.key)
        else:
            self.shares[device.key].remove(share)
            if self.shares[device.key]:
                return
            del self.shares[device.key]
        for key, amount, _ in device.counters:
            self.counters[key] -= amount


@dataclass(frozen=True, slots=True)
class UsableDevices:
    """The devices that can be used on some node, in the order in which they are tried.

    `flaw` says why it is not known to be all of them; then nobody can have *all* devices.
    """

    devices: tuple[AllocatableDevice, ...] = ()
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class _Pool:
    devices: tuple[AllocatableDevice, ...]
    flaw: str


class Inventory:
    """The devices that drivers have published."""

    def __init__(self, slices: Iterable[wire.ResourceSlice]) -> None:
        """Read the slices, of which only each pool's last generation counts."""
        pools: defaultdict[tuple[str, str], list[wire.ResourceSlice]] = defaultdict(list)
        for resource_slice in slices:
            pools[(resource_slice.spec.driver, resource_slice.spec.pool.name)].append(
                resource_slice
            )
        self._pools = [_read_pool(pools[key]) for key in sorted(pools)]
        self.by_key = {device.key: device for pool in self._pools for device in pool.devices}
        self.reaches = sorted(
            {device.reach for device in self.by_key.values() if not device.reach.node},
            key=lambda reach: str(reach.labels),
        )
        """From where devices that belong to no node can be used."""

    def on(self, node: str, labels: Mapping[str, str]) -> UsableDevices:
        """Return what a node can use."""
        return self._usable_by(lambda reach: reach.includes(node, labels))

    def within(self, met: Reach) -> UsableDevices:
        """Return what any node can use that lies in this reach, which names no node."""
        return self._usable_by(lambda reach: reach in (EVERYWHERE, met))

    def _usable_by(self, usable: Any) -> UsableDevices:
        usable_devices: list[AllocatableDevice] = []
        flaw = ""
        for pool in self._pools:
            reached = [device for device in pool.devices if usable(device.reach)]
            if reached and pool.flaw:
                flaw = flaw or pool.flaw
            else:
                usable_devices.extend(reached)
        # What belongs to the node goes first: what others can use as well is left to them.
        usable_devices.sort(key=lambda device: not device.reach.node)
        return UsableDevices(tuple(usable_devices), flaw)


def promised(resources: wire.DynamicResources, place: str) -> tuple[AllocatableDevice, ...]:
    """Return the devices that a node of an instance type will have; `place` tells nodes apart.

    Raises:
        ValueError: a device is malformed.

    """
    bound = _bound(resources.attribute_bindings)
    devices: list[AllocatableDevice] = []
    for template in resources.resource_slice_templates:
        totals = _totals(
            counters
            for other in resources.resource_slice_templates
            if (other.driver, other.pool.name) == (template.driver, template.pool.name)
            for counters in other.shared_counters
        )
        devices.extend(
            _device(
                device,
                (place, template.driver, template.pool.name),
                EVERYWHERE,
                totals,
                bound.get((template.driver, template.pool.name, device.name), {}),
            )
            for device in template.devices
        )
    return tuple(devices)


def _bound(
    bindings: Sequence[wire.AttributeBinding],
) -> dict[tuple[str, str, str], dict[str, int]]:
    """Number the devices of a type that will share an attribute; groups that touch are one."""
    numbers: dict[tuple[str, str, str], dict[str, int]] = {}
    for number, binding in enumerate(bindings):
        if len(binding.devices) < 2:
            continue
        members = {(member.driver, member.pool, member.device) for member in binding.devices}
        touched = {
            known[binding.attribute]
            for key, known in numbers.items()
            if key in members and binding.attribute in known
        }
        for key, known in numbers.items():
            if known.get(binding.attribute) in touched:
                members.add(key)
        for key in members:
            numbers.setdefault(key, {})[binding.attribute] = number
    return numbers


def _read_pool(slices: Sequence[wire.ResourceSlice]) -> _Pool:
    last = max(resource_slice.spec.pool.generation for resource_slice in slices)
    current = [
        resource_slice for resource_slice in slices if resource_slice.spec.pool.generation == last
    ]
    pool = current[0].spec.pool
    name = f"{current[0].spec.driver}/{pool.name}"
    if len(current) != pool.resource_slice_count:
        flaw = f"pool {name} shows {len(current)} of its {pool.resource_slice_count} slices"
    else:
        flaw = ""
    totals = _totals(
        counters for resource_slice in current for counters in resource_slice.spec.shared_counters
    )
    devices: list[AllocatableDevice] = []
    for resource_slice in sorted(current, key=lambda resource_slice: resource_slice.metadata.name):
        place = ("", resource_slice.spec.driver, pool.name)
        try:
            for device in resource_slice.spec.devices:
                devices.append(
                    _device(device, place, _slice_reach(resource_slice.spec, device), totals, {})
                )
        except ValueError as exc:
            flaw = flaw or f"pool {name} is malformed: {exc}"
    if len({device.key for device in devices}) < len(devices):
        flaw = flaw or f"pool {name} names a device twice"
    return _Pool(tuple(devices), flaw)


def _slice_reach(spec: wire.ResourceSliceSpec, device: wire.Device) -> Reach:
    told: wire.ResourceSliceSpec | wire.Device = device if spec.per_device_node_selection else spec
    if told.node_name:
        return Reach(told.node_name)
    return reach_of(told.node_selector) if told.node_selector is not None else EVERYWHERE


def _totals(sets: Iterable[wire.CounterSet]) -> dict[tuple[str, str], int]:
    return {
        (counter_set.name, name): parse(counter.value)
        for counter_set in sets
        for name, counter in counter_set.counters.items()
    }


def _device(
    device: wire.Device,
    place: tuple[str, str, str],
    reach: Reach,
    totals: Mapping[tuple[str, str], int],
    bound: Mapping[str, int],
) -> AllocatableDevice:
    driver = place[1]
    attributes = {_full(n, driver): _value(attribute) for n, attribute in device.attributes.items()}
    capacity = {_full(name, driver): amount for name, amount in device.capacity.items()}
    amounts = {name: Quantity(parse(amount.value)) for name, amount in capacity.items()}
    counters = []
    for taken in device.consumes_counters:
        for name, counter in taken.counters.items():
            if (taken.counter_set, name) not in totals:
                raise ValueError(f"device {device.name}: no counter {taken.counter_set}/{name}")
            total = totals[(taken.counter_set, name)]
            counters.append(((*place, taken.counter_set, name), parse(counter.value), total))
    return AllocatableDevice(
        key=(*place, device.name),
        attributes=attributes,
        capacity=capacity,
        counters=tuple(counters),
        taints=tuple(device.taints),
        shared=device.allow_multiple_allocations,
        reach=reach,
        scope={
            "device": {
                "driver": driver,
                "allowMultipleAllocations": device.allow_multiple_allocations,
                "attributes": _by_domain(attributes),
                "capacity": _by_domain(amounts),
            }
        },
        bound=bound,
    )


def _full(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


class _AttributesByDomain(dict[str, dict[str, Any]]):
    """Attributes by domain; one of which nothing is known is an empty one."""

    def __missing__(self, domain: str) -> dict[str, Any]:
        return {}


def _by_domain(values: Mapping[str, Any]) -> _AttributesByDomain:
    by_domain = _AttributesByDomain()
    for name, value in values.items():
        domain, _, identity = name.partition("/")
        by_domain.setdefault(domain, {})[identity] = value
    return by_domain


def _value(attribute: wire.DeviceAttribute) -> Any:
    try:
        if attribute.version is not None:
            return Semver.read(attribute.version)
        if attribute.versions is not None:
            return [Semver.read(version) for version in attribute.versions]
    except CelError as exc:
        raise ValueError(f"attribute: {exc}") from exc
    plain = (
        attribute.integer,
        attribute.boolean,
        attribute.string,
        attribute.integers,
        attribute.booleans,
        attribute.strings,
    )
    values = [value for value in plain if value is not None]
    if len(values) != 1:
        raise ValueError("an attribute has one of int, bool, string, version and their lists")
    return values[0]
