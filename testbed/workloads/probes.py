"""Liveness, readiness and startup probes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp

from testbed.kube.client import Object
from testbed.workloads.environment import ConfigurationError

RunCommand = Callable[[Sequence[str]], Awaitable[int]]  # → exit code

KINDS = ("httpGet", "tcpSocket", "exec")


@dataclass(frozen=True)
class Target:
    """The target of a probe: a container at its pod's address."""

    container: Object
    address: str
    session: aiohttp.ClientSession
    run: RunCommand

    async def verdicts(self, probe: Object) -> AsyncIterator[bool]:
        """Probe forever; yield a result whenever a threshold of the probe is reached."""
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        successes = failures = 0
        while True:
            if await self.answers(probe):
                successes, failures = successes + 1, 0
                if successes >= probe.get("successThreshold", 1):
                    yield True
            else:
                successes, failures = 0, failures + 1
                if failures >= probe.get("failureThreshold", 3):
                    yield False
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def answers(self, probe: Object) -> bool:
        """Probe once and return whether it succeeded."""
        try:
            async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
                if "httpGet" in probe:
                    return await self._http(probe["httpGet"])
                if "tcpSocket" in probe:
                    return await self._tcp(probe["tcpSocket"])
                return await self.run(probe["exec"]["command"]) == 0
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def _http(self, get: Object) -> bool:
        scheme = str(get.get("scheme", "HTTP")).lower()
        host = get.get("host") or self.address
        path = "/" + str(get.get("path", "/")).lstrip("/")
        headers = {header["name"]: header["value"] for header in get.get("httpHeaders") or []}
        url = f"{scheme}://{host}:{self._port(get['port'])}{path}"
        # A kubelet does not verify certificates either.
        async with self.session.get(url, headers=headers, ssl=False) as response:
            return 200 <= response.status < 400

    async def _tcp(self, socket: Object) -> bool:
        host = socket.get("host") or self.address
        _, writer = await asyncio.open_connection(host, self._port(socket["port"]))
        writer.close()
        await writer.wait_closed()
        return True

    def _port(self, port: int | str) -> int:
        return port_number(self.container, port)


def port_number(container: Object, port: int | str) -> int:
    """Return the number of a container's port, given by number or name.

    Raises ConfigurationError if the container has no port of that name.
    """
    if isinstance(port, int) or port.isdecimal():
        return int(port)
    for declared in container.get("ports") or []:
        if declared.get("name") == port:
            return int(declared["containerPort"])
    raise ConfigurationError(f"container {container['name']} has no port named {port!r}")


def require_supported(container: Object) -> None:
    """Raise ConfigurationError if a probe of the container is not supported here."""
    for role in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container.get(role)
        if probe is None:
            continue
        kind = next((kind for kind in KINDS if kind in probe), None)
        if kind is None:
            raise ConfigurationError(f"{role}: only {', '.join(KINDS)} are supported here")
        if kind != "exec":
            port_number(container, probe[kind]["port"])
