"""`make bench`: time from scaling Deployments to running pods, for Joiner and Karpenter in turn.

    python -m bench.endtoend [--rounds N] [--pods N] [--only Joiner] [--json FILE]
    python -m bench.endtoend --beside-nodes 2000 --beside-pods 20000

Both controllers run on the same control plane. Each starts in an empty cluster, gets the same
Deployments scaled from 0, and leaves the cluster empty. Joiner is deployed by `pulumi up` and
launches instances in the test cloud. Karpenter is 1.15.0 with its kwok provider, which creates
Nodes itself, from the instance types and prices that Joiner reads from the cloud. Times are seconds
from the scale request until a watch of the API server reports the change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.arguments import make_parser
from bench.backgroundload import BackgroundLoad
from bench.endtoend.sides import INSTANCE_SECONDS, PATIENCE_SECONDS, Joiner, Karpenter, Side, until
from bench.endtoend.stopwatch import STAGES, Stopwatch
from bench.memory import Meter
from bench.nodeprice import VOLUMES
from bench.parity import engines
from testbed.cloud.control import CloudControl
from testbed.demo.scenario import SIZES
from testbed.environment import CHECKOUT
from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.plugins.engine import PulumiEngine
from testbed.progress import Progress
from testbed.region.testbed import Testbed

JOIN_SECONDS = 1.0
"""The part of `INSTANCE_SECONDS` between an instance's running state and its Node."""

REST_SECONDS = 10.0
"""Seconds of idle time before memory is measured."""

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one controller in one round: seconds, $/h, MiB."""

    side: str
    round: int
    pods: int
    load: float
    """One-minute load average of the benchmark machine before the round."""

    seconds_to_bound: float
    seconds_to_running: float
    nodes: int
    cost: float
    types: Mapping[str, int]
    idle_mib: float
    peak_mib: float
    steady_mib: float
    """Memory after the pods run. All three are those of the replica that uses most: the leader."""

    steady_mib_of_all: float
    """Memory of all replicas together after the pods run."""

    stages: Mapping[str, tuple[float, float]]
    """Seconds at which the first and the last object reached each stage, by stage."""

    @property
    def seconds_to_launched(self) -> float:
        """Seconds from the last pod's creation until the last NodeClaim reports Launched."""
        return self.stages["claim launched"][1] - self.stages["pod created"][1]


@dataclass
class Track:
    """Where every controller runs: one control plane and one cloud."""

    kube: KubeClient
    cloud: CloudControl
    console: Console
    pods: int

    async def run(self, side: Side, number: int) -> Outcome:
        """Run round `number` with a controller that is already deployed, and return its results."""
        load = os.getloadavg()[0]
        meter, watch = Meter(side.replicas), Stopwatch(self.kube)
        metering = asyncio.create_task(meter.run())
        try:
            await asyncio.sleep(REST_SECONDS)
            idle = dict(meter.now)
            async with watch.watching():
                watch.start()
                await self._scale(self.pods)
                await watch.until("pod bound", self.pods, patience=PATIENCE_SECONDS)
                await watch.until("pod running", self.pods, patience=PATIENCE_SECONDS)
                made = [dict(node) for node in watch.nodes.values()]
                await asyncio.sleep(REST_SECONDS)
            steady = dict(meter.now)
        finally:
            metering.cancel()
            await asyncio.gather(metering, return_exceptions=True)
        types = Counter(_kind(node) for node in made)
        return Outcome(
            side=side.name,
            round=number,
            pods=self.pods,
            load=load,
            seconds_to_bound=watch.span("pod bound")[1],
            seconds_to_running=watch.span("pod running")[1],
            nodes=len(watch.reached["node created"]),
            cost=await asyncio.to_thread(self._cost, made),
            types=dict(types),
            idle_mib=max(idle.values()),
            peak_mib=max(meter.peak.values()),
            steady_mib=max(steady.values()),
            steady_mib_of_all=sum(steady.values()),
            stages={stage: watch.span(stage) for stage in STAGES},
        )

    async def prepare(self) -> None:
        """Create the Deployments with zero replicas."""
        for number, (cpu, memory) in enumerate(SIZES):
            await self.kube.create(DEPLOYMENTS, deployment(f"bench-{number}", cpu, memory))

    async def clear(self) -> None:
        """Scale every Deployment to zero, and wait until no pod is left."""
        await self._scale(0)

        async def has_no_pods() -> bool:
            pods, _ = await self.kube.list("/api/v1/namespaces/default/pods")
            return not pods

        await until("the pods are gone", has_no_pods)

    async def _scale(self, pods: int) -> None:
        share, rest = divmod(pods, len(SIZES))
        await asyncio.gather(
            *(
                self.kube.patch(
                    f"{DEPLOYMENTS}/bench-{number}",
                    {"spec": {"replicas": share + (number < rest)}},
                )
                for number in range(len(SIZES))
            )
        )

    def _cost(self, made: Iterable[Mapping[str, Any]]) -> float:
        """Return the total $/h of nodes at the cloud's prices, with their volumes."""
        return sum(
            VOLUMES
            + self.cloud.price(
                instance_type=labels["node.kubernetes.io/instance-type"],
                zone=labels["topology.kubernetes.io/zone"],
                capacity_type=labels["karpenter.sh/capacity-type"],
            )
            for labels in (node["metadata"]["labels"] for node in made)
        )


