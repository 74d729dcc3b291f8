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
from controller.constraints.taints import NO_EXECUTE, NO_SCHEDULE, untolerated_taint
from controller.scheduling.dra.devices import AllocatableDevice, AllocatedDevices, UsableDevices
from controller.scheduling.pods.devicerequests import (
    AllocationError,
    AttributeConstraint,
    ClaimRequests,
    RequestAlternative,
)

MAX_DEVICES = 32
"""The maximum number of devices of one claim."""

MAX_STEPS = 20_000
"""The maximum number of devices that one search tries; far more than real hardware needs."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A device, or a share of one, that the search chose for the claim at index `claim`."""

    claim: int
    alternative: RequestAlternative
    device: AllocatableDevice
    share: Mapping[str, int]

    @property
    def consumes(self) -> bool:
        """Whether the allocation uses up the device or share; with admin access it does not."""
        return not self.alternative.admin


def allocate(
    claims: Sequence[ClaimRequests], usable: UsableDevices, allocated: AllocatedDevices
) -> tuple[Pick, ...] | None:
    """Allocate devices to claims and record them in `allocated`; None if too few devices are free.

    `allocated` is unchanged unless an allocation is returned. Cost: the search tries at most
    `MAX_STEPS` devices.

    Raises:
        AllocationError: a selector fails, or there are too many combinations to try.

    """
    return _DeviceSearch(claims, usable, allocated).run()


class _DeviceSearch:
    """One search. `allocated` is unchanged afterwards unless an allocation is found."""

    def __init__(
        self, claims: Sequence[ClaimRequests], usable: UsableDevices, allocated: AllocatedDevices
    ) -> None:
        self._claims, self._usable, self._allocated = claims, usable, allocated
        self._picks: list[Pick] = []
        self._steps = 0

    def run(self) -> tuple[Pick, ...] | None:
        """Search; return the allocation, or None if there is none."""
        try:
            return tuple(self._picks) if self._satisfy(0, 0) else None
        except AllocationError:
            while self._picks:
                self._undo()
            raise

    def _satisfy(self, claim: int, request: int) -> bool:
        """Allocate devices to a request and all requests after it; return whether all are met."""
        if claim == len(self._claims):
            return True
        requests = self._claims[claim].requests
        if request == len(requests):
            return self._satisfy(claim + 1, 0)
        return any(
            self._satisfy_with(claim, request, alternative) for alternative in requests[request]
        )

    def _satisfy_with(self, claim: int, request: int, alternative: RequestAlternative) -> bool:
        """Allocate devices to a request by this alternative, and to all requests after it."""
        allocated_count = sum(pick.claim == claim for pick in self._picks)
        if alternative.count:
            if allocated_count + alternative.count > MAX_DEVICES:
                return False
            return self._allocate_count(claim, request, alternative, alternative.count, 0)
        if self._usable.error:
            raise AllocationError(self._usable.error)
        # As in kube-scheduler, the pod must tolerate the taints of all devices that are selected.
        suitable = [device for device in self._usable.devices if _selects(alternative, device)]
        if not suitable or allocated_count + len(suitable) > MAX_DEVICES:
            return False
        return self._allocate_all(claim, request, alternative, suitable)

    def _allocate_count(
        self, claim: int, request: int, alternative: RequestAlternative, missing: int, start: int
    ) -> bool:
        """Allocate `missing` more devices to a request, then devices to the requests after it.

        The search starts at the device with index `start`.
        """
        if not missing:
            return self._satisfy(claim, request + 1)
        devices = self._usable.devices
        for index in range(start, len(devices)):
            if self._allocate(claim, alternative, devices[index]):
                # A shared device can serve the same request more than once.
                next_start = index if devices[index].shared else index + 1
                if self._allocate_count(claim, request, alternative, missing - 1, next_start):
                    return True
                self._undo()
        return False

    def _allocate_all(
        self,
        claim: int,
        request: int,
        alternative: RequestAlternative,
        suitable: Sequence[AllocatableDevice],
    ) -> bool:
        """Allocate all suitable devices to a request, then devices to the requests after it."""
        before = len(self._picks)
        if all(self._allocate(claim, alternative, device) for device in suitable) and self._satisfy(
            claim, request + 1
        ):
            return True
        while len(self._picks) > before:
            self._undo()
        return False

    def _allocate(
        self, claim: int, alternative: RequestAlternative, device: AllocatableDevice
    ) -> bool:
        """Allocate a device to a claim if it matches, is free and meets the claim's constraints."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise AllocationError(f"no allocation found in {MAX_STEPS} combinations of devices")
        if not matches(alternative, device):
            return False
        share = _share(alternative.share, device) if device.shared else {}
        if share is None:
            return False
        if alternative.admin:
            if any(pick.claim == claim and pick.device is device for pick in self._picks):
                return False
        elif not self._allocated.is_free(device, share):
            return False
        if not all(
            self._meets(claim, constraint, alternative, device)
            for constraint in self._claims[claim].constraints
        ):
            return False
        if not alternative.admin:
            self._allocated.add(device, share)
        self._picks.append(Pick(claim, alternative, device, share))
        return True

    def _undo(self) -> None:
        """Undo the last pick."""
        pick = self._picks.pop()
        if pick.consumes:
            self._allocated.remove(pick.device, pick.share)

    def _meets(
        self,
        claim: int,
        rule: AttributeConstraint,
        alternative: RequestAlternative,
        device: AllocatableDevice,
    ) -> bool:
        """Whether a device and the claim's picks so far meet a constraint together."""
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


