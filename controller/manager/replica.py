"""Runs one replica: watch, become ready, lead, act, and shut down in order.

Every replica watches and serves probes; only the holder of the Lease acts. A failure that the
process cannot recover from ends it, and the kubelet starts another one: a lost Lease, a failed
watch, or a cloud provider that cannot be reached at start.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError, version

from controller.apis.kinds import SERVICE
from controller.apiserver.errors import ApiError
from controller.apiserver.port import ApiServer
from controller.apiserver.readonly import ReadOnlyApiServer
from controller.disruption.modes import Mode
from controller.disruption.problem import settings_of
from controller.kube.access import Access
from controller.kube.client import Client
from controller.manager import handlers, memory, probes
from controller.manager.assembly import Assembly, ReconcilerPorts, RunningCloud
from controller.manager.authentication import Authentication
from controller.manager.cloud.metered import MeteredCloud
from controller.manager.cloud.overlaid import OverlaidCloud
from controller.manager.configuration import default_constraints
from controller.manager.leadership import Leadership
from controller.manager.observation import ObservingAssembly
from controller.manager.solver.solving import (
    SolverProcess,
    TimedEngine,
    TimedSolve,
    WorldSolver,
)
from controller.manager.watches import Watches, mirrored_kinds
from controller.options import Options
from controller.reconcilers.clock import Clock, utc_now
from controller.scheduling.settings import Settings
from controller.state.cluster import Cluster
from controller.state.spreads import DefaultSpreads
from controller.telemetry.clusterstate import ClusterState, FromMirror, frozen
from controller.telemetry.details import DashboardDetails, Details
from controller.telemetry.events import Recorder
from controller.telemetry.market import Market
from controller.telemetry.metrics import Metrics

LEASE_QPS = 10
"""Requests per second for the Lease, over separate connections that other requests cannot delay."""

SWITCH_SECONDS = 0.0005
"""How long a thread may hold the interpreter while the event loop waits for it; by default 5 ms.

The event loop releases the interpreter at each write to a socket. While a thread renders metrics,
the event loop waits after each write to get the interpreter back.
"""

DISRUPTION_NICENESS = 10
"""The niceness of the solver for disruption, higher than that of the solver for pending pods."""

CloudFactory = Callable[[Options, str], RunningCloud]
"""Creates the cloud provider from the settings and the address of the cluster's DNS service."""

log = logging.getLogger(__name__)