def _kind(node: Mapping[str, Any]) -> str:
    labels = node["metadata"]["labels"]
    return f"{labels['node.kubernetes.io/instance-type']} {labels['karpenter.sh/capacity-type']}"


def deployment(name: str, cpu: str, memory: str) -> dict[str, Any]:
    """Return the manifest of a Deployment with zero replicas and one pod size."""
    container = {
        "name": "pause",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": {"cpu": cpu, "memory": memory}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
            },
        },
    }


async def compare(
    testbed: Testbed, work: Path, chosen: argparse.Namespace, console: Console
) -> list[Outcome]:
    """Run every round on a running testbed and return the results."""
    assert testbed.cloud is not None
    cloud = CloudControl(testbed.cloud.url)
    cloud.change_settings(pending=INSTANCE_SECONDS - JOIN_SECONDS)
    engine = PulumiEngine(
        directory=work / "pulumi",
        project=CHECKOUT,
        environment=testbed.environment(),
        show=lambda _: None,
        progress=Progress(console),
    )
    outcomes: list[Outcome] = []
    async with KubeClient(Kubeconfig.read(testbed.cluster.kubeconfig)) as kube:
        track = Track(kube, cloud, console, chosen.pods)
        catalogue = work / "catalogue.json"
        joiner = Joiner(testbed, kube, engine)
        karpenter = Karpenter(testbed, kube, catalogue, work / "karpenter.log")
        await track.prepare()
        if chosen.beside_nodes:
            load = BackgroundLoad(kube, chosen.beside_nodes, chosen.beside_pods)
            with Progress(console).stage("the cluster that is there already") as stage:
                await load.create(lambda made, total: stage.update(completed=made, total=total))
        # Joiner goes first because Karpenter gets the catalogue that Joiner reads from the cloud.
        for number in range(1, chosen.rounds + 1):
            for side in (joiner, karpenter):
                if chosen.only not in ("", side.name):
                    continue
                console.print(f"[{number}/{chosen.rounds}] {side.name} …")
                await side.arrive()
                outcomes.append(await track.run(side, number))
                _say(console, outcomes[-1])
                if side is joiner and not catalogue.exists() and not chosen.only:
                    console.print(f"    {await joiner.write_catalogue(catalogue, work)}")
                _keep_logs(testbed, work, chosen.logs, side, number)
                await track.clear()
                await side.leave()
    return outcomes


