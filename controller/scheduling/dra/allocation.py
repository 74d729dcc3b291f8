"""Which devices a node gives to claims: a search, as kube-scheduler's own.

Claim by claim and request by request, devices are tried in order; what does not lead to an
answer for all is taken back. The first answer counts. Devices of one request go in
order, so that no combination is tried twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.apis import devices as wire
from controller.apis.quantities import parse
from controller.constraints.cel import CelError
from controller.constraints.taints import untolerated
from controller.scheduling.dra.devices import AllocatableDevice, DeviceLedger, UsableDevices
from controller.scheduling.pods.devicerequests import (
    AllocationError,
    AttributeConstraint,
    ClaimRequests,
    RequestAlternative,
)

MOST_DEVICES = 32
"""A claim can be given no more devices."""

MOST_STEPS = 20_000
"""How many devices are tried before a search is given up; far more than hardware needs."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A device, or a share of one, given to the claim at this place of those asked."""

    claim: int
    alternative: RequestAlternative
    device: AllocatableDevice
    share: Mapping[str, int]

    @property
    def takes(self) -> bool:
        """Whether others have to do without: those who only look after a device take nothing."""
        return not self.alternative.admin


def allocate(
    claims: Sequence[ClaimRequests], usable: UsableDevices, ledger: DeviceLedger
) -> tuple[Pick, ...] | None:
    """Give devices to claims and take them in the ledger; None when there are not enough.

    Raises:
        AllocationError: a selector fails, or there are too many combinations to try.

    """
    return _DeviceSearch(claims, usable, ledger).answer()


class _DeviceSearch:
    """One search; the ledger is as it was unless there is an answer."""

    def __init__(
        self, claims: Sequence[ClaimRequests], usable: UsableDevices, ledger: DeviceLedger
    ) -> None:
        self._claims, self._usable, self._ledger = claims, usable, ledger
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
        return any(self._chosen(claim, request, alternative) for alternative in requests[request])

    def _chosen(self, claim: int, request: int, alternative: RequestAlternative) -> bool:
        given = sum(pick.claim == claim for pick in self._picks)
        if alternative.count:
            if given + alternative.count > MOST_DEVICES:
                return False
            return self._several(claim, request, alternative, alternative.count, 0)
        if self._usable.flaw:
            raise AllocationError(self._usable.flaw)
        every = [device for device in self._usable.devices if suits(alternative, device)]
        if not every or given + len(every) > MOST_DEVICES:
            return False
        return self._all(claim, request, alternative, every)

    def _several(
        self, claim: int, request: int, alternative: RequestAlternative, left: int, start: int
    ) -> bool:
        if not left:
            return self._request(claim, request + 1)
        devices = self._usable.devices
        for place in range(start, len(devices)):
            if self._give(claim, alternative, devices[place]):
                onward = place if devices[place].shared else place + 1
                if self._several(claim, request, alternative, left - 1, onward):
                    return True
                self._take_back()
        return False

    def _all(
        self,
        claim: int,
        request: int,
        alternative: RequestAlternative,
        every: Sequence[AllocatableDevice],
    ) -> bool:
        before = len(self._picks)
        if all(self._give(claim, alternative, device) for device in every) and self._request(
            claim, request + 1
        ):
            return True
        while len(self._picks) > before:
            self._take_back()
        return False

    def _give(self, claim: int, alternative: RequestAlternative, device: AllocatableDevice) -> bool:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise AllocationError(f"no answer within {MOST_STEPS} combinations of devices")
        if not suits(alternative, device):
            return False
        share = _share(alternative.share, device) if device.shared else {}
        if share is None:
            return False
        if alternative.admin:
            if any(pick.claim == claim and pick.device is device for pick in self._picks):
                return False
        elif not self._ledger.is_free(device, share):
            return False
        if not all(
            self._agrees(claim, constraint, alternative, device)
            for constraint in self._claims[claim].constraints
        ):
            return False
        if not alternative.admin:
            self._ledger.take(device, share)
        self._picks.append(Pick(claim, alternative, device, share))
        return True

    def _take_back(self) -> None:
        pick = self._picks.pop()
        if pick.takes:
            self._ledger.give_back(pick.device, pick.share)

    def _agrees(
        self,
        claim: int,
        rule: AttributeConstraint,
        alternative: RequestAlternative,
        device: AllocatableDevice,
    ) -> bool:
        if not rule.binds(alternative):
            return True
        value = _attribute(device, rule.attribute)
        if value is None:
            return False
        others = [
            _attribute(pick.device, rule.attribute)
            for pick in self._picks
            if pick.claim == claim and rule.binds(pick.alternative)
        ]
        return value not in others if rule.distinct else all(value == other for other in others)


def _attribute(device: AllocatableDevice, name: str) -> tuple[Any, ...] | None:
    """Return an attribute with its type, which counts when values are compared."""
    name = device.full(name)
    if name in device.attributes:
        value = device.attributes[name]
        return (type(value), value)
    if name in device.bound:
        return (device.key[0], device.bound[name])
    return None


def _share(asked: Mapping[str, int], device: AllocatableDevice) -> dict[str, int] | None:
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


def suits(alternative: RequestAlternative, device: AllocatableDevice) -> bool:
    """Whether a device is of the kind asked for, taken or not.

    Raises:
        AllocationError: a selector fails on it.

    """
    answer = alternative.known.get(device)
    if answer is None:
        answer = alternative.known[device] = _is_suited(alternative, device)
    return answer


def _is_suited(alternative: RequestAlternative, device: AllocatableDevice) -> bool:
    for selector in alternative.selectors:
        try:
            if not selector.condition.is_true(device.scope):
                return False
        except CelError as exc:
            raise AllocationError(
                f"the selector of {selector.where} fails on {device}: {exc}"
            ) from exc
    tainted = [taint for taint in device.taints if taint.effect != "None"]
    return untolerated(tainted, alternative.tolerations) is None and not (
        device.shared
        and any(device.full(name) not in device.capacity for name in alternative.share)
    )
