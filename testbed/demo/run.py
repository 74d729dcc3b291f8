"""`make demo`: the scenario, shown by `joiner top` on a terminal, and a summary at the end."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from testbed.cloud.control import CloudControl
from testbed.demo.liveview import LiveView
from testbed.demo.observation import Observer
from testbed.demo.scenario import ClaimError, Scenario, Summary
from testbed.environment import CHECKOUT
from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.plugins.engine import PulumiEngine
from testbed.processes import binaries, owned
from testbed.progress import Progress
from testbed.region.testbed import Testbed


def configuration(testbed: Testbed) -> Mapping[str, str]:
    """Return the stack's settings that point the Pulumi program to the testbed."""
    assert testbed.cloud is not None
    created = {"cluster": "create", "publicAccessCidrs": "none"}
    return {
        **({"cluster": "existing"} if testbed.has_eks_cluster else created),
        "clusterName": testbed.cluster_name,
        "region": testbed.region,
        "awsEndpoint": testbed.cloud.url,
        "kubeconfig": str(testbed.cluster.kubeconfig),
        "image": "testbed/checkout:local",
        "nodePools": str(CHECKOUT / "testbed" / "nodepools"),
    }


async def play(testbed: Testbed, engine: PulumiEngine, view: LiveView) -> Summary:
    """Run the scenario on a running testbed.

    Raises ClaimError if a step's claim does not hold, and EngineError if Pulumi fails.
    """
    assert testbed.cloud is not None
    async with KubeClient(Kubeconfig.read(testbed.cluster.kubeconfig)) as kube:
        scenario = Scenario(
            observer=Observer(kube, CloudControl(testbed.cloud.url)),
            engine=engine,
            configuration=configuration(testbed),
            logs=testbed.directory / "workloads" / "logs",
            viewer=view,
        )
        return await scenario.run()


def _workplace() -> Path:
    """Return the directory of one demo; its keeper removes it however the demo ends."""
    return Path(tempfile.gettempdir()) / f"joiner-demo-{os.getpid()}"


def main() -> int:
    """Run the demo; return 0 if every claim holds, 1 if one does not, 130 after Ctrl-C.

    Raises the error of Pulumi (EngineError) or of a part of the testbed that does not start.
    """
    console = Console(markup=False, emoji=False)
    view = LiveView(console)
    began = time.monotonic()
    with owned.temporary_directory(_workplace()) as directory:
        progress = Progress(console)
        testbed = Testbed(directory=directory / "testbed", progress=progress)
        view.begin("testbed up")
        try:
            binaries.ensure("kwokctl", progress=progress, upcoming=[binaries.pulumi()])
            with testbed:
                view.end("testbed up", time.monotonic() - began, "control plane, cloud, kubelets")
                engine = PulumiEngine(
                    directory=directory / "pulumi",
                    project=CHECKOUT,
                    environment=testbed.environment(),
                    show=view.engine_line,
                    progress=progress,
                )
                console.print(f"Pulumi plugins: {engine.home}", highlight=False)
                environment = owned.marked_environment(
                    directory, {**os.environ, **testbed.environment()}
                )
                with view.shown(directory, environment):
                    summary = asyncio.run(play(testbed, engine, view))
        except ClaimError as failure:
            console.print(Panel(Text(str(failure)), title="the scenario ended here", style="red"))
            return 1
        except KeyboardInterrupt:
            console.print("\nStopped; everything that ran has been ended.")
            return 130
    _print(console, summary, time.monotonic() - began)
    return 0


def _print(console: Console, summary: Summary, seconds: float) -> None:
    table = Table(title="Joiner: the demo in figures", box=None, header_style="bold")
    table.add_column("what")
    table.add_column("figure")
    table.add_row("pods bound", str(summary.pods_bound))
    table.add_row("pods created → all bound", f"{summary.seconds_to_bound:.1f} s")
    nodes = ", ".join(f"{n} × {kind}" for kind, n in sorted(summary.nodes_by_type.items()))
    table.add_row("nodes launched", nodes)
    gap = f" ({summary.cost / summary.lower_bound:.3f} × the bound)" if summary.lower_bound else ""
    table.add_row("cost", f"{summary.cost:.4f} $/h{gap}")
    table.add_row("proven lower bound", f"{summary.lower_bound:.4f} $/h")
    left = ", ".join(f"{k}: {v}" for k, v in summary.left.items())
    table.add_row("left after destroy", left or "nothing")
    for step in summary.steps:
        table.add_row(f"  {step.title}", f"{step.seconds:.1f} s")
    table.add_row("in all", f"{seconds:.1f} s")
    console.print(table)
