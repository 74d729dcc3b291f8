"""How the nodes of a cluster are terminated when the stack is destroyed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from infra.lifecycle.leftovers import Remains
from infra.lifecycle.teardown import (
    STACK_ANNOTATION,
    Draining,
    DrainInterruptedError,
    ForeignNodePoolsError,
    ResourcesRemainError,
    let_go,
    prove_nothing_is_left,
)

POOLS, CLAIMS = "/apis/karpenter.sh/v1/nodepools", "/apis/karpenter.sh/v1/nodeclaims"
PODS, BUDGETS = "/api/v1/pods", "/apis/policy/v1/poddisruptionbudgets"
CLASSES, NODES = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses", "/api/v1/nodes"
DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/karpenter"

LABELS = {"karpenter.sh/nodepool": "default", "karpenter.k8s.aws/ec2nodeclass": "default"}

Wire = dict[str, Any]


def named(name: str, **metadata: Any) -> Wire:
    return {"metadata": {"name": name, **metadata}}


OURS = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
AUTO_MODE = {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"}


def pool(name: str, *, owned: bool = True, reference: Wire = OURS) -> Wire:
    annotations = {STACK_ANNOTATION: "organization/joiner/dev"} if owned else {}
    return {
        **named(name, annotations=annotations),
        "spec": {"template": {"spec": {"nodeClassRef": reference}}},
    }


def claim(name: str, *, reference: Wire = OURS, instance: str = "") -> Wire:
    return {
        **named(name, finalizers=["karpenter.sh/termination"]),
        "spec": {"nodeClassRef": reference},
        "status": {"providerID": f"aws:///us-west-2a/{instance}"} if instance else {},
    }


@dataclass
class FakeClock:
    now: float = 0.0
    passed: Callable[[float], None] = lambda now: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds
        self.passed(self.now)


@dataclass
class FakeCloud:
    left: Remains = field(default_factory=dict)
    lasting: bool = False
    terminated: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)

    def instances(self) -> list[str]:
        return self.left.get("instances", [])

    def terminate(self, instances: list[str]) -> list[str]:
        self.terminated += [i for i in instances if i not in self.others]
        if not self.lasting:
            self.left.pop("instances", None)
        return [i for i in instances if i in self.others]

    def remains(self) -> Remains:
        return dict(self.left)

    def remove(self, remains: Remains) -> None:
        if not self.lasting:
            self.left.clear()


@dataclass
class FakeCluster:
    """Objects by the path of their collection; those with a finalizer wait for it."""

    objects: dict[str, list[Wire]]
    ready_replicas: int | None = 2
    """None where there is no Deployment."""

    closed: list[str] = field(default_factory=list)
    """The offerings that were reported as unavailable."""

    def list(self, path: str, **query: str) -> list[Wire]:
        objects = list(self.objects.get(path, []))
        selector = query.get("labelSelector")
        if "fieldSelector" in query:
            node = query["fieldSelector"].removeprefix("spec.nodeName=")
            objects = [o for o in objects if o["spec"]["nodeName"] == node]
        return [o for o in objects if not selector or selector in o["metadata"].get("labels", {})]

    def get(self, path: str) -> Wire | None:
        assert path == DEPLOYMENT
        if self.ready_replicas is None:
            return None
        return {"status": {"readyReplicas": self.ready_replicas}}

    def delete(self, path: str) -> None:
        collection, _, name = path.rpartition("/")
        for wire in self.objects.get(collection, []):
            if wire["metadata"]["name"] == name:
                wire["metadata"]["deletionTimestamp"] = "now"
        self._collect()

    def merge(self, path: str, change: Wire) -> None:
        collection, _, name = path.removesuffix("/status").rpartition("/")
        for wire in self.objects.get(collection, []):
            if wire["metadata"]["name"] == name:
                if path.endswith("/status"):
                    wire["status"] = change["status"]
                    self.closed += [name]
                else:
                    assert change["metadata"].keys() == {"finalizers"}
                    wire["metadata"] |= change["metadata"]
                    if change["metadata"]["finalizers"] is None:
                        del wire["metadata"]["finalizers"]
        self._collect()

    def finalize(self, collection: str) -> None:
        for wire in self.objects[collection]:
            if "deletionTimestamp" in wire["metadata"]:
                wire["metadata"].pop("finalizers", None)
        self._collect()

    def _collect(self) -> None:
        for collection, wires in self.objects.items():
            self.objects[collection] = [
                w
                for w in wires
                if "deletionTimestamp" not in w["metadata"] or w["metadata"].get("finalizers")
            ]


@dataclass
class TeardownScenario:
    """A cluster of two nodes; `controller` is what happens while time passes."""

    cluster: FakeCluster
    cloud: FakeCloud = field(default_factory=lambda: FakeCloud({"instances": ["i-1", "i-2"]}))
    said: list[str] = field(default_factory=list)
    clock: FakeClock = field(default_factory=FakeClock)

    def drain(
        self,
        *,
        delete_foreign: bool = False,
        timeout_seconds: float = 600,
        stack: str = "",
        delete_others: bool = False,
        deletes: bool = True,
    ) -> None:
        self.draining(
            delete_foreign=delete_foreign,
            timeout_seconds=timeout_seconds,
            stack=stack,
            delete_others=delete_others,
            deletes=deletes,
        ).run()

    def draining(
        self, *, timeout_seconds: float = 600, delete_foreign: bool = False, **more: Any
    ) -> Draining:
        return Draining(
            cluster=self.cluster,
            cloud=self.cloud,
            deployment=DEPLOYMENT,
            timeout_seconds=timeout_seconds,
            delete_foreign=delete_foreign,
            clock=self.clock,
            say=self.said.append,
            **more,
        )

    @property
    def left(self) -> dict[str, list[Wire]]:
        return {path: wires for path, wires in self.cluster.objects.items() if wires}


def make_scenario(*pools: Wire, with_controller: bool = True) -> TeardownScenario:
    nodes = [
        named(name, labels=LABELS, finalizers=["karpenter.sh/termination"])
        for name in ("n-1", "n-2")
    ]
    cluster = FakeCluster(
        {
            POOLS: list(pools),
            CLAIMS: [claim("c-1"), claim("c-2")],
            NODES: nodes,
            CLASSES: [named("default", finalizers=["karpenter.k8s.aws/termination"])],
        }
    )
    made = TeardownScenario(cluster)

    def controller(now: float) -> None:
        if now >= 30 and with_controller:
            for claim in made.cluster.list(CLAIMS):
                if "deletionTimestamp" in claim["metadata"]:
                    made.cluster.objects[NODES] = [
                        n for n in made.cluster.objects[NODES] if n["metadata"]["labels"] != LABELS
                    ]
                    made.cloud.left.clear()
            made.cluster.finalize(CLAIMS)
            made.cluster.finalize(CLASSES)

    made.clock.passed = controller
    return made


def test_the_controller_drains_every_node_before_it_is_deleted() -> None:
    scenario = make_scenario(pool("default"))

    scenario.drain()

    assert scenario.left == {}
    assert scenario.cloud.instances() == []
    assert scenario.said[0] == "deleting NodePool default (owner: stack organization/joiner/dev)"
    assert scenario.said[1] == "draining: 2 nodes, 2 NodeClaims and 2 instances remaining"
    assert scenario.said[-1] == "all nodes are drained and terminated"
    assert not any("found by tags" in line for line in scenario.said)


@pytest.mark.parametrize("with_controller", [True, False])
def test_a_drain_before_the_engine_deletes_the_pools_deletes_none_of_them(
    with_controller: bool,
) -> None:
    scenario = make_scenario(pool("default"), with_controller=with_controller)

    scenario.drain(deletes=False, timeout_seconds=60)

    assert scenario.left.keys() == {POOLS, CLASSES}
    (kept,), (node_class,) = scenario.left[POOLS], scenario.left[CLASSES]
    assert "deletionTimestamp" not in kept["metadata"] | node_class["metadata"]
    (condition,) = kept["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("joiner.dev/InService", "False")
    # Without a controller that works, the engine would wait for the finalizer.
    assert ("finalizers" in node_class["metadata"]) == with_controller


def test_a_pool_of_an_interrupted_destroy_is_put_back_into_service() -> None:
    scenario = make_scenario(pool("default"))
    scenario.drain(deletes=False)
    draining = scenario.draining()

    assert draining.closed_pools() == ["default"]
    draining.reopen()

    assert draining.closed_pools() == []
    assert scenario.left[POOLS][0]["status"]["conditions"] == []


def test_a_drain_whose_engine_has_ended_terminates_no_more_nodes() -> None:
    scenario = make_scenario(pool("default"), with_controller=False)
    draining = scenario.draining(deletes=False, engine=lambda: scenario.clock.now < 10)

    with pytest.raises(DrainInterruptedError, match="pulumi cancel"):
        draining.run()

    assert scenario.cloud.terminated == []


def test_progress_is_reported_even_without_changes() -> None:
    scenario = make_scenario(pool("default"))

    scenario.drain()

    assert len([line for line in scenario.said if line.startswith("draining: 2 nodes")]) >= 2


def test_what_prevents_evictions_is_named_while_nothing_changes() -> None:
    scenario = make_scenario(pool("default"))
    scenario.cluster.objects[BUDGETS] = [
        {"metadata": {"namespace": "shop", "name": name}, "status": status}
        for name, status in (
            ("db", {"expectedPods": 3, "disruptionsAllowed": 0}),
            ("web", {"expectedPods": 3, "disruptionsAllowed": 1}),
            ("unused", {"expectedPods": 0, "disruptionsAllowed": 0}),
        )
    ]

    scenario.cluster.objects[PODS] = [
        {
            "metadata": {"namespace": "shop", "name": name, "annotations": annotations},
            "spec": {"nodeName": node["metadata"]["name"]},
        }
        for node in scenario.cluster.objects[NODES][:1]
        for name, annotations in (
            ("web", {}),
            ("job", {"karpenter.sh/do-not-disrupt": "true"}),
        )
    ]

    scenario.drain()

    assert scenario.said[1] == "draining: 2 nodes, 2 NodeClaims and 2 instances remaining"
    assert scenario.said[2] == (
        "draining: 2 nodes, 2 NodeClaims and 2 instances remaining; "
        "PodDisruptionBudgets that allow no eviction now: shop/db; "
        "pods with karpenter.sh/do-not-disrupt: shop/job"
    )


def test_pools_that_no_stack_owns_are_named_and_nothing_is_changed() -> None:
    scenario = make_scenario(pool("default"), pool("by-hand", owned=False))

    with pytest.raises(ForeignNodePoolsError, match="by-hand"):
        scenario.drain()

    assert len(scenario.cluster.objects[POOLS]) == 2
    assert all("deletionTimestamp" not in c["metadata"] for c in scenario.cluster.objects[CLAIMS])


def test_pools_that_no_stack_owns_are_deleted_if_confirmed() -> None:
    scenario = make_scenario(pool("by-hand", owned=False))

    scenario.drain(delete_foreign=True)

    assert scenario.left == {}
    assert scenario.said[0] == "deleting NodePool by-hand (owner: no stack)"


def test_pools_of_other_stacks_are_deleted_only_if_confirmed() -> None:
    scenario = make_scenario(pool("default"))
    (theirs,) = scenario.cluster.objects[POOLS]
    owner = theirs["metadata"]["annotations"]["joiner.dev/stack"]

    with pytest.raises(
        ForeignNodePoolsError,
        match=rf"other stacks own these NodePools: default \({owner}\).*joiner:confirmDelete",
    ):
        scenario.drain(stack="organization/joiner/platform", delete_foreign=True)

    assert "deletionTimestamp" not in theirs["metadata"]
    assert all("deletionTimestamp" not in c["metadata"] for c in scenario.cluster.objects[CLAIMS])
    scenario.drain(stack="organization/joiner/platform", delete_others=True)
    assert scenario.left == {}


def test_claims_without_a_pool_are_deleted_too() -> None:
    scenario = make_scenario()

    scenario.drain()

    assert scenario.left == {}


@pytest.mark.parametrize("with_controller", [True, False])
def test_nodes_of_eks_auto_mode_are_not_deleted(with_controller: bool) -> None:
    scenario = make_scenario(pool("default"), with_controller=with_controller)
    theirs = {
        POOLS: pool("system", owned=False, reference=AUTO_MODE),
        CLAIMS: claim("system-x", reference=AUTO_MODE, instance="i-theirs"),
        NODES: named("i-theirs", labels={"karpenter.sh/nodepool": "system"}),
    }
    for path, wire in theirs.items():
        scenario.cluster.objects[path].append(wire)

    scenario.drain(delete_foreign=True, timeout_seconds=60)

    assert scenario.left == {path: [wire] for path, wire in theirs.items()}
    assert all("deletionTimestamp" not in wire["metadata"] for wire in theirs.values())
    assert "i-theirs" not in scenario.cloud.terminated


def test_an_instance_that_only_a_claim_names_terminates_with_it() -> None:
    scenario = make_scenario(pool("default"), with_controller=False)
    scenario.cluster.objects[CLAIMS].append(claim("adopted", instance="i-adopted"))

    scenario.drain(timeout_seconds=60)

    assert scenario.cloud.terminated == ["i-1", "i-2", "i-adopted"]
    assert scenario.left == {}


def test_a_foreign_instance_that_a_claim_names_is_reported() -> None:
    scenario = make_scenario(pool("default"), with_controller=False)
    scenario.cloud.others.add("i-theirs")
    scenario.cluster.objects[CLAIMS].append(claim("restored", instance="i-theirs"))

    scenario.drain(timeout_seconds=60)

    assert scenario.cloud.terminated == ["i-1", "i-2"]
    assert any(
        line.startswith("not terminating instances without the tags") and "i-theirs" in line
        for line in scenario.said
    )
    assert scenario.left == {}


def test_the_drain_stops_waiting_for_a_controller_that_does_not_finish() -> None:
    scenario = make_scenario(pool("default"), with_controller=False)

    scenario.drain(timeout_seconds=120)

    assert scenario.left == {}
    assert scenario.cloud.instances() == []
    assert (
        "nodes were not drained within 120 s (joiner:drainTimeout): terminating 2 instances found "
        "by tags and NodeClaims" in scenario.said
    )


def test_the_drain_does_not_wait_for_a_deleted_controller() -> None:
    scenario = make_scenario(pool("default"), with_controller=False)
    scenario.cluster.ready_replicas = None

    scenario.drain(timeout_seconds=3600)

    assert scenario.left == {}
    assert scenario.clock.now == 0
    assert (
        "the controller's Deployment does not exist: terminating 2 instances found by tags and "
        "NodeClaims" in scenario.said
    )


def test_a_forced_drain_keeps_the_finalizers_of_others_on_nodes() -> None:
    scenario = make_scenario(pool("default"), with_controller=False)
    scenario.cluster.ready_replicas = None
    scenario.cluster.objects[NODES][0]["metadata"]["finalizers"] += ["example.com/storage"]

    scenario.drain()

    (node,) = scenario.cluster.objects[NODES]
    assert node["metadata"]["finalizers"] == ["example.com/storage"]
    assert node["metadata"]["deletionTimestamp"]


def test_the_drain_stops_waiting_for_controllers_that_never_become_ready() -> None:
    scenario = make_scenario(pool("default"), with_controller=False)
    scenario.cluster.ready_replicas = 0

    scenario.drain(timeout_seconds=3600)

    assert scenario.left == {}
    assert scenario.clock.now < 120
    assert any(line.startswith("the controller has had no ready pod for") for line in scenario.said)


def test_the_drain_waits_for_a_controller_that_is_being_rolled() -> None:
    scenario = make_scenario(pool("default"))
    controller = scenario.clock.passed

    def rolling(now: float) -> None:
        scenario.cluster.ready_replicas = 0 if now < 20 else 1
        controller(now)

    scenario.clock.passed = rolling
    scenario.drain()

    assert scenario.said[-1] == "all nodes are drained and terminated"


def test_an_empty_cluster_is_drained_at_once() -> None:
    scenario = TeardownScenario(FakeCluster({}), FakeCloud())

    scenario.drain()

    assert scenario.said == ["all nodes are drained and terminated"]
    assert scenario.clock.now == 0


def test_the_absence_of_leftovers_is_verified_by_a_search() -> None:
    said: list[str] = []

    prove_nothing_is_left(FakeCloud(), clock=FakeClock(), say=said.append)

    assert said == [
        "nothing is left: no instance, volume, network interface, launch template or instance "
        "profile"
    ]


def test_leftovers_are_named_and_removed() -> None:
    said: list[str] = []
    cloud = FakeCloud({"volumes": ["vol-1"], "instances": ["i-9"]})

    prove_nothing_is_left(cloud, clock=FakeClock(), say=said.append)

    assert "1 volumes: vol-1" in said[0]
    assert "1 instances: i-9" in said[0]
    assert said[-1].startswith("nothing is left")


def test_leftovers_that_cannot_be_removed_fail_the_destroy_by_name() -> None:
    cloud = FakeCloud({"network interfaces": ["eni-1"]}, lasting=True)

    with pytest.raises(ResourcesRemainError, match="eni-1"):
        prove_nothing_is_left(cloud, clock=FakeClock(), say=lambda line: None)


FLUX = {
    "kustomize.toolkit.fluxcd.io/name": "pools",
    "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
}


def test_pools_that_gitops_would_restore_are_taken_out_of_service() -> None:
    flux = pool("flux", owned=False)
    flux["metadata"]["labels"] = FLUX
    flux["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    scenario = make_scenario(pool("default"), flux)
    flux_class = named("flux", labels=FLUX, finalizers=["karpenter.k8s.aws/termination"])
    scenario.cluster.objects[CLASSES] += [flux_class]

    with pytest.raises(ForeignNodePoolsError, match=r"flux \(Flux's Kustomization"):
        scenario.drain()
    assert scenario.cluster.closed == []

    scenario.drain(delete_foreign=True)

    assert scenario.left == {POOLS: [flux], CLASSES: [flux_class]}
    assert [c["type"] for c in flux["status"]["conditions"]] == ["Ready", "joiner.dev/InService"]
    assert flux["status"]["conditions"][1]["status"] == "False"
    assert any("draining NodePool flux without deleting it" in line for line in scenario.said)
    assert not any("deleting NodePool flux" in line for line in scenario.said)

    let_go(scenario.cluster)

    assert "finalizers" not in flux_class["metadata"]


def test_a_pool_that_is_restored_during_the_drain_is_taken_out_of_service() -> None:
    scenario = make_scenario(pool("default"))
    back = pool("late", owned=False)
    back["metadata"]["labels"] = FLUX
    controller = scenario.clock.passed

    def flux(now: float) -> None:
        if now == 10:
            scenario.cluster.objects[POOLS] += [back]
        controller(now)

    scenario.clock.passed = flux

    scenario.drain()

    assert scenario.cluster.closed == ["late"]
    assert scenario.left == {POOLS: [back]}


def test_a_long_drain_reports_again_that_a_pool_is_out_of_service() -> None:
    flux = pool("flux")
    flux["metadata"]["labels"] = FLUX
    scenario = make_scenario(flux, with_controller=False)

    scenario.drain(timeout_seconds=150)

    assert scenario.cluster.closed == ["flux"] * 3
