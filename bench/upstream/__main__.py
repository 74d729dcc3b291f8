"""`make upstream`: run Karpenter's regression and disruption suites against Joiner, on the testbed.

    python -m bench.upstream [--provider] [--focus REGEX] [--regions N] [--known] [--list]

Every region is its own testbed with the stack deployed by `pulumi up`. Each spec runs in its own
process in whichever region is free. After a failed spec, its region is destroyed and replaced, so
that no failure causes another. Specs that are known to fail (`known.yaml`) only run with `--known`.
The exit code is 1 if any other spec failed. With `--provider`, the suites of Karpenter's AWS
provider run instead.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from bench.arguments import make_parser
from bench.upstream import suite
from bench.upstream.suite import Outcome, Runner, Source, State
from testbed.kube.client import Object
from testbed.plugins.engine import EngineError
from testbed.processes import binaries
from testbed.progress import Progress, Stage
from tests.system.region import DEFINITIONS, Region, running_region

MARKS = {State.PASSED: "✓", State.FAILED: "✗", State.KNOWN: "–"}


@dataclass(slots=True)
class Run:
    """The specs still to run (`waiting`), and the outcomes of those that have run.

    `source`, `programs`, `sources` and `logs` are the arguments of the function `run`.
    """

    source: Source
    programs: Path
    sources: Path
    logs: Path
    progress: Progress
    stage: Stage
    waiting: queue.SimpleQueue[str]
    total: int
    outcomes: list[Outcome]
    is_over: threading.Event = field(default_factory=threading.Event)
    """Set when the run is aborted."""

    def serve(self, number: int) -> None:
        """Run specs until none is left; after each failed spec, continue in a new region.

        `number` distinguishes this call from those in other threads: the names of its regions and
        of their logs contain it.
        """
        generation = 0
        while not self.is_over.is_set() and not self.waiting.empty():
            generation += 1
            logs = self.logs / f"region-{number}-{generation}"
            with _region(number, generation, self.source) as region:
                runner = Runner(
                    source=self.source,
                    programs=self.programs,
                    sources=self.sources,
                    environment=environment(region),
                    workplace=region.directory,
                    logs=self.logs,
                    is_over=self.is_over,
                )
                self._until_one_fails(runner)
                # Kept for debugging a failure; the region's own directory is deleted with it.
                region.logs.rename(logs)

    def _until_one_fails(self, runner: Runner) -> None:
        while not self.is_over.is_set():
            try:
                spec = self.waiting.get_nowait()
            except queue.Empty:
                return
            self.stage.update(completed=len(self.outcomes), total=self.total, detail=spec)
            outcome = runner.run(spec)
            if self.is_over.is_set():
                return
            self.outcomes.append(outcome)
            self.progress.note(line(outcome))
            if outcome.state is not State.PASSED:
                return


@contextmanager
def _region(number: int, generation: int, source: Source) -> Iterator[Region]:
    """Start a region with the stack deployed: no NodePools, one replica, the suites' settings."""
    name = f"joiner-upstream-{os.getpid()}-{number}-{generation}"
    place = Path(tempfile.gettempdir()) / name
    with running_region(place, system_node_count=source.system_node_count) as region:
        settings = {k: v for k, v in region.settings.items() if k != "nodePools"}
        region.engine.up(
            "upstream",
            {
                **settings,
                "defaultNodePool": "false",
                "replicas": "1",
                **source.stack,
                # Most node classes of Karpenter's suites use the stack's role, some their own.
                "instanceProfiles": "managed",
                "settings": json.dumps(dict(source.settings)),
            },
        )
        if source is suite.PROVIDER:
            definition = yaml.safe_load((source.module / "securitygrouppolicies.yaml").read_text())
            asyncio.run(_define(region, definition))
            _prepare_account(region)
        yield region


async def _define(region: Region, definition: Object) -> None:
    """Create a CustomResourceDefinition in a region's cluster."""
    async with region.client() as kube:
        await kube.create(DEFINITIONS, definition)


def _prepare_account(region: Region) -> None:
    """Add what the suites expect of the account and the stack does not create.

    Private subnets get names as of eksctl, since specs select them by `*Private*`. Nodes use two
    security groups, which have names. The controller may pass the node roles that specs create.
    """
    import boto3

    name = region.testbed.cluster_name
    session = boto3.Session("testing", "testing", region_name=region.testbed.region)
    url = region.testbed.environment()["AWS_ENDPOINT_URL"]
    ec2: Any = session.client("ec2", endpoint_url=url)
    private = {"Name": "tag:Name", "Values": [f"{name}-private-*"]}
    for subnet in ec2.describe_subnets(Filters=[private])["Subnets"]:
        named = {"Key": "Name", "Value": f"{name}/SubnetPrivate{subnet['AvailabilityZone']}"}
        ec2.create_tags(Resources=[subnet["SubnetId"]], Tags=[named])
    discovery = {"Key": "karpenter.sh/discovery", "Value": name}
    ours = [{"Name": f"tag:{discovery['Key']}", "Values": [name]}]
    [group] = ec2.describe_security_groups(Filters=ours)["SecurityGroups"]
    second = ec2.create_security_group(
        GroupName=f"{name}-nodes", Description="Nodes", VpcId=group["VpcId"]
    )
    for identity, called in ((group["GroupId"], "cluster"), (second["GroupId"], "nodes")):
        named = {"Key": "Name", "Value": f"{name}-{called}"}
        ec2.create_tags(Resources=[identity], Tags=[named, discovery])
    passing = {
        "Effect": "Allow",
        "Action": "iam:PassRole",
        "Resource": f"arn:aws:iam::*:role/KarpenterNodeRole-{name}-*",
    }
    iam: Any = session.client("iam", endpoint_url=url)
    iam.put_role_policy(
        RoleName=f"KarpenterControllerRole-{name}",
        PolicyName="roles-of-specs",
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [passing]}),
    )


