"""The orders in which kube-scheduler may bind pods that were planned together."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from bench.parity.worlds import pod
from tests.oracle.binding import Lookup, bound_in_some_order
from tests.oracle.nodeinfos import HOSTNAME, ZONE, NodeInfo, existing_nodes

WEB, DB = {"app": "web"}, {"app": "db"}


def node_info(name: str, zone: str) -> NodeInfo:
    return NodeInfo(name, {HOSTNAME: name, ZONE: zone}, [], {})


def test_a_node_in_flight_has_the_labels_that_every_node_gets_while_it_starts() -> None:
    status = {"providerID": "aws:///zone-a/i-1"}
    claim = {"metadata": {"name": "a"}, "spec": {}, "status": status}

    (node,) = existing_nodes({"nodeClaims": [claim], "pods": []}).values()

    assert node.labels["karpenter.sh/initialized"] == "true"


def spread(counting: Mapping[str, str], key: str) -> dict[str, Any]:
    constraint = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": dict(counting)},
    }
    return {"topologySpreadConstraints": [constraint]}


def small(name: str, labels: Mapping[str, str], **spec: Any) -> Any:
    return pod(name, cpu=100, memory=100, labels=labels, **spec)


def stuck(*placed: tuple[Any, NodeInfo]) -> list[str]:
    node_infos = [node_info("full", "a"), node_info("empty", "b")]
    assigned = [(pod, next(m for m in node_infos if m.name == where.name)) for pod, where in placed]
    _, left = bound_in_some_order(node_infos, assigned, Lookup({}), random.Random(0))
    return [pod["metadata"]["name"] for pod, _ in left]


FULL, EMPTY = node_info("full", "a"), node_info("empty", "b")


def test_pods_with_a_spread_bind_before_pods_that_only_count() -> None:
    webs = [small(f"web-{n}", WEB) for n in range(4)]
    minds = small("minds", DB, **spread(WEB, HOSTNAME))

    assert stuck(*((pod, FULL) for pod in (*webs, minds))) == []


def test_a_pod_with_a_spread_waits_until_its_zones_are_even() -> None:
    webs = [small(f"web-{n}", WEB, **spread(WEB, ZONE)) for n in range(6)]
    minds = small("minds", DB, **spread(WEB, HOSTNAME))

    assert stuck((minds, FULL), *((web, (FULL, EMPTY)[n % 2]) for n, web in enumerate(webs))) == []


def test_an_unsatisfiable_spread_fails_in_any_order() -> None:
    webs = [small(f"web-{n}", WEB, **spread(WEB, HOSTNAME)) for n in range(3)]

    assert len(stuck(*((web, FULL) for web in webs))) == 2


def test_mutually_blocking_spreads_fail_in_any_order() -> None:
    """The first database must come before a second web server, and the other way round."""
    webs = [small(f"web-{n}", WEB, **spread(DB, HOSTNAME)) for n in range(3)]
    dbs = [small(f"db-{n}", DB, **spread(WEB, HOSTNAME)) for n in range(3)]

    assert stuck(*((pod, FULL) for pod in (*webs, *dbs))) != []
