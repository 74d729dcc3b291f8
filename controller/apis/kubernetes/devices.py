"""Dynamic resource allocation, `resource.k8s.io/v1`: devices and claims to them.

DRA drivers publish devices in ResourceSlices, administrators group devices in DeviceClasses, and a
pod requests devices with a ResourceClaim of its own or a shared one. For nodes that do not exist
yet, `DynamicResources` describes the devices that an instance type will have.
"""

from __future__ import annotations

import msgspec

from controller.apis.kubernetes.meta import KubernetesObject, Wire
from controller.apis.kubernetes.pods import NodeSelector, Quantities
from controller.apis.kubernetes.taints import Taint, Toleration

Amount = str | int | float
"""A quantity as written by the user."""


class DeviceAttribute(Wire):
    """The value of a device attribute: exactly one of these fields."""

    integer: int | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    integers: list[int] | None = msgspec.field(default=None, name="ints")
    booleans: list[bool] | None = msgspec.field(default=None, name="bools")
    strings: list[str] | None = None
    versions: list[str] | None = None


class CapacityRange(Wire):
    """The minimum, maximum and step of the capacity that a request may consume."""

    min: Amount | None = None
    max: Amount | None = None
    step: Amount | None = None


class CapacityPolicy(Wire):
    """The amounts of a shared device's capacity that a request may consume."""

    default: Amount | None = None
    valid_values: list[Amount] = []
    valid_range: CapacityRange | None = None


class DeviceCapacity(Wire):
    """An amount of capacity of a device."""

    value: Amount = 0
    request_policy: CapacityPolicy | None = None


class Counter(Wire):
    """An amount that several devices share."""

    value: Amount = 0


class CounterSet(Wire):
    """Counters that devices of the same hardware share."""

    name: str = ""
    counters: dict[str, Counter] = {}


class CounterConsumption(Wire):
    """The counters that an allocation of the device consumes."""

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
    """The pool of a slice; only the slices of the pool's highest generation count."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class ResourceSliceSpec(Wire):
    """The devices of one driver, and the nodes that can access them."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []


class ResourceSlice(KubernetesObject):
    """A ResourceSlice, as a driver publishes it."""

    spec: ResourceSliceSpec = ResourceSliceSpec()


class CelSelector(Wire):
    """A CEL expression that selects devices."""

    expression: str = ""


class DeviceSelector(Wire):
    """A device selector; CEL is the only type."""

    cel: CelSelector | None = None


class DeviceClassSpec(Wire):
    """The selectors that all devices of the class meet."""

    selectors: list[DeviceSelector] = []


class DeviceClass(KubernetesObject):
    """A DeviceClass object."""

    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceTaintSelector(Wire):
    """The devices that a DeviceTaintRule taints; a field that is not set selects all devices."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Wire):
    """A taint for the selected devices; without a selector, no device is selected."""

    taint: Taint
    device_selector: DeviceTaintSelector | None = None


class DeviceTaintRule(KubernetesObject):
    """A DeviceTaintRule object: a taint that an administrator puts on devices."""

    spec: DeviceTaintRuleSpec


class CapacityRequirements(Wire):
    """The capacity that a request consumes of a device that may be shared."""

    requests: Quantities = {}


class DeviceRequest(Wire):
    """A request for devices of one class: `count` devices (`ExactCount`), or `All` of them.

    `name` is set if the request is one of several alternatives.
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
    """A request of a claim: an exact one, or the first available of several."""

    name: str = ""
    exactly: DeviceRequest | None = None
    first_available: list[DeviceRequest] = []


class DeviceConstraint(Wire):
    """An attribute that devices must share or must not share; for all requests, or those named."""

    requests: list[str] = []
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(Wire):
    """The requests and constraints of a claim."""

    requests: list[NamedDeviceRequest] = []
    constraints: list[DeviceConstraint] = []


class ResourceClaimSpec(Wire):
    """The desired devices of a ResourceClaim."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(Wire):
    """A device, or a share of it, that is allocated to a claim."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    consumed_capacity: Quantities = {}


class AllocatedDevices(Wire):
    """All devices that are allocated to a claim."""

    results: list[AllocatedDevice] = []


class Allocation(Wire):
    """The allocation of a claim; without `node_selector`, every node can use it."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None


class Consumer(Wire):
    """An object that may use a claim: in practice a pod."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Wire):
    """The allocation of a claim, and its consumers."""

    allocation: Allocation | None = None
    reserved_for: list[Consumer] = []


class ResourceClaim(KubernetesObject):
    """A ResourceClaim object."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class TemplatePool(Wire):
    """The pool of devices that do not exist yet."""

    name: str = ""


class ResourceSliceTemplate(Wire):
    """The devices that a driver will publish on each node of an instance type."""

    driver: str = ""
    pool: TemplatePool = TemplatePool()
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []


class DeviceReference(Wire):
    """A reference to one device."""

    driver: str = ""
    pool: str = ""
    device: str = ""


class AttributeBinding(Wire):
    """Devices that will share an attribute whose value is not known yet."""

    attribute: str = ""
    devices: list[DeviceReference] = []


class DynamicResources(Wire):
    """The expected devices of an instance type that has no node yet."""

    resource_slice_templates: list[ResourceSliceTemplate] = []
    attribute_bindings: list[AttributeBinding] = []

    @property
    def any(self) -> bool:
        """Whether there are any devices."""
        return any(template.devices for template in self.resource_slice_templates)