class Replica:
    """One process of the controller. Of several replicas, one leads."""

    def __init__(
        self,
        options: Options,
        access: Access,
        make_cloud: CloudFactory,
        *,
        environ: Mapping[str, str],
        clock: Clock = utc_now,
    ) -> None:
        self._options = options
        self._access = access
        self._make_cloud = make_cloud
        self._identity = identity(environ)
        self._clock = clock
        # In mode `observe` the controller adopts no nodes, and evaluates the nodes of every
        # installation.
        installation = "" if self._observes else options.installation_tag
        self._cluster = Cluster(mirrored_kinds(options), installation=installation)
        self._spreads = DefaultSpreads(default_constraints(options), self._cluster)
        self._metrics = Metrics(version=own_version(), detailed=options.detailed_metrics)
        self._authentication = Authentication()
        self._api = self._client(options.kube_client_qps, options.kube_client_burst)
        self._watches = Watches(self._api, self._cluster)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; then stop, release the Lease and return.

        Raises:
            ExceptionGroup: a failure from which only a new process can recover.

        """
        watches = self._watches
        await handlers.operate(self, watches.custom_resources, self._access, watches.take)
        log.info("the controller stopped")

    async def until_listed(self) -> None:
        """Wait until the custom resources have been listed."""
        await self._watches.until_listed()

    async def run_until_cancelled(self) -> None:
        """Watch, lead and act until cancelled; return when no call is in progress any more."""
        options, metrics = self._options, self._metrics
        async with AsyncExitStack() as owned:
            own = owned.enter_async_context
            memory.return_freed_memory()
            owned.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(SWITCH_SECONDS)
            owned.enter_context(memory.frozen_survivors())
            api = await own(self._api)
            lease_api = await own(self._client(LEASE_QPS, LEASE_QPS))
            solver, judging = SolverProcess(), SolverProcess(niceness=DISRUPTION_NICENESS)
            owned.callback(solver.stop)
            owned.callback(judging.stop)
            host = options.bind_address
            authentication, cluster = self._authentication, self._cluster
            health = probes.health(lambda: (*authentication.problems, *cluster.awaited))
            await own(probes.serving(health, host, options.health_probe_port))
            market = Market()
            collectors = self._collectors(market)
            for collector in collectors:
                metrics.registry.register(collector)
            page = probes.metrics(
                metrics.registry,
                frozen=lambda: frozen(self._cluster, collectors),
                with_profiles=options.enable_profiling,
            )
            await own(probes.serving(page, host, options.metrics_port))
            made = self._make_cloud(options, await cluster_dns(api))
            priced = OverlaidCloud(made, self._cluster, options.node_price_per_hour)
            cloud = MeteredCloud(priced, metrics, market)
            solve = self._solve(solver)
            port = ReadOnlyApiServer(api) if self._observes else api
            assembly = self._assemble(port, cloud, solve, self._engine(judging))
            self._cluster.subscribe(assembly.notify)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(authentication.watch())
                tasks.create_task(memory.keep_below(options.memory_limit))
                tasks.create_task(memory.collect_seldom(self._watches.until_synced()))
                tasks.create_task(self._watches.list_custom_resources())
                tasks.create_task(self._watches.run())
                tasks.create_task(self._lead(lease_api, solve, assembly))

    def _collectors(self, market: Market) -> list[FromMirror]:
        """Return the metrics collectors that read the mirror at each scrape."""
        options, collectors = self._options, list[FromMirror]()
        if not options.disable_cluster_state_observability:
            collectors.append(ClusterState(self._cluster, market, self._clock))
        if options.detailed_metrics:
            collectors.append(Details(self._cluster, market, self._clock))
        elif not options.disable_cluster_state_observability:
            limit = options.node_and_pod_series_limit
            collectors.append(DashboardDetails(self._cluster, market, self._clock, limit))
        return collectors

    @property
    def _observes(self) -> bool:
        """Whether the controller runs in mode `observe` and writes nothing."""
        return self._options.disruption_mode == Mode.OBSERVE.value

    def _client(self, qps: float, burst: int) -> Client:
        agent = f"karpenter/{own_version()}"
        return Client(
            self._access,
            qps=qps,
            burst=burst,
            user_agent=agent,
            observer=self._observe_response,
        )

    def _observe_response(self, method: str, status: int) -> None:
        self._metrics.record_request(method, status)
        self._authentication.observe(status)

    def _solve(self, solver: SolverProcess) -> TimedSolve:
        return TimedSolve(
            solver=WorldSolver(solver),
            spreads=self._spreads,
            settings=self._scheduling_settings(),
            time_limit=self._options.solve_time_limit,
        )

    def _engine(self, solver: SolverProcess) -> TimedEngine:
        options = self._options
        limit = options.disruption_time_limit
        return TimedEngine(
            solver=WorldSolver(solver),
            spreads=self._spreads,
            scheduling=self._scheduling_settings(),
            settings=settings_of(options),
            time_limit=limit,
        )

    def _scheduling_settings(self) -> Settings:
        return Settings(
            preference_policy=self._options.preference_policy,
            min_values_policy=self._options.min_values_policy,
            ignore_dra_requests=self._options.ignore_dra_requests,
            gangs=self._options.gang_scheduling,
        )

    def _assemble(
        self, api: ApiServer, cloud: RunningCloud, solve: TimedSolve, engine: TimedEngine
    ) -> Assembly | ObservingAssembly:
        """Return the reconcilers, or in mode `observe` the observers, with their ports."""
        options = self._options
        ports = ReconcilerPorts(
            api=api,
            cloud=cloud,
            cluster=self._cluster,
            recorder=Recorder(api, self._clock, self._metrics.record_dropped_event),
            metrics=self._metrics,
            clock=self._clock,
            solve=solve,
            engine=engine,
            spreads=self._spreads,
        )
        if self._observes:
            return ObservingAssembly(ports, options)
        ca = base64.b64encode(self._access.ca.encode()).decode()
        return Assembly(ports, options, ca_bundle=options.cluster_ca_bundle or ca)

    async def _lead(
        self, api: ApiServer, solve: TimedSolve, assembly: Assembly | ObservingAssembly
    ) -> None:
        """Wait for the Lease and act while holding it; act at once if leader election is off."""
        options, name = self._options, self._options.leader_election_name

        async def act() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(solve.warm_up())
                await self._watches.until_synced()
                # The mirror is never freed: garbage collection would scan it without effect, and
                # block the event loop.
                gc.freeze()
                tasks.create_task(assembly.run())

        if self._observes:
            log.info("DISRUPTION_MODE=observe: the controller writes nothing and takes no Lease")
        if options.disable_leader_election or self._observes:
            await act()
            return
        leadership = Leadership(
            api=api,
            namespace=options.lease_namespace,
            name=name,
            identity=self._identity,
            on_change=lambda leads: self._metrics.leads(name, leads),
        )
        self._metrics.leads(name, False)
        await leadership.hold(act)


async def cluster_dns(api: ApiServer) -> str:
    """Return the address of the cluster's DNS service; if there is none, log it and return ""."""
    try:
        service = await api.get(SERVICE, "kube-dns", "kube-system")
    except ApiError as exc:
        log.info(
            "cannot read Service kube-system/kube-dns; nodes detect the cluster's DNS address at "
            "boot: %s",
            exc,
        )
        return ""
    return service.spec.cluster_ip


def identity(environ: Mapping[str, str]) -> str:
    """Return a unique name for this process: the pod's name and a random UUID."""
    pod = environ.get("POD_NAME") or environ.get("HOSTNAME") or socket.gethostname()
    return f"{pod}_{uuid.uuid4()}"


def own_version() -> str:
    """Return the installed version, or `source` for a checkout."""
    try:
        return version("joiner")
    except PackageNotFoundError:
        return "source"
