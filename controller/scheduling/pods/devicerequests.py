"""Device requests of pods, and the nodes that can use allocated devices.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.apis.kubernetes import devices as wire
from controller.apis.kubernetes.pods import NodeSelector
from controller.apis.kubernetes.quantities import parse
from controller.apis.kubernetes.taints import Toleration
from controller.constraints import requirements
from controller.constraints.cel import CelError, Expression, expression

ALL = "All"
"""The allocation mode that gives a request all devices that meet its selectors."""

_NODE_NAME = "metadata.name"


class AllocationError(ValueError):
    """A claim cannot be allocated in its present state; the message says why."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The nodes that can use a device: the node named, or those whose labels meet `labels`."""

    node: str = ""
    labels: tuple[tuple[str, requirements.ValueSet], ...] = ()

    def includes(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether a node with this name and these labels can use the device."""
        if self.node and self.node != node:
            return False
        return requirements.met_by_labels(dict(self.labels), labels)


EVERYWHERE = Reach()


def reach_of(selector: NodeSelector) -> Reach:
    """Return the nodes that can use an allocation or a ResourceSlice; its selector has one term.

    Raises:
        ValueError: a term is malformed.

    """
    terms = selector.node_selector_terms
    if not terms:
        return EVERYWHERE
    names = [v for term in terms[0].match_fields if term.key == _NODE_NAME for v in term.values]
    met = requirements.read(terms[0].match_expressions)
    return Reach(names[0] if names else "", tuple(sorted(met.items())))


@dataclass(frozen=True, slots=True)
class CompiledSelector:
    """A compiled CEL condition on devices.

    `where` names its origin, such as `class gpu` or `request gpu`.
    """

    where: str
    condition: Expression


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RequestAlternative:
    """One alternative of a request: `count` devices that meet the selectors, or all of them if 0.

    `name` is `request` or `request/alternative`. `share` is the requested capacity of a shared
    device, in thousandths of its unit. `cache` has the result of the selectors per device.
    """

    name: str
    class_name: str
    selectors: tuple[CompiledSelector, ...]
    count: int
    admin: bool
    tolerations: tuple[Toleration, ...]
    share: Mapping[str, int]
    cache: dict[object, bool] = field(default_factory=dict)

    @property
    def selection(self) -> tuple[object, ...]:
        """The class, conditions and tolerations, which determine the accepted devices."""
        texts = (selector.condition.text for selector in self.selectors)
        return (self.class_name, *texts, *self.tolerations)

    def __str__(self) -> str:
        """Return a description such as `2 devices of class gpu where …`."""
        amount = f"{self.count} devices" if self.count > 1 else "device"
        own = [
            selector.condition.text
            for selector in self.selectors
            if selector.where.startswith("request")
        ]
        return f"{amount} of class {self.class_name}" + (
            f" where {' && '.join(own)}" if own else ""
        )


@dataclass(frozen=True, slots=True)
class AttributeConstraint:
    """A constraint that devices have equal values of an attribute, or different ones (`distinct`).

    It applies to the devices of the `requests` named, or of all requests if none is named.
    """

    attribute: str
    requests: frozenset[str]
    distinct: bool

    def binds(self, alternative: RequestAlternative) -> bool:
        """Whether the constraint applies to devices chosen by this alternative."""
        own = {alternative.name, alternative.name.partition("/")[0]}
        return not self.requests or bool(own & self.requests)


@dataclass(frozen=True, eq=False, slots=True)
class ClaimRequests:
    """The requests of a claim. Each request lists its alternatives in order of preference."""

    requests: tuple[tuple[RequestAlternative, ...], ...]
    constraints: tuple[AttributeConstraint, ...]


@dataclass(frozen=True, eq=False, slots=True)
class DeviceRequests:
    """The devices that the pods of one class claim.

    * `own`: the unallocated claims that each pod has to itself.
    * `common`: the keys of unallocated claims that other pods use as well.
    * `reach`: the nodes that can use the claims that are allocated already.
    * `signature`: equal for pods with equal claims.
    """

    own: tuple[ClaimRequests, ...]
    common: tuple[str, ...]
    reach: tuple[Reach, ...]
    signature: bytes


def read_claim(
    spec: wire.ResourceClaimSpec, classes: Mapping[str, wire.DeviceClass]
) -> ClaimRequests:
    """Return the requests and constraints of a claim.

    Raises:
        AllocationError: a DeviceClass does not exist, or a part of the claim is malformed.

    """
    requests: list[tuple[RequestAlternative, ...]] = []
    for request in spec.devices.requests:
        if request.exactly is not None:
            requests.append((_alternative(request.name, request.exactly, classes),))
        elif request.first_available:
            requests.append(
                tuple(
                    _alternative(f"{request.name}/{sub.name}", sub, classes)
                    for sub in request.first_available
                )
            )
        else:
            raise AllocationError(
                f"request {request.name} has an unsupported type; allowed are exactly and "
                "firstAvailable"
            )
    constraints = []
    for rule in spec.devices.constraints:
        attribute = rule.match_attribute or rule.distinct_attribute
        if attribute is None:
            raise AllocationError(
                "a constraint has an unsupported type; allowed are matchAttribute and "
                "distinctAttribute"
            )
        names = frozenset(rule.requests)
        constraints.append(AttributeConstraint(attribute, names, rule.match_attribute is None))
    return ClaimRequests(tuple(requests), tuple(constraints))


def _alternative(
    name: str, request: wire.DeviceRequest, classes: Mapping[str, wire.DeviceClass]
) -> RequestAlternative:
    """Return an alternative of a request, with the selectors of its DeviceClass before its own.

    Raises:
        AllocationError: the DeviceClass does not exist, or a part of the request is malformed.

    """
    device_class = classes.get(request.device_class_name)
    if device_class is None:
        raise AllocationError(
            f"DeviceClass {request.device_class_name} of request {name} not found"
        )
    share = request.capacity.requests if request.capacity is not None else {}
    try:
        amounts = {key: parse(amount) for key, amount in share.items()}
    except ValueError as exc:
        raise AllocationError(f"request {name}: {exc}") from exc
    return RequestAlternative(
        name=name,
        class_name=request.device_class_name,
        selectors=(
            *_selectors(device_class.spec.selectors, f"class {request.device_class_name}"),
            *_selectors(request.selectors, f"request {name}"),
        ),
        count=0 if request.allocation_mode == ALL else max(request.count, 1),
        admin=request.admin_access,
        tolerations=tuple(request.tolerations),
        share=amounts,
    )


def _selectors(selectors: Sequence[wire.DeviceSelector], where: str) -> list[CompiledSelector]:
    compiled = []
    for selector in selectors:
        if selector.cel is None:
            raise AllocationError(f"a selector of {where} has an unsupported type; allowed is cel")
        try:
            compiled.append(CompiledSelector(where, expression(selector.cel.expression)))
        except CelError as exc:
            raise AllocationError(f"a selector of {where} is malformed: {exc}") from exc
    return compiled
