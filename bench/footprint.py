"""Memory of a replica for the instance types its NodePools can launch, process by process.

    python -m bench.footprint [--pools 1 9] [--rounds 10]

The instance types, offerings and prices are those of the test cloud, read through Joiner's AWS
adapter. A round solves two problems in the same processes as the controller: where to schedule 300
pending pods, and which of 40 candidate nodes to disrupt. The memory is measured before the first
round, after it, after `--rounds` more, and after as many with other prices. There is no control
plane, so the controller's own process is measured without its cluster state and clients. MiB are
proportional memory (PSS): a shared page counts once. A line below each group of rows has the
duration of scheduling the pending pods: of the first time, and medians of the other rounds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from bench.arguments import make_parser
from bench.memory import pss
from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.nodes import Node, NodeSpec, NodeStatus
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Requirement
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.disruption.problem import DisruptionProblem, DisruptionSettings
from controller.manager.solver.solving import (
    SolverProcess,
    TimedEngine,
    TimedSolve,
    WorldSolver,
    prepare,
)
from controller.options import Options
from controller.reconcilers.newnodes.supply import supply
from controller.scheduling.settings import Settings
from controller.state.cluster import Cluster
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot
from controller.state.spreads import DefaultSpreads
from tests.aws.builders import CLUSTER, NOW, make_node_class, tag_network
from tests.builders import CLASS, make_nodepool, make_pod
from tests.reconcilers.world import World

REGION = "us-west-2"
SIZES = (("100m", "256Mi"), ("250m", "512Mi"), ("500m", "1Gi"), ("1", "2Gi"), ("500m", "4Gi"))
PODS, NODES = 300, 40
INITIALIZED_NODE = [
    Condition(type=kind, status="True", reason="Benchmark")
    for kind in ("Launched", "Registered", "Initialized", "Ready", "Consolidatable")
]
NARROW = (
    ("karpenter.sh/capacity-type", ("on-demand",)),
    ("karpenter.sh/capacity-type", ("spot",)),
    ("kubernetes.io/arch", ("arm64",)),
    ("karpenter.k8s.aws/instance-category", ("c", "m", "r")),
    ("karpenter.k8s.aws/instance-family", ("m5", "c5")),
    ("topology.kubernetes.io/zone", ("us-west-2a",)),
    ("node.kubernetes.io/instance-type", ("g6f.large",)),
    ("karpenter.k8s.aws/instance-category", ("t",)),
)
"""Requirements of the NodePools after the first, one each, in rotation.

