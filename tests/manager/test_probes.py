"""Probes report the true state to the kubelet, and metrics are served where Prometheus scrapes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.manager import probes, profiling
from controller.options import Options
from testbed.processes.ports import free_ports, is_listening


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_readiness_names_what_is_missing() -> None:
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


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate", "gzip"),
        ("deflate;q=0, GZip ; q=0.5", "gzip"),
        ("*", "gzip"),
        ("identity", None),
        ("gzip;q=0", None),
        ("gzip; q=0.000, *", None),
        ("*;q=0", None),
        ("gzip-like", None),
    ],
)
async def test_metrics_are_compressed_for_clients_that_accept_it(
    accepted: str, encoding: str | None
) -> None:
    registry = CollectorRegistry()
    Counter("seen_total", "Seen.", registry=registry).inc(3)
    (port,) = free_ports(1)
    async with (
        probes.serving(probes.metrics(registry), "127.0.0.1", port),
        aiohttp.ClientSession(headers={"Accept-Encoding": accepted}) as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        assert response.headers.get("Content-Encoding") == encoding
        assert "seen_total 3.0" in await response.text()


async def test_a_head_request_for_metrics_has_no_body() -> None:
    registry = CollectorRegistry()
    Counter("seen_total", "Seen.", registry=registry)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/metrics"
    async with (
        probes.serving(probes.metrics(registry), "127.0.0.1", port),
        aiohttp.ClientSession() as session,
    ):
        async with session.head(url) as response:
            assert response.status == 200
            assert await response.read() == b""
        async with session.get(url) as response:
            assert "seen_total 0.0" in await response.text()


async def test_metrics_are_collected_in_a_thread_from_a_frozen_state() -> None:
    registry = CollectorRegistry()
    frozen, threads = [False], list[tuple[int, bool]]()

    class Noted(Collector):
        def collect(self) -> Iterator[GaugeMetricFamily]:
            threads.append((threading.get_ident(), frozen[0]))
            yield GaugeMetricFamily("seen", "Seen.", 1)

        def describe(self) -> list[GaugeMetricFamily]:
            return []

    @contextlib.contextmanager
    def freezing() -> Iterator[None]:
        assert threading.get_ident() == own
        frozen[0] = True
        yield
        frozen[0] = False

    own = threading.get_ident()
    registry.register(Noted())
    (port,) = free_ports(1)
    async with probes.serving(probes.metrics(registry, frozen=freezing), "127.0.0.1", port):
        pages = await asyncio.gather(*(get(port, "/metrics") for _ in range(5)))

    assert all(status == 200 and "seen 1.0" in page for status, page in pages)
    assert len(threads) == 5
    assert all(thread != own and was_frozen for thread, was_frozen in threads)


async def test_responses_reveal_no_versions() -> None:
    ports = free_ports(2)
    async with (
        probes.serving(probes.health(lambda: ()), "127.0.0.1", ports[0]),
        probes.serving(probes.metrics(CollectorRegistry()), "127.0.0.1", ports[1]),
        aiohttp.ClientSession() as session,
    ):
        for port in ports:
            for path in ("/healthz", "/metrics", "/", "/debug/pprof/goroutine"):
                async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                    assert "Server" not in response.headers
                    assert "aiohttp" not in await response.text()


async def test_port_0_serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "create_server", opened.append)
    async with probes.serving(probes.metrics(CollectorRegistry()), "127.0.0.1", 0):
        assert opened == []


async def test_profiles_are_served_beside_the_metrics_if_enabled() -> None:
    async def a_task_with_a_name() -> None:
        await asyncio.Event().wait()

    waiting = asyncio.create_task(a_task_with_a_name())
    (port,) = free_ports(1)
    application = probes.metrics(CollectorRegistry(), with_profiles=True)
    async with probes.serving(application, "127.0.0.1", port):
        status, profile = await get(port, "/debug/pprof/profile?seconds=0.05")
        assert status == 200
        assert "cumtime" in profile
        status, tasks = await get(port, "/debug/pprof/goroutine")
        assert status == 200
        assert "a_task_with_a_name" in tasks
    waiting.cancel()


async def test_an_unknown_profile_names_the_available_ones() -> None:
    (port,) = free_ports(1)
    application = probes.metrics(CollectorRegistry(), with_profiles=True)
    async with probes.serving(application, "127.0.0.1", port):
        for seconds in ("soon", "0", "-1", "nan", "1000"):
            status, text = await get(port, f"/debug/pprof/profile?seconds={seconds}")
            assert status == 400
            assert "up to 120" in text


async def test_one_profile_is_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def profiled(_: float) -> str:
        begun.set()
        await gate.wait()
        return "taken"

    monkeypatch.setattr(profiling, "_profile", profiled)
    (port,) = free_ports(1)
    application = probes.metrics(CollectorRegistry(), with_profiles=True)
    async with probes.serving(application, "127.0.0.1", port):
        first = asyncio.create_task(get(port, "/debug/pprof/profile"))
        await begun.wait()
        assert (await get(port, "/debug/pprof/profile"))[0] == 409
        gate.set()
        assert await first == (200, "taken")


async def test_profiles_are_not_served_by_default() -> None:
    assert not Options(cluster_name="joiner").enable_profiling
    (port,) = free_ports(1)
    async with probes.serving(probes.metrics(CollectorRegistry()), "127.0.0.1", port):
        status, _ = await get(port, "/debug/pprof/profile?seconds=0.05")
    assert status == 404
