"""Which devices a node gives to claims: a search, as kube-scheduler's own.

Claim by claim and request by request, devices are tried in order; what does not lead to an
answer for all is taken back. The first answer counts. Devices of one request go in
order, so that no combination is tried twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.apis import devices as wire
from controller.apis.quantities import parse
from controller.apis.taints import Toleration
from controller.constraints.cel import CelError, Expression, expression
from controller.constraints.taints import untolerated
from controller.scheduling.devices.devices import Device, Ledger, Offer, Reach

ALL = "All"
MOST_DEVICES = 32
"""A claim can be given no more devices."""

MOST_STEPS = 20_000
"""How many devices are tried before a search is given up; far more than hardware needs."""


class AllocationError(ValueError):
    """A claim cannot be allocated as it stands; the message says why."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A condition on devices, and where it stands: `class gpu` or `request gpu`."""

    where: str
    condition: Expression


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """One way to meet a request: so many devices (0: all there are) that meet the selectors.

    `name` is `request` or `request/alternative`. `known` keeps what selectors said.
    """

    name: str
    class_name: str
    selectors: tuple[Selector, ...]
    count: int
    admin: bool
    tolerations: tuple[Toleration, ...]
    share: Mapping[str, int]
    known: dict[Device, bool] = field(default_factory=dict)

    @property
    def kind(self) -> tuple[object, ...]:
        """What tells the devices apart that it accepts: its conditions and tolerations."""
        texts = (one.condition.text for one in self.selectors)
        return (self.class_name, *texts, *self.tolerations)

    def suits(self, device: Device) -> bool:
        """Whether the device is of the kind asked for, taken or not.

        Raises:
            AllocationError: a selector fails on it.

        """
        answer = self.known.get(device)
        if answer is None:
            answer = self.known[device] = self._suits(device)
        return answer

    def _suits(self, device: Device) -> bool:
        for one in self.selectors:
            try:
                if not one.condition.is_true(device.scope):
                    return False
            except CelError as exc:
                raise AllocationError(
                    f"the selector of {one.where} fails on {device}: {exc}"
                ) from exc
        tainted = [taint for taint in device.taints if taint.effect != "None"]
        return untolerated(tainted, self.tolerations) is None and not (
            device.shared and any(device.full(name) not in device.capacity for name in self.share)
        )

    def __str__(self) -> str:
        """The choice in words."""
        amount = f"{self.count} devices" if self.count > 1 else "device"
        own = [one.condition.text for one in self.selectors if one.where.startswith("request")]
        return f"{amount} of class {self.class_name}" + (
            f" where {' && '.join(own)}" if own else ""
        )


@dataclass(frozen=True, slots=True)
class Constraint:
    """Devices of some requests (all, if none is named) must share an attribute, or never."""

    attribute: str
    requests: frozenset[str]
    distinct: bool

    def binds(self, choice: Choice) -> bool:
        """Whether devices chosen this way are among those meant."""
        own = {choice.name, choice.name.partition("/")[0]}
        return not self.requests or bool(own & self.requests)


@dataclass(frozen=True, eq=False, slots=True)
class Wanted:
    """What a claim asks for: per request its choices, the best first."""

    requests: tuple[tuple[Choice, ...], ...]
    constraints: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True)
class Pick:
    """A device, or a share of one, given to the claim at this place of those asked."""

    claim: int
    choice: Choice
    device: Device
    share: Mapping[str, int]

    @property
    def takes(self) -> bool:
        """Whether others have to do without: those who only look after a device take nothing."""
        return not self.choice.admin


@dataclass(frozen=True, eq=False, slots=True)
class Equipment:
    """The claims of pods of one shape.

    `own` are those that each pod has to itself; `common` names those still to be allocated
    that others may use as well; `reach` is where those can be used that are allocated
    already. `signature` is equal for pods that ask for the same.
    """

    own: tuple[Wanted, ...]
    common: tuple[str, ...]
    reach: tuple[Reach, ...]
    signature: bytes


def wanted(spec: wire.ResourceClaimSpec, classes: Mapping[str, wire.DeviceClass]) -> Wanted:
    """Read what a claim asks for.

    Raises:
        AllocationError: a class does not exist, or something is malformed.

    """
    requests: list[tuple[Choice, ...]] = []
    for one in spec.devices.requests:
        if one.exactly is not None:
            requests.append((_choice(one.name, one.exactly, classes),))
        elif one.first_available:
            requests.append(
                tuple(
                    _choice(f"{one.name}/{sub.name}", sub, classes) for sub in one.first_available
                )
            )
        else:
            raise AllocationError(f"request {one.name} is of a kind that is not known here")
    constraints = []
    for rule in spec.devices.constraints:
        attribute = rule.match_attribute or rule.distinct_attribute
        if attribute is None:
            raise AllocationError("a constraint is of a kind that is not known here")
        named = frozenset(rule.requests)
        constraints.append(Constraint(attribute, named, rule.match_attribute is None))
    return Wanted(tuple(requests), tuple(constraints))


def _choice(
    name: str, request: wire.DeviceRequest, classes: Mapping[str, wire.DeviceClass]
) -> Choice:
    found = classes.get(request.device_class_name)
    if found is None:
        raise AllocationError(
            f"device class {request.device_class_name} of request {name} does not exist"
        )
    share = request.capacity.requests if request.capacity is not None else {}
    try:
        amounts = {key: parse(amount) for key, amount in share.items()}
    except ValueError as exc:
        raise AllocationError(f"request {name}: {exc}") from exc
    return Choice(
        name=name,
        class_name=request.device_class_name,
        selectors=(
            *_selectors(found.spec.selectors, f"class {request.device_class_name}"),
            *_selectors(request.selectors, f"request {name}"),
        ),
        count=0 if request.allocation_mode == ALL else max(request.count, 1),
        admin=request.admin_access,
        tolerations=tuple(request.tolerations),
        share=amounts,
    )


