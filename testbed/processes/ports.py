"""Loopback ports: find free ones, and check for a listener."""

from __future__ import annotations

import contextlib
import random
import socket

from testbed.processes.owned import ProcessFailedError

# Below Linux's range for outgoing connections, so that no client takes a free port before
# its server binds it.
PORTS = range(15000, 32000)


def free_ports(count: int) -> list[int]:
    """Return `count` different loopback ports without a listener.

    Raises `ProcessFailedError` if there are not enough.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for port in random.sample(PORTS, len(PORTS)):
            listener = held.enter_context(socket.socket())
            # A closed connection of an earlier server may linger on the port. Servers can bind
            # such a port, so this check must accept it too.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise ProcessFailedError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")


def is_listening(port: int) -> bool:
    """Return whether a process accepts connections on a loopback port."""
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex(("127.0.0.1", port)) == 0