def environment(region: Region) -> dict[str, str]:
    """Return the variables that point a suite to a region's cluster and to its test cloud."""
    cluster = region.testbed.cluster
    return {
        **region.testbed.environment(),
        "CLUSTER_NAME": region.testbed.cluster_name,
        "CLUSTER_ENDPOINT": cluster.server,
        "INTERRUPTION_QUEUE": region.testbed.cluster_name,
        "ENABLE_ZONAL_SHIFT": "true",
    }


def run(
    specs: Sequence[str],
    outcomes: list[Outcome],
    *,
    source: Source,
    regions: int,
    programs: Path,
    sources: Path,
    logs: Path,
) -> None:
    """Run specs in several regions in parallel, and append each outcome to `outcomes`.

    `source` are the suites of the specs. `programs` is the folder of the suites' compiled programs,
    `sources` that of their Go packages, and `logs` that of the output. `regions` is the number of
    regions.
    """
    progress = Progress(Console(stderr=True, markup=False, emoji=False, highlight=False))
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for spec in specs:
        waiting.put(spec)
    with progress.stage(f"{len(specs)} specs") as stage:
        work = Run(source, programs, sources, logs, progress, stage, waiting, len(specs), outcomes)
        with ThreadPoolExecutor(regions) as pool:
            numbers = range(1, min(regions, len(specs)) + 1)
            serving = [pool.submit(work.serve, number) for number in numbers]
            try:
                for served in as_completed(serving):
                    served.result()
            except BaseException:
                work.is_over.set()
                raise


def line(outcome: Outcome) -> str:
    """Return one outcome as one line."""
    why = f": {outcome.why}" if outcome.why else ""
    return f"{MARKS[outcome.state]} {outcome.spec} ({outcome.seconds:.0f} s){why}"


def with_known_reason(outcome: Outcome, reasons: Mapping[str, str]) -> Outcome:
    """Return the outcome with state `known` if it is a failure with a recorded reason."""
    why = suite.reason(outcome.spec, reasons)
    if outcome.state is State.FAILED and why:
        return Outcome(outcome.spec, State.KNOWN, outcome.seconds, why)
    return outcome


def table(outcomes: Sequence[Outcome], seconds: float) -> Table:
    """Return the outcomes as a table by spec name, with totals."""
    made = Table(title="Karpenter's suites against Joiner", box=None, header_style="bold")
    made.add_column("spec", overflow="fold")
    made.add_column("state")
    made.add_column("seconds", justify="right")
    made.add_column("why", overflow="fold")
    for outcome in sorted(outcomes, key=lambda outcome: outcome.spec):
        took = f"{outcome.seconds:.0f}" if outcome.seconds else ""
        made.add_row(outcome.spec, f"{MARKS[outcome.state]} {outcome.state}", took, outcome.why)
    counted = Counter(outcome.state for outcome in outcomes)
    totals = ", ".join(f"{counted[state]} {state}" for state in State)
    made.caption = f"{len(outcomes)} specs: {totals}; {seconds / 60:.1f} minutes"
    return made


def main() -> int:
    """Run the suite or a part of it. Returns 0 if no spec failed that is not known to fail."""
    parser = make_parser("bench.upstream", __doc__)
    parser.add_argument(
        "--provider", action="store_true", help="run the suites of Karpenter's AWS provider instead"
    )
    parser.add_argument("--focus", default="", metavar="REGEX", help="only specs whose names match")
    parser.add_argument("--regions", type=int, default=2, help="regions side by side (default: 2)")
    parser.add_argument(
        "--known", action="store_true", help="also run the specs that are known to fail"
    )
    parser.add_argument("--list", action="store_true", help="only print the names of the specs")
    parser.add_argument("--logs", type=Path, help="folder for the logs (default: a new folder)")
    chosen = parser.parse_args()
    console = Console(markup=False, emoji=False, width=None if sys.stdout.isatty() else 200)
    source = suite.PROVIDER if chosen.provider else suite.CORE
    programs = suite.programs(source, Progress())
    for needed in ("kwokctl", "pulumi"):
        binaries.ensure(needed, progress=Progress())
    specs = suite.specs(programs, chosen.focus, source)
    if chosen.list or not specs:
        console.print("\n".join(specs) or "no spec matches", highlight=False)
        return 0 if specs else 1
    reasons = suite.known_failures(source)
    left_out = [] if chosen.known else [spec for spec in specs if suite.reason(spec, reasons)]
    logs = chosen.logs or Path(tempfile.mkdtemp(prefix="joiner-upstream-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    wanted = [spec for spec in specs if spec not in left_out]
    outcomes: list[Outcome] = []
    began = time.monotonic()
    status = 0
    try:
        run(
            wanted,
            outcomes,
            source=source,
            regions=chosen.regions,
            programs=programs,
            sources=suite.sources(source, Progress()),
            logs=logs,
        )
    except KeyboardInterrupt:
        console.print("interrupted; everything that ran has been ended")
        status = 130
    except EngineError as error:
        console.print(str(error), highlight=False)
        status = 1
    outcomes = [with_known_reason(outcome, reasons) for outcome in outcomes]
    outcomes += [Outcome(spec, State.KNOWN, 0, suite.reason(spec, reasons)) for spec in left_out]
    console.print(table(outcomes, time.monotonic() - began), highlight=False)
    console.print(f"logs: {logs}", highlight=False)
    return status or int(any(outcome.state is State.FAILED for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
