"""Dynamic resource allocation, `resource.k8s.io/v1`: devices, and the claims to them.

Drivers publish what devices there are in ResourceSlices, administrators name kinds of
them by DeviceClasses, and a pod asks for some by a ResourceClaim of its own or a shared one.
"""

from __future__ import annotations

import msgspec

from controller.apis.meta import ObjectMeta, Wire
from controller.apis.pods import NodeSelector, Quantities
from controller.apis.taints import Taint, Toleration

Amount = str | int | float
"""A quantity as written by the user."""


class DeviceAttribute(Wire):
    """What a device says of itself under one name: one of these."""

    integer: int | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    integers: list[int] | None = msgspec.field(default=None, name="ints")
    booleans: list[bool] | None = msgspec.field(default=None, name="bools")
    strings: list[str] | None = None
    versions: list[str] | None = None


class CapacityRange(Wire):
    """From where to where, and in which steps, a share of a device may be asked for."""

    min: Amount | None = None
    max: Amount | None = None
    step: Amount | None = None


class CapacityPolicy(Wire):
    """Which shares of a device may be asked for."""

    default: Amount | None = None
    valid_values: list[Amount] = []
    valid_range: CapacityRange | None = None


class DeviceCapacity(Wire):
    """How much of something a device has."""

    value: Amount = 0
    request_policy: CapacityPolicy | None = None


class Counter(Wire):
    """An amount shared by devices."""

    value: Amount = 0


class CounterSet(Wire):
    """What devices cut from one piece of hardware share."""

    name: str = ""
    counters: dict[str, Counter] = {}


class CounterConsumption(Wire):
    """What a device takes of a counter set once it is allocated."""

    counter_set: str = ""
    counters: dict[str, Counter] = {}


class Device(Wire):
    """A device. Attributes and capacity are named `domain/id`, or `id` in the driver's domain."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: list[CounterConsumption] = []
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    taints: list[Taint] = []
    allow_multiple_allocations: bool = False


class ResourcePool(Wire):
    """The pool a slice is part of; only slices of its last generation count."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(Wire):
    """Devices of one driver, and from which nodes they can be reached."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []


class ResourceSlice(Wire):
    """A ResourceSlice, as a driver publishes it."""

    metadata: ObjectMeta
    spec: ResourceSliceSpec = ResourceSliceSpec()


class CelSelector(Wire):
    """A condition on devices in CEL."""

    expression: str = ""


class DeviceSelector(Wire):
    """A condition on devices; CEL is the only kind there is."""

    cel: CelSelector | None = None


class DeviceClassSpec(Wire):
    """What all devices of the class have in common."""

    selectors: list[DeviceSelector] = []


class DeviceClass(Wire):
    """A DeviceClass."""

    metadata: ObjectMeta
    spec: DeviceClassSpec = DeviceClassSpec()


class CapacityRequirements(Wire):
    """Which share is asked of a device that may be shared."""

    requests: Quantities = {}


class DeviceRequest(Wire):
    """Devices of one class: so many (`ExactCount`), or `All` there are.

    `name` is set where the request is one of several alternatives.
    """

    name: str = ""
    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: list[Toleration] = []
    capacity: CapacityRequirements | None = None


class NamedDeviceRequest(Wire):
    """A request of a claim: exactly this, or the first of several that can be had."""

    name: str = ""
    exactly: DeviceRequest | None = None
    first_available: list[DeviceRequest] = []


class DeviceConstraint(Wire):
    """What devices of a claim must share, or never share; of all requests, or those named."""

    requests: list[str] = []
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(Wire):
    """What a claim asks for."""

    requests: list[NamedDeviceRequest] = []
    constraints: list[DeviceConstraint] = []


class ResourceClaimSpec(Wire):
    """What a claim asks for."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(Wire):
    """One device that a claim was given, or a share of it."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    consumed_capacity: Quantities = {}


class AllocatedDevices(Wire):
    """All devices that a claim was given."""

    results: list[AllocatedDevice] = []


class Allocation(Wire):
    """What a claim was given; without `node_selector` it can be used on every node."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None


class Consumer(Wire):
    """Who may use a claim: in practice a pod."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Wire):
    """What a claim was given, and who uses it."""

    allocation: Allocation | None = None
    reserved_for: list[Consumer] = []


class ResourceClaim(Wire):
    """A ResourceClaim."""

    metadata: ObjectMeta
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class TemplatePool(Wire):
    """The pool of devices that are not there yet."""

    name: str = ""


class ResourceSliceTemplate(Wire):
    """The devices a driver will publish on each node of an instance type."""

    driver: str = ""
    pool: TemplatePool = TemplatePool()
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []


class DeviceReference(Wire):
    """Names one device."""

    driver: str = ""
    pool: str = ""
    device: str = ""


class AttributeBinding(Wire):
    """Devices of which it is known that they will share an attribute, but not its value."""

    attribute: str = ""
    devices: list[DeviceReference] = []


class DynamicResources(Wire):
    """What is known of the devices of an instance type before there is a node of it."""

    resource_slice_templates: list[ResourceSliceTemplate] = []
    attribute_bindings: list[AttributeBinding] = []

    @property
    def any(self) -> bool:
        """Whether there are any devices."""
        return any(template.devices for template in self.resource_slice_templates)
