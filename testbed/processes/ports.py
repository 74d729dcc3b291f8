"""Ports of loopback: which are free, and whether somebody listens."""

from __future__ import annotations

import contextlib
import random
import socket

from testbed.processes.owned import ProcessFailedError

# Below the range that Linux gives to outgoing connections, so that a port found
# free is not taken by some client before its server binds it.
PORTS = range(15000, 32000)


def free_ports(count: int) -> list[int]:
    """Find `count` different loopback ports that nobody listens on."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for port in random.sample(PORTS, len(PORTS)):
            listener = held.enter_context(socket.socket())
            # A closed connection of an earlier server may linger on the port; servers bind
            # over it, and so does this look.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise ProcessFailedError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")


def is_listening(port: int) -> bool:
    """Tell whether somebody accepts connections on this loopback port."""
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex(("127.0.0.1", port)) == 0
