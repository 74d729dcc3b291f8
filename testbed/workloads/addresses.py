"""The pod network: a block of loopback addresses that no other testbed uses meanwhile."""

from __future__ import annotations

import socket
import zlib
from collections import deque

KUBELET_PORT = 10259
"""A socket here, on a block's first address, is what makes the block ours."""

BLOCKS = 250 * 250
FIRST_POD = 10


class AddressesExhaustedError(RuntimeError):
    """No block, or no address in it, is free."""


class AddressBlock:
    """The 256 addresses 127.x.y.0/24: the nodes' first, then the pods'."""

    def __init__(self, listener: socket.socket, prefix: str) -> None:
        self._listener = listener
        self._prefix = prefix
        self._free = deque(f"{prefix}.{last}" for last in range(FIRST_POD, 255))

    @classmethod
    def reserve(cls, seed: str) -> AddressBlock:
        """Take a block; the same seed looks at the same block first."""
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
        """Take the address that was free the longest."""
        if not self._free:
            raise AddressesExhaustedError(f"{self._prefix}.0/24 has no free address")
        return self._free.popleft()

    def give_back(self, address: str) -> None:
        """Return an address that `take` gave."""
        self._free.append(address)

    def close(self) -> None:
        """Give up the block."""
        self._listener.close()
