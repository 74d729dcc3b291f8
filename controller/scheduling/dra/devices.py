"""Devices, the nodes that can use them, and the allocated part of them.

Published devices are read from ResourceSlices. Devices of nodes that are not launched yet come from
the templates of their instance types. Amounts are in thousandths of their unit. Source:
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.apis.kubernetes import devices as wire
from controller.apis.kubernetes.quantities import parse
from controller.apis.kubernetes.taints import Taint
from controller.constraints.cel import CelError, Quantity, Semver
from controller.scheduling.pods.devicerequests import EVERYWHERE, Reach, reach_of

Key = tuple[str, str, str, str]
"""The identity of a device: node, driver, pool and name.

The node is empty for a published device. For a device that is expected on a node it is the node's
name, or one name for all nodes that are not launched yet."""

CounterKey = tuple[str, str, str, str, str]
"""The identity of a counter: node, driver, pool, counter set and counter."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class AllocatableDevice:
    """One device that can be allocated.

    * `attributes`, `capacity`: by full name (`domain/id`).
    * `counters`: per counter that the device consumes, its key, the amount consumed and the total.
    * `shared`: whether the device allows multiple allocations.
    * `reach`: the nodes that can use the device.
    * `scope`: the variables that CEL expressions see.
    * `bound`: per attribute whose value is not known yet, the number of the group of devices that
      will share it.
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
        """The DRA driver of the device."""
        return self.key[1]

    @property
    def is_published(self) -> bool:
        """Whether a driver has published the device; otherwise it is expected on a new node."""
        return not self.key[0]

    def full(self, name: str) -> str:
        """Return the full name of an attribute or of a capacity."""
        return _full(name, self.driver)

    def __str__(self) -> str:
        """Return `driver/pool/name`, the form in which Kubernetes names a device."""
        return "/".join(self.key[1:])


@dataclass(slots=True)
class AllocatedDevices:
    """The allocated devices, shares of devices, and amounts of counters."""

    used: set[Key] = field(default_factory=set)
    counters: dict[CounterKey, int] = field(default_factory=dict)
    shares: dict[Key, list[Mapping[str, int]]] = field(default_factory=dict)

    def fork(self) -> AllocatedDevices:
        """Return an independent copy for trial allocations."""
        shares = {key: list(parts) for key, parts in self.shares.items()}
        return AllocatedDevices(set(self.used), dict(self.counters), shares)

    def is_free(self, device: AllocatableDevice, share: Mapping[str, int]) -> bool:
        """Whether the device, or a share of it, can still be allocated.

        `share` is the requested amount of each capacity of a shared device, by name.
        """
        if device.key in self.used:
            return False
        parts = self.shares.get(device.key, ())
        if device.shared:
            for name, amount in share.items():
                consumed = sum(part.get(name, 0) for part in parts)
                if consumed + amount > parse(device.capacity[name].value):
                    return False
        if parts:
            return True  # The first share of a device consumes its counters; later ones do not.
        return all(
            self.counters.get(key, 0) + amount <= total for key, amount, total in device.counters
        )

    def add(self, device: AllocatableDevice, share: Mapping[str, int]) -> None:
        """Record the device, or a share of it, as allocated."""
        if not device.shared:
            self.used.add(device.key)
        elif device.key in self.shares:
            self.shares[device.key].append(share)
            return
        else:
            self.shares[device.key] = [share]
        for key, amount, _ in device.counters:
            self.counters[key] = self.counters.get(key, 0) + amount

    def remove(self, device: AllocatableDevice, share: Mapping[str, int]) -> None:
        """Undo `add`."""
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
    """The devices that one node can use, in the order in which the search tries them.

    `error` says why the list may be incomplete. If it is set, no request for *all* devices can be
    met.
    """

    devices: tuple[AllocatableDevice, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Pool:
    devices: tuple[AllocatableDevice, ...]
    error: str


class Inventory:
    """The devices that drivers have published."""

    def __init__(
        self,
        slices: Iterable[wire.ResourceSlice],
        taint_rules: Sequence[wire.DeviceTaintRule] = (),
    ) -> None:
        """Read the ResourceSlices. Only the last generation of each device pool counts."""
        pools: defaultdict[tuple[str, str], list[wire.ResourceSlice]] = defaultdict(list)
        for resource_slice in slices:
            pools[(resource_slice.spec.driver, resource_slice.spec.pool.name)].append(
                resource_slice
            )
        self._pools = [_read_pool(pools[key], taint_rules) for key in sorted(pools)]
        self.by_key = {device.key: device for pool in self._pools for device in pool.devices}
        self.reaches = sorted(
            {device.reach for device in self.by_key.values() if not device.reach.node},
            key=lambda reach: str(reach.labels),
        )
        """The reaches of devices that belong to no single node, in a fixed order."""

    def on(self, node: str, labels: Mapping[str, str]) -> UsableDevices:
        """Return the devices that a node with this name and these labels can use."""
        return self._usable_by(lambda reach: reach.includes(node, labels))

    def within(self, met: Reach) -> UsableDevices:
        """Return the devices that every node in this reach can use; the reach names no node."""
        return self._usable_by(lambda reach: reach in (EVERYWHERE, met))

    def _usable_by(self, usable: Any) -> UsableDevices:
        """Return the devices whose reach `usable` accepts, the node's own devices first.

        Device pools that are incomplete or malformed are left out; `error` describes the first one.
        """
        usable_devices: list[AllocatableDevice] = []
        error = ""
        for pool in self._pools:
            reached = [device for device in pool.devices if usable(device.reach)]
            if reached and pool.error:
                error = error or pool.error
            else:
                usable_devices.extend(reached)
        # The node's own devices come first, so that devices that other nodes can use stay free.
        usable_devices.sort(key=lambda device: not device.reach.node)
        return UsableDevices(tuple(usable_devices), error)


def expected_devices(
    resources: wire.DynamicResources,
    node: str,
    taint_rules: Sequence[wire.DeviceTaintRule] = (),
) -> tuple[AllocatableDevice, ...]:
    """Return the devices that drivers will publish on a node of an instance type.

    `node` is the node in the keys of the devices.

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
                (node, template.driver, template.pool.name),
                EVERYWHERE,
                totals,
                taint_rules,
                bound.get((template.driver, template.pool.name, device.name), {}),
            )
            for device in template.devices
        )
    return tuple(devices)