def _say(console: Console, outcome: Outcome) -> None:
    console.print(
        f"    bound in {outcome.seconds_to_bound:.2f} s, running in "
        f"{outcome.seconds_to_running:.2f} s, {outcome.nodes} nodes, {outcome.cost:.4f} $/h, "
        f"{outcome.steady_mib:.0f} MiB (load {outcome.load:.1f})",
        highlight=False,
    )


def _keep_logs(testbed: Testbed, work: Path, kept: Path | None, side: Side, number: int) -> None:
    if kept is None:
        return
    kept.mkdir(parents=True, exist_ok=True)
    logs = [*(testbed.directory / "workloads" / "logs").glob("*.log"), *work.glob("*.log")]
    for log in logs:
        if (log.parent == work) == (side.name == "Karpenter"):
            (kept / f"{side.name}-{number}-{log.name}").write_bytes(log.read_bytes())


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return the medians of both controllers as a table."""
    drawn = Table(header_style="bold")
    drawn.add_column("median of the rounds")
    sides = list(dict.fromkeys(o.side for o in outcomes))
    for side in sides:
        drawn.add_column(side, justify="right")
    for title, member, form in (
        ("last pod created → last claim launched, s", "seconds_to_launched", "{:.2f}"),
        ("order to scale → all bound, s", "seconds_to_bound", "{:.2f}"),
        ("order to scale → all Running, s", "seconds_to_running", "{:.2f}"),
        ("nodes made", "nodes", "{:.0f}"),
        ("$/h", "cost", "{:.4f}"),
        ("controller before the pods, MiB", "idle_mib", "{:.0f}"),
        ("controller at its peak, MiB", "peak_mib", "{:.0f}"),
        ("controller after the pods, MiB", "steady_mib", "{:.0f}"),
        ("all replicas after the pods, MiB", "steady_mib_of_all", "{:.0f}"),
    ):
        drawn.add_row(title, *(form.format(_median(outcomes, side, member)) for side in sides))
    drawn.add_section()
    for stage in STAGES:
        spans = (_span(outcomes, side, stage) for side in sides)
        drawn.add_row(f"first … last {stage}, s", *spans)
    return drawn


def _median(outcomes: Iterable[Outcome], side: str, member: str) -> float:
    figures: list[float] = [getattr(o, member) for o in outcomes if o.side == side]
    return statistics.median(figures)


def _span(outcomes: Iterable[Outcome], side: str, stage: str) -> str:
    spans = [o.stages[stage] for o in outcomes if o.side == side]
    first, last = (statistics.median(times) for times in zip(*spans, strict=True))
    return f"{first:.2f} … {last:.2f}"


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = make_parser("bench.endtoend", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each controller (3)")
    parser.add_argument("--pods", type=int, default=200, help="pods of each round (200)")
    parser.add_argument(
        "--beside-nodes",
        type=int,
        default=0,
        help="full nodes that exist before the first round (0)",
    )
    parser.add_argument(
        "--beside-pods", type=int, default=0, help="pods that run on those nodes (0)"
    )
    parser.add_argument("--only", default="", choices=["", "Joiner"], help="only this controller")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--logs", type=Path, help="a folder that keeps the controllers' logs")
    chosen = parser.parse_args()
    console = Console(markup=False, emoji=False, width=None if sys.stdout.isatty() else 120)
    if not chosen.only:
        engines.binary("kwok", Progress(console))
    with tempfile.TemporaryDirectory(prefix="joiner-bench-") as folder:
        work = Path(folder)
        testbed = Testbed(
            directory=work / "testbed",
            join_delay_seconds=JOIN_SECONDS,
            ready_delay_seconds=0,  # Karpenter's kwok provider has no such delay
            progress=Progress(console),
        )
        with testbed:
            outcomes = asyncio.run(compare(testbed, work, chosen, console))
    console.print(table(outcomes))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
