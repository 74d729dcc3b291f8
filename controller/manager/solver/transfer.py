"""Sends running pods to a solver's process, each of them once.

Between two requests, few of tens of thousands of running pods change. Each pod has a number and is
sent when it is new; a request refers to pods by number. The process keeps the pods, so that it has
one cluster in memory instead of one for each request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec

from controller.apis.kubernetes.pods import Pod
from controller.state.sharing import Replicas

AT_ONCE = 500
"""The number of pods that are encoded together, which blocks the event loop for milliseconds."""


class PodBatch(msgspec.Struct, frozen=True, array_like=True):
    """Pods with consecutive numbers, beginning at `first`."""

    first: int
    pods: Sequence[Pod]


@dataclass(slots=True)
class PodSender:
    """Tracks which pods one process has received."""

    _numbers: dict[int, int] = field(default_factory=dict)
    # Numbers are by id, which is unique while the pods are referenced here.
    _held: Sequence[Pod] = ()
    _next: Iterator[int] = field(default_factory=count)

    def batches(self, pods: Sequence[Pod]) -> Iterator[bytes]:
        """Yield the encoded pods that are new, `AT_ONCE` at a time."""
        new = [pod for pod in pods if id(pod) not in self._numbers]
        self._held = (*self._held, *new)
        for start in range(0, len(new), AT_ONCE):
            some = new[start : start + AT_ONCE]
            numbers = [next(self._next) for _ in some]
            self._numbers.update(zip(map(id, some), numbers, strict=True))
            yield msgspec.msgpack.encode(PodBatch(numbers[0], some))

    def numbers(self, pods: Sequence[Pod]) -> list[int]:
        """Return the numbers of these pods, all of which were sent; forget all other pods."""
        numbers = [self._numbers[id(pod)] for pod in pods]
        self._numbers = dict(zip(map(id, pods), numbers, strict=True))
        self._held = tuple(pods)
        return numbers


@dataclass(slots=True)
class PodReceiver:
    """The pods that this process has received and that the last request still contained."""

    _pods: dict[int, Pod] = field(default_factory=dict)
    _replicas: Replicas = field(default_factory=Replicas)

    def receive(self, batch: bytes) -> None:
        """Decode and store pods."""
        read = msgspec.msgpack.decode(batch, type=PodBatch)
        self._pods.update(enumerate(map(self._replicas.share, read.pods), start=read.first))

    def pods(self, numbers: Sequence[int]) -> tuple[Pod, ...] | None:
        """Return the pods of these numbers and forget all others; None if one is missing.

        A pod is missing if it was sent to an earlier process.
        """
        if any(number not in self._pods for number in numbers):
            return None
        self._pods = {number: self._pods[number] for number in numbers}
        return tuple(self._pods.values())
