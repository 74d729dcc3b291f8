"""An unschedulable pod's first cause is that of the NodePool closest to fitting."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from controller.apis import labels as names
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.scheduling.results import CauseKind, PoolCause
from controller.scheduling.scheduler import schedule
from controller.state.snapshot import Snapshot
from tests.builders import (
    by_hostname,
    make_daemonset,
    make_nodepool,
    make_offering,
    make_pod,
    make_pods,
    make_snapshot,
    make_type,
    make_types,
    near,
    needs,
    spread,
    taint,
    tolerate,
)
from tests.expectations import schedule_on

GPU = "nvidia.com/gpu"
GPU_TYPES = (make_type("g-1", capacity={GPU: "1"}), make_type("g-4", capacity={GPU: "4"}))
FLOCK = [make_nodepool(f"team-{n}", labels={"team": str(n)}) for n in range(7)]


def world(
    *pools: NodePool, types: dict[str, tuple[InstanceType, ...]] | None = None, **parts: Any
) -> Snapshot:
    """Seven unrelated NodePools, and then those of the test."""
    all_pools = [*FLOCK, *pools]
    by_pool = {pool.metadata.name: make_types() for pool in all_pools} | (types or {})
    return make_snapshot(*all_pools, types=by_pool, **parts)


def causes_of(pod: Pod, snapshot: Snapshot) -> tuple[str, ...]:
    results = schedule([pod], snapshot=snapshot)
    return results.unschedulable[pod.key]


@pytest.mark.parametrize(
    ("pod", "pool", "words"),
    [
        pytest.param(
            make_pod(requests={GPU: "8"}), {}, f"too small for {GPU} 8", id="too few of it"
        ),
        pytest.param(
            make_pod(requests={GPU: "1"}),
            {"taints": [taint(GPU)]},
            f"taint {GPU}",
            id="a toleration forgotten",
        ),
        pytest.param(
            make_pod(requests={GPU: "1", "cpu": "900"}, tolerations=[tolerate()]),
            {"taints": [taint(GPU)]},
            "too small for cpu",
            id="too small in another way",
        ),
        pytest.param(
            make_pod(requests={GPU: "1"}, node_selector={names.ZONE: "zone-z"}),
            {},
            "zone-z",
            id="not there",
        ),
        pytest.param(
            make_pod(requests={GPU: "1"}, node_selector={names.ZONE: ""}),
            {},
            f'{names.ZONE} In [""]',
            id="an empty value",
        ),
        pytest.param(
            make_pod(cpu="900", memory="9000Gi", node_selector={names.NODEPOOL: "meant"}),
            {},
            "too small for",
            id="named, and too small in two ways",
        ),
        pytest.param(
            make_pod(node_selector={"team": "mine"}, cpu="900"),
            {"labels": {"team": "mine"}},
            "too small for cpu",
            id="a label that only it has",
        ),
    ],
)
def test_the_pool_closest_to_fitting_is_reported_first(
    pod: Pod, pool: dict[str, Any], words: str
) -> None:
    snapshot = world(make_nodepool("meant", **pool), types={"meant": GPU_TYPES})

    first, *others = causes_of(pod, snapshot)

    assert first.startswith("NodePool meant: ")
    assert words in first
    assert len(others) == len(FLOCK)


IMPOSSIBLE = {names.INSTANCE_TYPE: "m5.huge"}


def test_a_requirement_that_no_type_meets_is_named_before_others_that_exclude_more() -> None:
    types = tuple(
        make_type(
            f"m-{n}",
            cpu=str(n),
            requirements=[needs(key, "In", str(n > least)) for least, key in enumerate("abc", 1)],
        )
        for n in range(1, 6)
    )
    pod = make_pod(
        cpu="5", node_selector={"a": "True", "b": "True", "c": "True", "z": "no", **IMPOSSIBLE}
    )

    (cause,) = causes_of(pod, make_snapshot(make_nodepool(), types=types))

    assert cause == (
        "NodePool default: 5 instance types: "
        f"5 excluded by the pod's requirement {names.INSTANCE_TYPE} In [m5.huge] "
        "(possible: m-1, m-2, m-3, m-4, m-5), "
        "5 excluded by the pod's requirement z In [no]"
    )


def test_a_requirement_that_no_type_meets_is_named_beside_an_untolerated_taint() -> None:
    pool = make_nodepool(taints=[taint("dedicated")])

    (cause,) = causes_of(make_pod(node_selector=IMPOSSIBLE), make_snapshot(pool))

    assert cause.startswith("NodePool default: the pod does not tolerate taint dedicated")
    assert f"requirement {names.INSTANCE_TYPE} In [m5.huge]" in cause


def test_requirements_that_contradict_each_other_are_named() -> None:
    pod = make_pod(
        node_selector={names.INSTANCE_TYPE: "m-2"},
        node_affinity=[[needs(names.INSTANCE_TYPE, "In", "m-4")]],
    )

    (cause,) = causes_of(pod, make_snapshot(make_nodepool()))

    assert cause == (
        f"NodePool default: the pod's requirements {names.INSTANCE_TYPE} In [m-2] and "
        f"{names.INSTANCE_TYPE} In [m-4] contradict each other"
    )


def test_a_requirement_is_named_although_no_type_has_capacity() -> None:
    sold_out = make_offering("zone-a", names.ON_DEMAND, 1.0, available=False)
    types = tuple(make_type(name, offerings=[sold_out]) for name in ("m-2", "m-4"))
    pod = make_pod(node_selector={names.INSTANCE_TYPE: "m-2"})

    (cause,) = causes_of(pod, make_snapshot(make_nodepool(), types=types))

    assert cause == (
        "NodePool default: 2 instance types: "
        f"1 excluded by the pod's requirement {names.INSTANCE_TYPE} In [m-2], "
        "1 without capacity now"
    )


def test_a_pool_without_capacity_is_reported_before_pools_that_cannot_hold_the_pod() -> None:
    sold_out = make_offering("zone-a", names.ON_DEMAND, 1.0, available=False)
    meant = make_type("g-1", capacity={GPU: "1"}, offerings=[sold_out])
    small = make_type("g-0", cpu="1", capacity={GPU: "1"})
    pools = make_nodepool("small"), make_nodepool("meant")

    first, second, *_ = causes_of(
        make_pod(requests={GPU: "1", "cpu": "2"}),
        world(*pools, types={"small": (small,), "meant": (meant,)}),
    )

    assert first == "NodePool meant: 1 instance type: 1 without capacity now"
    assert second.startswith("NodePool small: 1 instance type: 1 too small for cpu 2")


def test_a_cause_names_its_pool_and_its_kind_also_in_another_process() -> None:
    sold_out = make_offering("zone-a", names.ON_DEMAND, 1.0, available=False)
    types = {
        "gone": (make_type("g-0", capacity={GPU: "1"}, offerings=[sold_out]),),
        "full": GPU_TYPES,
    }
    pools = make_nodepool("gone"), make_nodepool("full", limits={"cpu": "1"})

    found = causes_of(make_pod(requests={GPU: "1"}), world(*pools, types=types))

    causes = [one for one in pickle.loads(pickle.dumps(found)) if isinstance(one, PoolCause)]
    kinds = {one.node_pool: one.kind for one in causes}
    assert kinds["full"] is CauseKind.LIMIT
    assert kinds["gone"] is CauseKind.CAPACITY
    assert kinds["team-0"] is CauseKind.EXCLUDED


def test_a_pool_at_its_limit_is_reported_before_pools_that_cannot_hold_the_pod() -> None:
    limited = make_nodepool("meant", limits={"cpu": "1"})

    first, *_ = causes_of(make_pod(requests={GPU: "1"}), world(limited, types={"meant": GPU_TYPES}))

    assert first == "NodePool meant: limit of cpu reached (0 of 1 in use)"


@pytest.mark.parametrize(
    ("selector", "correction"),
    [
        ({"karpenter.sh/capacity-typ": "spot"}, '(typo of "karpenter.sh/capacity-type"?)'),
        ({names.ZONE: "zone-z"}, "(possible: zone-a, zone-b)"),
        ({names.NODEPOOL: "defualt"}, "(possible: default)"),
        ({names.INSTANCE_TYPE: "m5.lagre"}, "(did you mean m5.large?)"),
    ],
)
def test_a_mistyped_requirement_gets_a_suggestion(
    selector: dict[str, str], correction: str
) -> None:
    offerings = [make_offering(zone, names.SPOT, 1.0) for zone in ("zone-a", "zone-b")]
    sizes = ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge")
    types = [make_type(f"m5.{size}", offerings=offerings) for size in sizes]

    snapshot = make_snapshot(make_nodepool(), types=types)

    (cause,) = causes_of(make_pod(node_selector=selector), snapshot)

    assert cause.endswith(correction)


def test_a_requirement_that_other_nodepools_meet_is_no_typo() -> None:
    pool = make_nodepool("gpu", labels={"team": "ml"}, taints=[taint("gpu")])

    causes = causes_of(make_pod(node_selector={"team": "ml"}), make_snapshot(make_nodepool(), pool))

    assert causes[1].endswith("excluded by the pod's requirement team In [ml]")


def test_a_resource_that_no_type_has_is_named() -> None:
    (cause,) = causes_of(
        make_pod(requests={GPU: "1"}),
        make_snapshot(make_nodepool(), types=[make_type("m", capacity={GPU: "0"})]),
    )

    assert cause == f"NodePool default: 1 instance type: 1 without resource {GPU}"


def only_reserved(count: int) -> Snapshot:
    """Return a cluster whose only offering is the capacity reservation cr-1."""
    offering = make_offering(
        "zone-a", names.RESERVED, 1e-7, available=count > 0, reservation="cr-1", count=count
    )
    return make_snapshot(make_nodepool(), types=[make_type("m", cpu="4", offerings=[offering])])


def test_a_full_reservation_is_named() -> None:
    (cause,) = causes_of(make_pod(), only_reserved(0))

    assert cause == (
        "NodePool default: 1 instance type: "
        "1 without capacity now: capacity reservation cr-1 is full"
    )


def test_a_reservation_that_other_pods_of_the_batch_fill_is_named() -> None:
    app = {"app": "one-each"}
    pods = make_pods(3, labels=app, anti_affinity=[by_hostname(app)])

    results = schedule_on(only_reserved(2), pods)

    ((first, *_),) = results.unschedulable.values()
    assert first == "capacity reservation cr-1 is full"


def test_an_anti_affinity_names_the_zones_that_are_taken() -> None:
    app = {"app": "one-each"}

    results = schedule_on(
        make_nodepool(), make_pods(4, labels=app, anti_affinity=[near(app, names.ZONE)])
    )

    ((cause,),) = results.unschedulable.values()
    assert re.fullmatch(
        f"no domain satisfies the pod anti-affinity over {names.ZONE}: "
        r"(\S+, \S+, \S+) have matching pods",
        cause,
    )


def test_a_spread_names_its_mindomains() -> None:
    app = {"app": "web"}
    spreads = [spread(app, max_skew=2, minDomains=5)]
    pods = make_pods(7, labels=app, spreads=spreads)

    results = schedule_on(make_nodepool(), pods)

    ((cause,),) = results.unschedulable.values()
    assert cause == (
        f"no domain satisfies the topology spread over {names.ZONE} (maxSkew 2, minDomains 5: "
        "while there are fewer domains, each holds at most 2 pods)"
    )


def test_a_cause_says_if_daemonsets_take_the_capacity() -> None:
    snapshot = make_snapshot(
        make_nodepool(),
        types=make_types(2, 4),
        daemon_sets=(make_daemonset("agent", cpu="3"), make_daemonset("proxy", cpu="500m")),
    )

    (cause,) = causes_of(make_pod(cpu="1"), snapshot)

    assert cause == (
        "NodePool default: 2 instance types: 2 too small for cpu 1 (largest: 500m) beside the pods "
        "of DaemonSets (most of it: kube-system/agent)"
    )