def _selectors(selectors: Sequence[wire.DeviceSelector], where: str) -> list[Selector]:
    found = []
    for one in selectors:
        if one.cel is None:
            raise AllocationError(f"a selector of {where} is of a kind that is not known here")
        try:
            found.append(Selector(where, expression(one.cel.expression)))
        except CelError as exc:
            raise AllocationError(f"a selector of {where} is malformed: {exc}") from exc
    return found


def allocated(claims: Sequence[Wanted], offer: Offer, ledger: Ledger) -> tuple[Pick, ...] | None:
    """Give devices to claims and take them in the ledger; None when there are not enough.

    Raises:
        AllocationError: a selector fails, or there are too many combinations to try.

    """
    return _Search(claims, offer, ledger).answer()


class _Search:
    """One search; the ledger is as it was unless there is an answer."""

    def __init__(self, claims: Sequence[Wanted], offer: Offer, ledger: Ledger) -> None:
        self._claims, self._offer, self._ledger = claims, offer, ledger
        self._picks: list[Pick] = []
        self._steps = 0

    def answer(self) -> tuple[Pick, ...] | None:
        try:
            return tuple(self._picks) if self._request(0, 0) else None
        except AllocationError:
            while self._picks:
                self._take_back()
            raise

    def _request(self, claim: int, request: int) -> bool:
        """Meet a request and all that come after it."""
        if claim == len(self._claims):
            return True
        requests = self._claims[claim].requests
        if request == len(requests):
            return self._request(claim + 1, 0)
        return any(self._chosen(claim, request, choice) for choice in requests[request])

    def _chosen(self, claim: int, request: int, choice: Choice) -> bool:
        given = sum(pick.claim == claim for pick in self._picks)
        if choice.count:
            if given + choice.count > MOST_DEVICES:
                return False
            return self._several(claim, request, choice, choice.count, 0)
        if self._offer.flaw:
            raise AllocationError(self._offer.flaw)
        every = [one for one in self._offer.devices if choice.suits(one)]
        if not every or given + len(every) > MOST_DEVICES:
            return False
        return self._all(claim, request, choice, every)

    def _several(self, claim: int, request: int, choice: Choice, left: int, start: int) -> bool:
        if not left:
            return self._request(claim, request + 1)
        devices = self._offer.devices
        for place in range(start, len(devices)):
            if self._give(claim, choice, devices[place]):
                onward = place if devices[place].shared else place + 1
                if self._several(claim, request, choice, left - 1, onward):
                    return True
                self._take_back()
        return False

    def _all(self, claim: int, request: int, choice: Choice, every: Sequence[Device]) -> bool:
        before = len(self._picks)
        if all(self._give(claim, choice, one) for one in every) and self._request(
            claim, request + 1
        ):
            return True
        while len(self._picks) > before:
            self._take_back()
        return False

    def _give(self, claim: int, choice: Choice, device: Device) -> bool:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise AllocationError(f"no answer within {MOST_STEPS} combinations of devices")
        if not choice.suits(device):
            return False
        share = _share(choice.share, device) if device.shared else {}
        if share is None:
            return False
        if choice.admin:
            if any(one.claim == claim and one.device is device for one in self._picks):
                return False
        elif not self._ledger.is_free(device, share):
            return False
        if not all(
            self._agrees(claim, one, choice, device) for one in self._claims[claim].constraints
        ):
            return False
        if not choice.admin:
            self._ledger.take(device, share)
        self._picks.append(Pick(claim, choice, device, share))
        return True

    def _take_back(self) -> None:
        pick = self._picks.pop()
        if pick.takes:
            self._ledger.give_back(pick.device, pick.share)

    def _agrees(self, claim: int, rule: Constraint, choice: Choice, device: Device) -> bool:
        if not rule.binds(choice):
            return True
        value = _attribute(device, rule.attribute)
        if value is None:
            return False
        others = [
            _attribute(one.device, rule.attribute)
            for one in self._picks
            if one.claim == claim and rule.binds(one.choice)
        ]
        return value not in others if rule.distinct else all(value == one for one in others)


def _attribute(device: Device, name: str) -> tuple[Any, ...] | None:
    """Return an attribute with its type, which counts when values are compared."""
    name = device.full(name)
    if name in device.attributes:
        value = device.attributes[name]
        return (type(value), value)
    if name in device.bound:
        return (device.key[0], device.bound[name])
    return None


def _share(asked: Mapping[str, int], device: Device) -> dict[str, int] | None:
    """Return what a request takes of a shared device, or None when its policy forbids that."""
    share = {}
    named = {device.full(name): amount for name, amount in asked.items()}
    for name, capacity in device.capacity.items():
        amount = _amount(named.get(name), capacity)
        if amount is None:
            return None
        share[name] = amount
    return share


def _amount(asked: int | None, capacity: wire.DeviceCapacity) -> int | None:
    """Round what is asked for up to what the policy sells; nothing asked is its default."""
    policy = capacity.request_policy
    if policy is None:
        return parse(capacity.value) if asked is None else asked
    if asked is None:
        return parse(capacity.value if policy.default is None else policy.default)
    if policy.valid_values:
        return min((v for v in map(parse, policy.valid_values) if v >= asked), default=None)
    limits = policy.valid_range
    if limits is None:
        return asked
    least = parse(limits.min) if limits.min is not None else 0
    amount = max(asked, least)
    if limits.step is not None and parse(limits.step) > 0:
        step = parse(limits.step)
        amount = least + -(-(amount - least) // step) * step
    most = parse(limits.max) if limits.max is not None else amount
    return amount if amount <= most else None
