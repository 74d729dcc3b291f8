"""The devices that pods claim, and from where those can be used that they have already.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.apis import devices as wire
from controller.apis.pods import NodeSelector
from controller.apis.quantities import parse
from controller.apis.taints import Toleration
from controller.constraints import requirements
from controller.constraints.cel import CelError, Expression, expression

ALL = "All"

_NODE_NAME = "metadata.name"


class AllocationError(ValueError):
    """A claim cannot be allocated as it stands; the message says why."""


@dataclass(frozen=True, slots=True)
class Reach:
    """From which nodes a device can be used: the one named, or those that meet `labels`."""

    node: str = ""
    labels: tuple[tuple[str, requirements.ValueSet], ...] = ()

    def includes(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether a node can use the device."""
        if self.node and self.node != node:
            return False
        return requirements.met_by_labels(dict(self.labels), labels)


EVERYWHERE = Reach()


def reach_of(selector: NodeSelector) -> Reach:
    """Read where an allocation or a slice can be used; its selector has one term.

    Raises:
        ValueError: a term is malformed.

    """
    terms = selector.node_selector_terms
    if not terms:
        return EVERYWHERE
    named = [v for term in terms[0].match_fields if term.key == _NODE_NAME for v in term.values]
    met = requirements.read(terms[0].match_expressions)
    return Reach(named[0] if named else "", tuple(sorted(met.items())))


@dataclass(frozen=True, slots=True)
class CompiledSelector:
    """A condition on devices, and where it stands: `class gpu` or `request gpu`."""

    where: str
    condition: Expression


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RequestAlternative:
    """One way to meet a request: so many devices (0: all there are) that meet the selectors.

    `name` is `request` or `request/alternative`. `known` keeps, per device, what selectors said.
    """

    name: str
    class_name: str
    selectors: tuple[CompiledSelector, ...]
    count: int
    admin: bool
    tolerations: tuple[Toleration, ...]
    share: Mapping[str, int]
    known: dict[object, bool] = field(default_factory=dict)

    @property
    def kind(self) -> tuple[object, ...]:
        """What tells the devices apart that it accepts: its conditions and tolerations."""
        texts = (selector.condition.text for selector in self.selectors)
        return (self.class_name, *texts, *self.tolerations)

    def __str__(self) -> str:
        """The alternative in words."""
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
    """Devices of some requests (all, if none is named) must share an attribute, or never."""

    attribute: str
    requests: frozenset[str]
    distinct: bool

    def binds(self, alternative: RequestAlternative) -> bool:
        """Whether devices chosen this way are among those meant."""
        own = {alternative.name, alternative.name.partition("/")[0]}
        return not self.requests or bool(own & self.requests)


@dataclass(frozen=True, eq=False, slots=True)
class ClaimRequests:
    """What a claim asks for: per request its alternatives, the best first."""

    requests: tuple[tuple[RequestAlternative, ...], ...]
    constraints: tuple[AttributeConstraint, ...]


@dataclass(frozen=True, eq=False, slots=True)
class DeviceRequests:
    """What pods of one class claim.

    `own` are those that each pod has to itself; `common` names those still to be allocated
    that others may use as well; `reach` is where those can be used that are allocated
    already. `signature` is equal for pods that ask for the same.
    """

    own: tuple[ClaimRequests, ...]
    common: tuple[str, ...]
    reach: tuple[Reach, ...]
    signature: bytes


def read_claim(
    spec: wire.ResourceClaimSpec, classes: Mapping[str, wire.DeviceClass]
) -> ClaimRequests:
    """Read what a claim asks for.

    Raises:
        AllocationError: a class does not exist, or something is malformed.

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
            raise AllocationError(f"request {request.name} is of a kind that is not known here")
    constraints = []
    for rule in spec.devices.constraints:
        attribute = rule.match_attribute or rule.distinct_attribute
        if attribute is None:
            raise AllocationError("a constraint is of a kind that is not known here")
        named = frozenset(rule.requests)
        constraints.append(AttributeConstraint(attribute, named, rule.match_attribute is None))
    return ClaimRequests(tuple(requests), tuple(constraints))


def _alternative(
    name: str, request: wire.DeviceRequest, classes: Mapping[str, wire.DeviceClass]
) -> RequestAlternative:
    device_class = classes.get(request.device_class_name)
    if device_class is None:
        raise AllocationError(
            f"device class {request.device_class_name} of request {name} does not exist"
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
    read = []
    for selector in selectors:
        if selector.cel is None:
            raise AllocationError(f"a selector of {where} is of a kind that is not known here")
        try:
            read.append(CompiledSelector(where, expression(selector.cel.expression)))
        except CelError as exc:
            raise AllocationError(f"a selector of {where} is malformed: {exc}") from exc
    return read
