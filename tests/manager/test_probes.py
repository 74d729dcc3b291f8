"""Probes tell the kubelet the truth, and metrics are where the scraper looks."""

from __future__ import annotations

import aiohttp
from prometheus_client import CollectorRegistry, Counter

from controller.manager import probes
from testbed.processes import free_ports, is_listening


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_readiness_names_what_it_waits_for() -> None:
    missing = ["pods", "nodes"]
    (port,) = free_ports(1)
    async with probes.serving(probes.health(lambda: tuple(missing)), "127.0.0.1", port):
        assert await get(port, "/readyz") == (503, "waiting for pods, nodes")
        assert await get(port, "/healthz") == (200, "ok")
        missing.clear()
        assert await get(port, "/readyz") == (200, "ok")
    assert not is_listening(port)


async def test_metrics_are_text_for_prometheus() -> None:
    registry = CollectorRegistry()
    Counter("seen_total", "Seen.", registry=registry).inc(3)
    (port,) = free_ports(1)
    async with probes.serving(probes.metrics(registry), "127.0.0.1", port):
        status, page = await get(port, "/metrics")
    assert status == 200
    assert "seen_total 3.0" in page


async def test_port_0_serves_nothing() -> None:
    async with probes.serving(probes.metrics(CollectorRegistry()), "127.0.0.1", 0):
        pass
