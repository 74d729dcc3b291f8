"""The pod network: a block of loopback addresses that no other running testbed uses."""

from __future__ import annotations

import socket
import zlib
from collections import deque

KUBELET_PORT = 10259
"""A socket on this port of the block's first address reserves the block."""

BLOCKS = 250 * 250
FIRST_POD = 10


LOOPBACK, REPORTED = "127.", "10."
"""Prefix of the address on which a pod listens, and of the one in its status. Kubernetes refuses
loopback addresses in EndpointSlices, so Services would have no endpoints."""


def reported_address(address: str) -> str:
    """Return the address in the status of a pod that listens on a loopback address."""
    return f"{REPORTED}{address.removeprefix(LOOPBACK)}"


def listening_address(pod_ip: str) -> str:
    """Return the loopback address on which the pod with this address in its status listens."""
    return f"{LOOPBACK}{pod_ip.removeprefix(REPORTED)}"


class AddressesExhaustedError(RuntimeError):
    """There is no free block, or no free address in the block."""


class AddressBlock:
    """The 256 addresses 127.x.y.0/24: the nodes' addresses first, then the pods'."""

    def __init__(self, listener: socket.socket, prefix: str) -> None:
        self._listener = listener
        self._prefix = prefix
        self._free = deque(f"{prefix}.{last}" for last in range(FIRST_POD, 255))

    @classmethod
    def reserve(cls, seed: str) -> AddressBlock:
        """Reserve and return a block; the same seed tries the same block first.

        Raises AddressesExhaustedError if no block is free.
        """
        first = zlib.crc32(seed.encode())
        for offset in range(BLOCKS):
            high, low = divmod((first + offset) % BLOCKS, 250)
            prefix = f"127.{high + 2}.{low + 2}"
            listener = socket.socket()
            try:
                listener.bind((f"{prefix}.1", KUBELET_PORT))
                listener.listen(1)
            except OSError:
                listener.close()
            else:
                return cls(listener, prefix)
        raise AddressesExhaustedError(f"port {KUBELET_PORT} is taken on every loopback address")

    def of_node(self, index: int) -> str:
        """Return the address of a node, counted from 0."""
        return f"{self._prefix}.{index + 1}"

    def take(self) -> str:
        """Return the address that has been free the longest, and mark it used.

        Raises AddressesExhaustedError if no address is free.
        """
        if not self._free:
            raise AddressesExhaustedError(f"{self._prefix}.0/24 has no free address")
        return self._free.popleft()

    def give_back(self, address: str) -> None:
        """Release an address that `take` returned."""
        self._free.append(address)

    def close(self) -> None:
        """Release the block."""
        self._listener.close()
