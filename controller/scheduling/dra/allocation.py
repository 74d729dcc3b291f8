"""Allocation of devices to claims: a backtracking search, as in kube-scheduler.

The search tries devices in order, claim by claim and request by request. It undoes a choice that
does not lead to an allocation for all claims. The first complete allocation is used. Devices of one
request are chosen in ascending order, so that no combination is tried twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.apis.kubernetes import devices as wire
from controller.apis.kubernetes.quantities import parse
from controller.constraints.cel import CelError
from controller.constraints.taints import NO_EXECUTE, NO_SCHEDULE, untolerated
from controller.scheduling.dra.devices import AllocatableDevice, DeviceLedger, UsableDevices
from controller.scheduling.pods.devicerequests import (
    AllocationError,
    AttributeConstraint,
    ClaimRequests,
    RequestAlternative,
)

MOST_DEVICES = 32
"""The maximum number of devices of one claim."""

MOST_STEPS = 20_000
"""The maximum number of devices that one search tries; far more than real hardware needs."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A device, or a share of one, allocated to the claim at index `claim` of those asked for."""

    claim: int
    alternative: RequestAlternative
    device: AllocatableDevice
    share: Mapping[str, int]

    @property
    def takes(self) -> bool:
        """Whether the pick uses the device up. Requests with admin access do not."""
        return not self.alternative.admin


def allocate(
    claims: Sequence[ClaimRequests], usable: UsableDevices, ledger: DeviceLedger
) -> tuple[Pick, ...] | None:
    """Allocate devices to claims and record them in the ledger; None if there are too few devices.

    The ledger is unchanged unless an allocation is returned. Cost: at most `MOST_STEPS` devices.

    Raises:
        AllocationError: a selector fails, or there are too many combinations to try.

    """
    return _DeviceSearch(claims, usable, ledger).answer()


class _DeviceSearch:
    """One search. The ledger is unchanged afterwards unless an allocation is found."""

    def __init__(
        self, claims: Sequence[ClaimRequests], usable: UsableDevices, ledger: DeviceLedger
    ) -> None:
        self._claims, self._usable, self._ledger = claims, usable, ledger
        self._picks: list[Pick] = []
        self._steps = 0

    def answer(self) -> tuple[Pick, ...] | None:
        """Return the allocation, or None if there is none."""
        try:
            return tuple(self._picks) if self._request(0, 0) else None
        except AllocationError:
            while self._picks:
                self._take_back()
            raise

    def _request(self, claim: int, request: int) -> bool:
        """Meet a request and all requests after it; return whether that succeeded."""
        if claim == len(self._claims):
            return True
        requests = self._claims[claim].requests
        if request == len(requests):
            return self._request(claim + 1, 0)
        return any(self._chosen(claim, request, alternative) for alternative in requests[request])

    def _chosen(self, claim: int, request: int, alternative: RequestAlternative) -> bool:
        """Meet a request by this alternative, and all requests after it."""
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
        """Allocate `left` more devices to a request, then meet the requests after it.

        The devices are chosen from index `start` on.
        """
        if not left:
            return self._request(claim, request + 1)
        devices = self._usable.devices
        for index in range(start, len(devices)):
            if self._give(claim, alternative, devices[index]):
                # A shared device can serve the same request more than once.
                onward = index if devices[index].shared else index + 1
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
        """Allocate all suitable devices to a request, then meet the requests after it."""
        before = len(self._picks)
        if all(self._give(claim, alternative, device) for device in every) and self._request(
            claim, request + 1
        ):
            return True
        while len(self._picks) > before:
            self._take_back()
        return False

    def _give(self, claim: int, alternative: RequestAlternative, device: AllocatableDevice) -> bool:
        """Allocate a device to a claim if it suits, is free and meets the claim's constraints."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise AllocationError(f"no allocation found in {MOST_STEPS} combinations of devices")
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
        """Undo the last pick."""
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
        """Whether a device meets a constraint together with the claim's picks so far."""
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
    """Return an attribute's type and value; None if the device lacks it.

    Values of different types are unequal. An attribute whose value is not known yet compares by the
    group of devices that will share it.
    """
    name = device.full(name)
    if name in device.attributes:
        value = device.attributes[name]
        return (type(value), value)
    if name in device.bound:
        return (device.key[0], device.bound[name])
    return None


def _share(asked: Mapping[str, int], device: AllocatableDevice) -> dict[str, int] | None:
    """Return the capacity that a request takes of a shared device, by full name.

    The result is None if a request policy of the device does not allow it.
    """
    share = {}
    named = {device.full(name): amount for name, amount in asked.items()}
    for name, capacity in device.capacity.items():
        amount = _amount(named.get(name), capacity)
        if amount is None:
            return None
        share[name] = amount
    return share


def _amount(asked: int | None, capacity: wire.DeviceCapacity) -> int | None:
    """Return the amount asked for, rounded up as the request policy says.

    If no amount is asked for, the result is the policy's default, or else the whole capacity. It is
    None if the policy does not allow so much.
    """
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
    """Whether a device meets a request's conditions, allocated or not.

    These are selectors, tolerations and, for a shared device, the names of the capacity asked for.
    The result is cached per device.

    Raises:
        AllocationError: a selector fails on the device.

    """
    answer = alternative.known.get(device)
    if answer is None:
        answer = alternative.known[device] = _is_suited(alternative, device)
    return answer


def _is_suited(alternative: RequestAlternative, device: AllocatableDevice) -> bool:
    """Whether a device meets a request's conditions, evaluated without the cache."""
    for selector in alternative.selectors:
        try:
            if not selector.condition.is_true(device.scope):
                return False
        except CelError as exc:
            raise AllocationError(
                f"the selector of {selector.where} fails on {device}: {exc}"
            ) from exc
    # Kubernetes wants other effects, also those that it may add later, to have no effect.
    effective = [taint for taint in device.taints if taint.effect in {NO_SCHEDULE, NO_EXECUTE}]
    return untolerated(effective, alternative.tolerations) is None and not (
        device.shared
        and any(device.full(name) not in device.capacity for name in alternative.share)
    )