def _bound(
    bindings: Sequence[wire.AttributeBinding],
) -> dict[tuple[str, str, str], dict[str, int]]:
    """Return, per device and attribute, the number of the group of devices with an equal value.

    Groups that have a device in common are merged.
    """
    numbers: dict[tuple[str, str, str], dict[str, int]] = {}
    for number, binding in enumerate(bindings):
        if len(binding.devices) < 2:
            continue
        members = {(member.driver, member.pool, member.device) for member in binding.devices}
        merged = {
            known[binding.attribute]
            for key, known in numbers.items()
            if key in members and binding.attribute in known
        }
        for key, known in numbers.items():
            if known.get(binding.attribute) in merged:
                members.add(key)
        for key in members:
            numbers.setdefault(key, {})[binding.attribute] = number
    return numbers


def _read_pool(
    slices: Sequence[wire.ResourceSlice], taint_rules: Sequence[wire.DeviceTaintRule]
) -> _Pool:
    """Return the devices of a device pool, and the reason if the list may be incomplete."""
    last = max(resource_slice.spec.pool.generation for resource_slice in slices)
    current = [
        resource_slice for resource_slice in slices if resource_slice.spec.pool.generation == last
    ]
    pool = current[0].spec.pool
    name = f"{current[0].spec.driver}/{pool.name}"
    if len(current) != pool.resource_slice_count:
        published = f"{len(current)} of {pool.resource_slice_count}"
        error = f"the driver has published {published} ResourceSlices of device pool {name}"
    else:
        error = ""
    totals = _totals(
        counters for resource_slice in current for counters in resource_slice.spec.shared_counters
    )
    devices: list[AllocatableDevice] = []
    for resource_slice in sorted(current, key=lambda resource_slice: resource_slice.metadata.name):
        prefix = ("", resource_slice.spec.driver, pool.name)
        try:
            for device in resource_slice.spec.devices:
                reach = _slice_reach(resource_slice.spec, device)
                devices.append(_device(device, prefix, reach, totals, taint_rules, {}))
        except ValueError as exc:
            error = error or f"device pool {name} is malformed: {exc}"
    if len({device.key for device in devices}) < len(devices):
        error = error or f"device pool {name} contains a device twice"
    return _Pool(tuple(devices), error)


