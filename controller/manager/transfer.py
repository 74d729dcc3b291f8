"""Running pods, on their way to a solver's process: each of them once.

Tens of thousands run, and few are other ones than in the question before. So a pod has a number
and is sent when it is new; a question names those that are there by their numbers. The other
side keeps them as the mirror does, and has one cluster in memory in place of one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec

from controller.apis.pods import Pod
from controller.state.sharing import Replicas

AT_ONCE = 500
"""Pods written in one go: that takes the event loop some milliseconds."""


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """Pods that are numbered one after the other."""

    first: int
    pods: Sequence[Pod]


@dataclass(slots=True)
class PodSender:
    """Knows which pods one process has been sent."""

    _numbers: dict[int, int] = field(default_factory=dict)
    # By identity, which is theirs as long as they are held here.
    _held: Sequence[Pod] = ()
    _next: Iterator[int] = field(default_factory=count)

    def parcels(self, pods: Sequence[Pod]) -> Iterator[bytes]:
        """Write the pods that are new, some at a time."""
        new = [pod for pod in pods if id(pod) not in self._numbers]
        self._held = (*self._held, *new)
        for start in range(0, len(new), AT_ONCE):
            some = new[start : start + AT_ONCE]
            numbers = [next(self._next) for _ in some]
            self._numbers.update(zip(map(id, some), numbers, strict=True))
            yield msgspec.msgpack.encode(Parcel(numbers[0], some))

    def numbers(self, pods: Sequence[Pod]) -> list[int]:
        """Return the numbers of pods, all of them sent; from then on no others are known."""
        numbers = [self._numbers[id(pod)] for pod in pods]
        self._numbers = dict(zip(map(id, pods), numbers, strict=True))
        self._held = tuple(pods)
        return numbers


@dataclass(slots=True)
class PodReceiver:
    """The pods that this process has been sent and that were still there when it was last asked."""

    _pods: dict[int, Pod] = field(default_factory=dict)
    _replicas: Replicas = field(default_factory=Replicas)

    def receive(self, parcel: bytes) -> None:
        """Take pods in."""
        read = msgspec.msgpack.decode(parcel, type=Parcel)
        self._pods.update(enumerate(map(self._replicas.shared, read.pods), start=read.first))

    def pods(self, numbers: Sequence[int]) -> tuple[Pod, ...] | None:
        """Return the pods of these numbers and forget all others; None where one is missing,
        because it was another process that was sent it.
        """
        if any(number not in self._pods for number in numbers):
            return None
        self._pods = {number: self._pods[number] for number in numbers}
        return tuple(self._pods.values())