One requires a share of a GPU.
"""


def pools_of(count: int) -> list[NodePool]:
    """Return `count` NodePools of one node class: the first unrestricted, the others narrowed."""
    pools = [make_nodepool(f"pool-{number}") for number in range(count)]
    narrow = [with_requirement(pool, *NARROW[n % len(NARROW)]) for n, pool in enumerate(pools[1:])]
    return [pools[0], *narrow]


def with_requirement(pool: NodePool, key: str, values: tuple[str, ...]) -> NodePool:
    """Return a copy of the NodePool with this requirement instead of its own."""
    replace = msgspec.structs.replace
    required = [Requirement(key=key, operator="In", values=list(values))]
    inner = replace(pool.spec.template.spec, requirements=required)
    template = replace(pool.spec.template, spec=inner)
    return replace(pool, spec=replace(pool.spec, template=template))


def pending_pods() -> list[Pod]:
    """Return the pending pods."""
    sizes = [SIZES[n % len(SIZES)] for n in range(PODS)]
    return [make_pod(f"web-{n}", cpu=c, memory=m) for n, (c, m) in enumerate(sizes)]


def running_nodes() -> tuple[tuple[StateNode, ...], tuple[Pod, ...]]:
    """Return half-empty nodes of the first NodePool, and the pods that run on them."""
    nodes, pods = [], []
    allocatable: dict[str, str | int | float] = {"cpu": "3920m", "memory": "14Gi", "pods": "58"}
    for number in range(NODES):
        name = f"node-{number}"
        carried = {
            labels.NODEPOOL: "pool-0",
            labels.HOSTNAME: name,
            labels.INSTANCE_TYPE: "m5.xlarge",
            labels.ZONE: f"us-west-2{'abc'[number % 3]}",
            labels.CAPACITY_TYPE: labels.ON_DEMAND,
            labels.ARCH: "amd64",
            labels.OS: "linux",
            labels.REGISTERED: "true",
            labels.INITIALIZED: "true",
        }
        meta = ObjectMeta(name=name, labels=carried, uid=f"uid-{name}", creation_timestamp=NOW)
        identity = f"aws:///us-west-2a/i-{number:017x}"
        claim = NodeClaim(
            metadata=meta,
            spec=NodeClaimSpec(node_class_ref=CLASS),
            status=NodeClaimStatus(
                provider_id=identity,
                node_name=name,
                capacity=allocatable,
                allocatable=allocatable,
                conditions=INITIALIZED_NODE,
            ),
        )
        node = Node(
            metadata=meta,
            spec=NodeSpec(provider_id=identity),
            status=NodeStatus(
                capacity=allocatable, allocatable=allocatable, conditions=INITIALIZED_NODE
            ),
        )
        nodes.append(StateNode(node=node, claim=claim))
        pods.append(make_pod(f"runs-{number}", node=name))
    return tuple(nodes), tuple(pods)


@dataclass
class Replica:
    """The parts of a controller that hold instance types and offerings.

    `solver` is the process that schedules pods, `judging` the one that decides about disruption.
    `seconds` are the durations of scheduling the pending pods.
    """

    cloud: AWSCloudProvider
    world: World
    pools: list[NodePool]
    solver: SolverProcess = field(default_factory=SolverProcess)
    judging: SolverProcess = field(default_factory=SolverProcess)
    seconds: list[float] = field(default_factory=list)

    async def snapshot(self) -> Snapshot:
        """Return a snapshot of the cluster, as the provisioner takes it."""
        types = (await supply(self.cloud, self.world.cluster, self.pools)).types
        return self.world.cluster.snapshot(types, self.pools, now=NOW)

    async def ask(self) -> None:
        """Solve a provisioning and a disruption problem, each in its process, on new snapshots."""
        limit = timedelta(seconds=30)
        began = time.perf_counter()
        spreads = DefaultSpreads((), Cluster())
        solve = TimedSolve(
            solver=WorldSolver(self.solver),
            spreads=spreads,
            settings=Settings(),
            time_limit=limit,
        )
        results = await solve(pending_pods(), await self.snapshot())
        assert not results.unschedulable
        self.seconds.append(time.perf_counter() - began)
        engine = TimedEngine(
            solver=WorldSolver(self.judging),
            spreads=spreads,
            scheduling=Settings(),
            settings=DisruptionSettings(),
            time_limit=timedelta(seconds=5),
        )
        nodes, pods = running_nodes()
        snapshot = await self.snapshot()
        problem = DisruptionProblem(
            snapshot=dataclasses.replace(snapshot, nodes=nodes, pods=pods),
            node_pools={pool.metadata.name: pool for pool in self.pools},
            now=NOW,
        )
        await engine.decide(problem)

    def print_row(self, stage: str) -> None:
        """Print one row of the table."""
        each = [pss(os.getpid()), *(_held_by(solver) for solver in (self.solver, self.judging))]
        row = [str(len(self.pools)), stage, *(f"{mib:.0f}" for mib in (*each, sum(each)))]
        print(f"| {' | '.join(row)} |", flush=True)


def _held_by(solver: SolverProcess) -> float:
    process = solver._process
    return pss(process.pid) if process is not None and process.pid is not None else 0.0


async def measure(count: int, rounds: int) -> None:
    """Measure the memory of a replica with `count` NodePools, and print its rows of the table.

    `rounds` is the number of rounds after the first, and again the number with other prices.
    """
    session = Session(region=REGION)
    cloud = AWSCloudProvider(Options(cluster_name=CLUSTER), aws=session, cluster_dns="10.100.0.10")
    world = World()
    replica = Replica(cloud, world, pools_of(count))
    world.seed(await cloud.resolve(make_node_class(), now=NOW), *replica.pools)
    try:
        await replica.snapshot()
        await replica.solver.solve(prepare)
        replica.print_row("idle")
        await replica.ask()
        replica.print_row("first answers")
        for _ in range(rounds):
            await replica.ask()
        replica.print_row(f"{rounds} more")
        same = replica.seconds[-rounds:]
        for _ in range(rounds):
            cloud._types.pricing.revision += 1
            await replica.ask()
        replica.print_row(f"{rounds} at other prices")
        changed = replica.seconds[-rounds:]
        print(
            f"  first {replica.seconds[0]:.2f} s, then {statistics.median(same):.2f} s, "
            f"at other prices {statistics.median(changed):.2f} s"
        )
    finally:
        replica.solver.stop()
        replica.judging.stop()
        session.close()


def prepare_region(url: str) -> dict[str, str]:
    """Tag the network of the test cloud at `url` as the stack does.

    Returns the environment variables of a controller that uses this cloud.
    """
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    ec2: Any = boto3.client("ec2", region_name=REGION, endpoint_url=url, **keys)
    tag_network(ec2)
    named = {name.upper(): value for name, value in keys.items()}
    # The last variable is set as the controller's command line sets it.
    more = {"AWS_ENDPOINT_URL": url, "AWS_REGION": REGION, "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **named, **more}


MEASURE_HERE = "from bench import footprint; footprint.measure_here()"
"""The program of the measured process, which has no main module in a file.

Solver processes import the main module too. With `-m`, they would import this module, which needs
more memory than the nearly empty main module of the controller.
"""


def measure_here() -> None:
    """Run `measure` in this process, with its arguments from the command line.

    This process is the replica's controller, and its children are the solver processes. The rows of
    the table go to standard output.
    """
    asyncio.run(measure(*map(int, sys.argv[1:])))


def main(argv: Sequence[str]) -> int:
    """Print the table; each number of NodePools is measured in a process of its own."""
    # The modules that the test cloud loads must not count as the controller's memory.
    from testbed.cloud import Cloud

    parser = make_parser("bench.footprint", __doc__)
    parser.add_argument(
        "--pools", type=int, nargs="+", default=[1, 9], help="numbers of NodePools (1 and 9)"
    )
    parser.add_argument("--rounds", type=int, default=10, help="rounds after the first (10)")
    options = parser.parse_args(argv)
    print("| pools | after | controller | solver | disruption | all |")
    print("|---:|---|---:|---:|---:|---:|", flush=True)
    with Cloud(cluster_name=CLUSTER) as cloud:
        environment = prepare_region(cloud.url)
        for count in options.pools:
            command = [sys.executable, "-c", MEASURE_HERE, str(count), str(options.rounds)]
            subprocess.run(command, env=environment, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