def _slice_reach(spec: wire.ResourceSliceSpec, device: wire.Device) -> Reach:
    source: wire.ResourceSliceSpec | wire.Device = (
        device if spec.per_device_node_selection else spec
    )
    if source.node_name:
        return Reach(source.node_name)
    return reach_of(source.node_selector) if source.node_selector is not None else EVERYWHERE


def _totals(sets: Iterable[wire.CounterSet]) -> dict[tuple[str, str], int]:
    return {
        (counter_set.name, name): parse(counter.value)
        for counter_set in sets
        for name, counter in counter_set.counters.items()
    }


def _device(
    device: wire.Device,
    prefix: tuple[str, str, str],
    reach: Reach,
    totals: Mapping[tuple[str, str], int],
    taint_rules: Sequence[wire.DeviceTaintRule],
    bound: Mapping[str, int],
) -> AllocatableDevice:
    """Return a device of a ResourceSlice or template.

    `prefix` is the start of its key, `totals` the total of each counter by counter set and name.

    Raises:
        ValueError: a value is malformed, or a counter does not exist.

    """
    driver = prefix[1]
    attributes = {_full(n, driver): _value(attribute) for n, attribute in device.attributes.items()}
    capacity = {_full(name, driver): amount for name, amount in device.capacity.items()}
    amounts = {name: Quantity(parse(amount.value)) for name, amount in capacity.items()}
    counters = []
    for consumed in device.consumes_counters:
        for name, counter in consumed.counters.items():
            if (consumed.counter_set, name) not in totals:
                raise ValueError(f"device {device.name}: no counter {consumed.counter_set}/{name}")
            total = totals[(consumed.counter_set, name)]
            counters.append(((*prefix, consumed.counter_set, name), parse(counter.value), total))
    key = (*prefix, device.name)
    return AllocatableDevice(
        key=key,
        attributes=attributes,
        capacity=capacity,
        counters=tuple(counters),
        taints=(*device.taints, *_taints(taint_rules, key)),
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


def _taints(rules: Iterable[wire.DeviceTaintRule], key: Key) -> Iterator[Taint]:
    """Yield the taints that DeviceTaintRules add to a device.

    The pool names of expected devices are not known, so a rule that names a pool selects none of
    them. A rule for all devices of a driver selects expected devices too.
    """
    node, driver, pool, name = key
    for rule in rules:
        selector = rule.spec.device_selector
        if (
            selector is not None
            and selector.driver in {None, driver}
            and selector.pool in {None, None if node else pool}
            and selector.device in {None, name}
        ):
            yield rule.spec.taint


def _full(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


class _AttributesByDomain(dict[str, dict[str, Any]]):
    """Attributes by domain; an unknown domain has no attributes."""

    def __missing__(self, domain: str) -> dict[str, Any]:
        return {}


def _by_domain(values: Mapping[str, Any]) -> _AttributesByDomain:
    by_domain = _AttributesByDomain()
    for name, value in values.items():
        domain, _, identity = name.partition("/")
        by_domain.setdefault(domain, {})[identity] = value
    return by_domain


def _value(attribute: wire.DeviceAttribute) -> Any:
    """Return an attribute's value.

    Raises:
        ValueError: the value is malformed, or there is not exactly one.

    """
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
        raise ValueError("an attribute needs exactly one of int, bool, string, version or a list")
    return values[0]