def _share(requested: Mapping[str, int], device: AllocatableDevice) -> dict[str, int] | None:
    """Return the share of a shared device for a request: amounts of capacity by full name.

    The result is None if a request policy of the device does not allow the share.
    """
    share = {}
    named = {device.full(name): amount for name, amount in requested.items()}
    for name, capacity in device.capacity.items():
        amount = _amount(named.get(name), capacity)
        if amount is None:
            return None
        share[name] = amount
    return share


def _amount(requested: int | None, capacity: wire.DeviceCapacity) -> int | None:
    """Return the requested amount, rounded up as the capacity's request policy requires.

    Without a requested amount the result is the policy's default, or else the whole capacity. It is
    None if the policy does not allow the amount.
    """
    policy = capacity.request_policy
    if policy is None:
        return parse(capacity.value) if requested is None else requested
    if requested is None:
        return parse(capacity.value if policy.default is None else policy.default)
    if policy.valid_values:
        return min((v for v in map(parse, policy.valid_values) if v >= requested), default=None)
    limits = policy.valid_range
    if limits is None:
        return requested
    least = parse(limits.min) if limits.min is not None else 0
    amount = max(requested, least)
    if limits.step is not None and parse(limits.step) > 0:
        step = parse(limits.step)
        amount = least + -(-(amount - least) // step) * step
    most = parse(limits.max) if limits.max is not None else amount
    return amount if amount <= most else None


def matches(alternative: RequestAlternative, device: AllocatableDevice) -> bool:
    """Whether a device meets a request's conditions, allocated or not.

    The conditions are those of `_selects`, and tolerations.

    Raises:
        AllocationError: a selector fails on the device.

    """
    # As in Kubernetes, taints with any other effect are ignored.
    effective = [taint for taint in device.taints if taint.effect in {NO_SCHEDULE, NO_EXECUTE}]
    is_tolerated = untolerated_taint(effective, alternative.tolerations) is None
    return is_tolerated and _selects(alternative, device)


def _selects(alternative: RequestAlternative, device: AllocatableDevice) -> bool:
    """Whether a request selects a device, whatever its taints.

    The conditions are selectors and, for a shared device, the names of the requested capacity. The
    result is cached per device.
    """
    result = alternative.cache.get(device)
    if result is None:
        result = alternative.cache[device] = _evaluate_selectors(alternative, device)
    return result


def _evaluate_selectors(alternative: RequestAlternative, device: AllocatableDevice) -> bool:
    for selector in alternative.selectors:
        try:
            if not selector.condition.is_true(device.scope):
                return False
        except CelError as exc:
            raise AllocationError(
                f"the selector of {selector.where} fails on {device}: {exc}"
            ) from exc
    return not (
        device.shared
        and any(device.full(name) not in device.capacity for name in alternative.share)
    )
