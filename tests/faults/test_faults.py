"""A few runs of the fault campaign; `make faults` runs hundreds."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from bench.faults import auditor
from bench.faults.auditor import Auditor, Instance, InstanceType, View
from bench.faults.campaign import Load, Run, play
from bench.faults.cluster import NodeChooser
from bench.faults.injection import FAULTS
from bench.faults.region import SHUTTING_DOWN, Region
from bench.faults.replicas import EPOCH
from bench.faults.runs import fault_and_number, outcomes
from bench.faults.wires import Call

SEEDS = [1, 5, 20]
"""Kills at launch, a paused leader, lost answers of AWS."""

CLAIM = {"metadata": {"name": "a"}, "status": {"providerID": "aws:///z/i-1"}}
NODE = {"metadata": {"name": "n"}, "spec": {"providerID": "aws:///z/i-1"}}
RUNNING = Instance("i-1", "aws:///z/i-1", "running", "a", price=1.0)


def make_view(**parts: object) -> View:
    return View(**{"at": 0.0, "claims": [], "nodes": [], "pods": [], "instances": []} | parts)  # type: ignore[arg-type]


def make_pod(cpu: str, memory: str) -> auditor.Body:
    requests = {"cpu": cpu, "memory": memory}
    return {"metadata": {}, "spec": {"containers": [{"resources": {"requests": requests}}]}}


@pytest.mark.long
def test_under_faults_no_pod_is_lost_and_no_instance_leaks() -> None:
    played = [*outcomes(SEEDS, "", Load(pods=20), jobs=2)]
    assert sorted(outcome.seed for outcome in played) == SEEDS
    assert [(outcome.seed, *outcome.findings) for outcome in played if outcome.findings] == []


@pytest.mark.process
def test_no_gang_is_split_where_ec2_runs_out_of_capacity() -> None:
    (played,) = outcomes([1], "cloud-exhausted", Load(pods=10, gangs=3), jobs=1)
    assert list(played.findings) == []


@pytest.mark.process
def test_a_static_pool_keeps_its_replicas_if_its_leader_is_killed_at_a_launch() -> None:
    (played,) = outcomes([1], "kill-launch", Load(pods=10, static=4), jobs=1)
    assert list(played.findings) == []


@pytest.mark.long
def test_a_seed_repeats_the_same_run_on_a_slower_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    witness = Run._witness

    def record(run: Run, call: Call) -> None:
        calls.append((call.process.name, call.verb, call.kind, call.name))
        witness(run, call)

    monkeypatch.setattr(Run, "_witness", record)
    play(3, "watches-cut", 0, Load(pods=6))
    first, calls = calls, []
    # A machine on which each reconciliation uses up its share of the event loop.
    monkeypatch.setattr("controller.manager.loops.SLICE_SECONDS", 1e-9)
    play(3, "watches-cut", 0, Load(pods=6))
    assert calls == first


def test_the_auditor_finds_nodeclaims_beyond_the_replicas_of_a_static_pool() -> None:
    static = {"karpenter.sh/nodepool": "fixed"}
    claims = [{"metadata": {"name": f"fixed-{n}", "labels": static}} for n in range(7)]
    judge = Auditor([InstanceType(2000, 4096, 1.0)])

    judge.check(make_view(claims=claims[:4], replicas={"fixed": 4}))
    judge.check(make_view(claims=claims[:4], replicas={"fixed": 2}))
    judge.check(make_view(claims=claims[:6], replicas={"fixed": 4}))
    assert judge.findings == [], "with a replacement there are five nodes, so two may be replaced"
    judge.check(make_view(claims=claims, replicas={"fixed": 4}))

    assert judge.findings == ["static NodePool fixed has 7 NodeClaims, and 4 replicas"]


def test_the_auditor_finds_a_voluntary_disruption_of_a_part_of_a_gang() -> None:
    def claim(name: str, *reasons: str) -> auditor.Body:
        marks = [
            {"type": "DisruptionReason", "status": "True", "reason": reason,
             "lastTransitionTime": "2026-11-22T12:00:00Z"}
            for reason in reasons
        ]  # fmt: skip
        status = {"providerID": f"aws:///zone/{name}", "conditions": marks}
        return {"metadata": {"name": name}, "status": status}

    def pod(name: str, node: str, created: str = "2026-11-22T11:00:00Z") -> auditor.Body:
        spec = {"nodeName": node, "schedulingGroup": {"podGroupName": "gang0"}}
        return {"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}

    nodes = [
        {"metadata": {"name": f"node-{n}"}, "spec": {"providerID": f"aws:///zone/{n}"}}
        for n in "abc"
    ]
    pods = [
        pod("p", "node-a"),
        pod("q", "node-b"),
        pod("restarted", "node-c", "2026-11-22T12:00:01Z"),
    ]
    judge = Auditor([InstanceType(2000, 4096, 1.0)])

    judge.check_disruption(
        "a", [claim("a", "Drifted"), claim("b", "Drifted"), claim("c")], nodes, pods
    )
    judge.check_disruption("a", [claim("a", "Unhealthy"), claim("b"), claim("c")], nodes, pods)
    judge.check_disruption("a", [claim("a"), claim("b"), claim("c")], nodes, pods)
    split = [claim("a", "Drifted"), claim("b"), claim("c")]
    judge.check_disruption("a", split, nodes, pods, announced={"a"})
    assert judge.findings == []
    judge.check_disruption("a", split, nodes, pods)

    assert judge.findings == ["a is disrupted, and node-b stays, which runs gang0 too"]


@pytest.mark.parametrize(
    ("owner", "findings"),
    [
        ("aws:///z/i-1", ["instance i-1 was terminated while it ran p"]),
        ("aws:///z/i-former", []),
    ],
    ids=["its own node", "node of the former instance at its address"],
)
def test_the_auditor_finds_instances_that_end_under_pods(owner: str, findings: list[str]) -> None:
    running = replace(RUNNING, node="node-1")
    node = {"metadata": {"name": "node-1"}, "spec": {"providerID": owner}}
    pod = make_pod("1000m", "1024Mi")
    pod["metadata"]["name"], pod["spec"]["nodeName"] = "p", "node-1"
    judge = Auditor([InstanceType(2000, 4096, 1.0)])

    for instance in (running, replace(running, state="terminated")):
        judge.check(make_view(instances=[instance], nodes=[node], pods=[pod]))

    assert judge.findings == findings


@pytest.mark.parametrize(
    ("registered", "seconds"),
    [
        ("True", auditor.MOST_INCOMPLETE),
        ("Unknown", auditor.MOST_INCOMPLETE + auditor.REGISTRATION_TIMEOUT),
    ],
    ids=["its node has joined", "its node has not joined"],
)
def test_the_auditor_finds_nodes_for_a_part_of_a_gang(registered: str, seconds: float) -> None:
    pod = make_pod("1500m", "1024Mi")
    members = [
        {**pod, "metadata": {"name": f"g-{n}", "labels": {"app": "gang0"}}} for n in range(2)
    ]
    claim = {
        "metadata": {"name": "a", "annotations": {"joiner.dev/gang": "default/gang0"}},
        "spec": {"resources": {"requests": {"cpu": "1500m"}}},
        "status": {"conditions": [{"type": "Registered", "status": registered}]},
    }
    judge = Auditor([InstanceType(2000, 4096, 1.0)])
    view = make_view(gangs=["gang0"], pods=members, claims=[claim])

    judge.check(view)
    judge.check(replace(view, at=seconds))
    assert judge.findings == []
    judge.check(replace(view, at=seconds + 1))

    assert judge.findings == ["gang0 has nodes for 1500 of 3000 millicores, and none runs"]


def test_a_node_of_a_gang_that_runs_other_pods_is_not_counted_as_waste() -> None:
    pod = make_pod("1500m", "1024Mi")
    members = [
        {**pod, "metadata": {"name": f"g-{n}", "labels": {"app": "gang0"}}} for n in range(2)
    ]
    other = {
        **pod,
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {**pod["spec"], "nodeName": "node-a"},
    }
    claim = {
        "metadata": {"name": "a", "annotations": {"joiner.dev/gang": "default/gang0"}},
        "spec": {"resources": {"requests": {"cpu": "1500m"}}},
        "status": {
            "providerID": "aws:///us-west-2a/i-0",
            "conditions": [{"type": "Registered", "status": "True"}],
        },
    }
    node = {"metadata": {"name": "node-a"}, "spec": {"providerID": "aws:///us-west-2a/i-0"}}
    judge = Auditor([InstanceType(2000, 4096, 1.0)])
    view = make_view(gangs=["gang0"], pods=[*members, other], claims=[claim], nodes=[node])

    judge.check(view)
    judge.check(replace(view, at=auditor.MOST_INCOMPLETE + 1))

    assert not [found for found in judge.findings if found.startswith("gang0")]


@pytest.mark.parametrize(
    ("marks", "findings"),
    [
        ([], []),
        (
            [{"type": "DisruptionReason", "status": "True", "reason": "Drifted"}],
            ["0 s: instances for 3.00 $/h are there, and at most 2.00 are of use"],
        ),
    ],
    ids=["a spot interruption", "the controller's decision"],
)
def test_a_draining_node_is_waste_only_if_the_controller_decided_to_disrupt_it(
    marks: list[auditor.Body], findings: list[str]
) -> None:
    numbers = range(3)
    claims = [
        {
            "metadata": {"name": f"c{n}", "deletionTimestamp": "2026-11-22T12:00:00Z"},
            "status": {"providerID": f"aws:///z/i-{n}", "conditions": marks},
        }
        for n in numbers
    ]
    instances = [replace(RUNNING, id=f"i-{n}", provider_id=f"aws:///z/i-{n}") for n in numbers]
    pods = [make_pod("1000m", "1024Mi")]
    judge = Auditor([InstanceType(2000, 4096, 1.0)])

    judge.check(make_view(claims=claims, instances=instances, pods=pods))

    assert [found for found in judge.findings if "of use" in found] == findings


@pytest.mark.long
@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_campaign_leaves_no_process(ended_by: signal.Signals) -> None:
    command = [sys.executable, "-m", "bench.faults", "--jobs", "1", "--pods", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as campaign:
        assert campaign.stdout is not None
        assert campaign.stdout.readline().startswith("[1/500]")
        campaign.send_signal(ended_by)
        # The campaign's processes hold the pipe open too: it ends with the last of them.
        campaign.communicate(timeout=60)
    assert campaign.returncode == -ended_by


def test_every_seed_has_a_fault_and_every_fault_occurs() -> None:
    faults = [fault_and_number(seed, "")[0] for seed in range(1, len(FAULTS) + 1)]
    assert sorted(faults) == sorted(FAULTS)


@pytest.mark.parametrize(
    ("view", "finding"),
    [
        pytest.param(make_view(instances=[RUNNING]), "has 0 NodeClaims", id="leaked"),
        pytest.param(make_view(claims=[CLAIM]), "has no instance", id="lost"),
        pytest.param(make_view(nodes=[NODE]), "has no NodeClaim", id="stray node"),
        pytest.param(make_view(replicas={"fixed": 2}), "has 0 of 2 NodeClaims", id="static pool"),
        pytest.param(
            make_view(pods=[{"metadata": {"name": "p", "labels": {"app": "w"}}, "spec": {}}]),
            "has no node",
            id="pod without a node",
        ),
    ],
)
def test_the_auditor_finds_inconsistencies(view: View, finding: str) -> None:
    assert any(finding in each for each in auditor.inconsistencies(view))


def test_the_scheduler_checks_full_nodes_once_for_equal_pods() -> None:
    comparisons: list[str] = []

    class Left(Counter[str]):
        def __getitem__(self, resource: str) -> int:
            comparisons.append(resource)
            return super().__getitem__(resource)

    remaining = {f"node-{n:03}": Left(cpu=1000) for n in range(100)}
    chooser = NodeChooser(remaining)
    chosen = []
    for _ in range(100):
        name = chooser.find(Counter(cpu=900), wanted="")
        assert name is not None
        remaining[name].subtract({"cpu": 900})
        chosen.append(name)

    assert chosen == sorted(remaining)
    assert chooser.find(Counter(cpu=900), wanted="") is None
    assert chooser.find(Counter(cpu=100), wanted="node-050") == "node-050"
    assert chooser.find(Counter(cpu=50), wanted="gone") == "node-000"
    assert len(comparisons) < 3 * len(remaining), "pods by nodes"


def test_the_auditor_finds_nothing_in_a_consistent_cluster() -> None:
    view = make_view(claims=[CLAIM], nodes=[NODE], instances=[RUNNING])
    assert auditor.inconsistencies(view) == []


def test_the_auditor_sees_an_instance_that_terminates_under_running_pods() -> None:
    watching = Auditor([InstanceType(1000, 1024, 1.0)])
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": []}}
    running = replace(RUNNING, node="n")
    watching.check(make_view(pods=[pod], instances=[running]))
    assert watching.findings == []
    watching.check(make_view(pods=[pod], instances=[replace(running, state="shutting-down")]))
    assert any("while it ran p" in finding for finding in watching.findings)


FOREIGN_NODE = {
    "metadata": {
        "name": "n",
        "uid": "1",
        "resourceVersion": "1",
        "labels": {"foreign": "untouched"},
    },
    "spec": {},
}
OTHERS = replace(RUNNING, id="i-2", foreign=True, tags={"owner": "another"})


@pytest.mark.parametrize(
    ("after", "finding"),
    [
        pytest.param(make_view(nodes=[], instances=[OTHERS]), "Node n was deleted", id="deleted"),
        pytest.param(
            make_view(
                nodes=[
                    {
                        **FOREIGN_NODE,
                        "metadata": {**FOREIGN_NODE["metadata"], "resourceVersion": "2"},
                    }
                ],
                instances=[OTHERS],
            ),
            "Node n was touched",
            id="written",
        ),
        pytest.param(
            make_view(nodes=[FOREIGN_NODE], instances=[replace(OTHERS, state="shutting-down")]),
            "instance i-2 was touched",
            id="terminated",
        ),
        pytest.param(
            make_view(nodes=[FOREIGN_NODE], instances=[replace(OTHERS, tags={"owner": "us"})]),
            "instance i-2 was touched",
            id="tagged",
        ),
    ],
)
def test_the_auditor_sees_changes_of_foreign_objects(after: View, finding: str) -> None:
    watching = Auditor([InstanceType(1000, 1024, 1.0)])
    before = make_view(nodes=[FOREIGN_NODE], instances=[OTHERS])
    watching.check(before)
    watching.check(before)
    assert watching.findings == []
    watching.check(after)
    assert watching.findings == [f"foreign {finding}"]


def test_the_auditor_sees_a_foreign_object_that_was_deleted_between_two_audits() -> None:
    watching = Auditor([InstanceType(1000, 1024, 1.0)])
    watching.check(make_view(foreign=["NodeClaim c"]))
    assert watching.findings == ["foreign NodeClaim c was deleted"]


def test_an_address_is_free_after_its_last_instance_terminated() -> None:
    async def freed() -> list[list[str]]:
        region = Region(EPOCH, random.Random(0))
        first = region.launch("m5.large", "us-west-2a", {})
        steps = [region.free_hostnames()]
        first.ended_at = region.now() - SHUTTING_DOWN
        steps.append(region.free_hostnames())
        region.launch("m5.large", "us-west-2a", {}, hostname=first.hostname)
        steps.append(region.free_hostnames())
        return [[name.partition(".")[0] for name in names] for names in steps]

    assert asyncio.run(freed()) == [[], ["i-00000000000000001"], []]


def test_the_auditor_sees_an_eviction_that_a_budget_forbids() -> None:
    watching = Auditor([])
    watching.check_eviction("web", serving=2, needed=2)
    assert watching.findings == []
    watching.check_eviction("web", serving=1, needed=2)
    assert any("its budget needs 2" in finding for finding in watching.findings)


def test_the_auditor_sees_a_second_instance_of_a_claim() -> None:
    watching = Auditor([InstanceType(1000, 1024, 1.0)])
    watching.check(make_view(instances=[RUNNING]))
    second = Instance("i-2", "aws:///z/i-2", "running", "a", price=0.0)
    watching.check(make_view(instances=[RUNNING, second]))
    assert any("second instance" in finding for finding in watching.findings)


def test_the_bound_on_demand_considers_both_resources_together() -> None:
    lean, rich = InstanceType(1000, 1024, 1.0), InstanceType(1000, 3072, 2.0)
    pods = [make_pod("1000m", "1024Mi"), make_pod("1000m", "3072Mi")]
    assert auditor.least_cost(pods, [lean, rich]) == pytest.approx(3.0)


def test_the_bound_on_demand_excludes_capacity_that_no_pod_can_use() -> None:
    pods = [make_pod("1000m", "1024Mi"), make_pod("500m", "1024Mi")]
    assert auditor.least_cost(pods, [InstanceType(1880, 8192, 1.0)]) == pytest.approx(1.0)
    assert auditor.least_cost([], [InstanceType(1880, 8192, 1.0)]) == 0


def test_the_bound_on_demand_counts_what_large_pods_leave_free() -> None:
    pods = [make_pod("600m", "1024Mi")] * 3 + [make_pod("100m", "1024Mi")]
    assert auditor.least_cost(pods, [InstanceType(1000, 8192, 1.0)]) == pytest.approx(3.0)
