"""The `cost` command as users type it."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest

from controller.__main__ import main
from controller.apis import labels
from tests.disruption.test_consolidation import pods, world


def test_cost_sums_the_nodes_of_each_pool_and_prints_the_lower_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.json"
    path.write_text(
        json.dumps(world(("a", "small", pods("web", 1)), ("b", "small", pods("db", 1))))
    )

    assert main(["cost", "--world", str(path), "-o", "json"], {}) == 0

    answer = json.loads(capsys.readouterr().out)
    (pool,) = answer["nodePools"]
    assert (pool["name"], pool["nodes"], pool["withoutPrice"]) == ("general", 2, 0)
    assert answer["cost"] == pool["cost"] == pytest.approx(0.2)
    assert 0 < answer["lowerBound"] <= 0.1
    used, most = pool["cpu"]
    assert 0 < used < most
    assert main(["cost", "--world", str(path)], {}) == 0
    assert "0.2000 $/h" in capsys.readouterr().out


def test_the_price_of_a_node_is_split_into_its_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = deepcopy(world(("a", "small", pods("web", 1)), ("b", "small", pods("db", 1))))
    path = tmp_path / "world.json"
    path.write_text(json.dumps(recorded))
    assert main(["cost", "--world", str(path), "-o", "json"], {}) == 0
    of_instances = json.loads(capsys.readouterr().out)["lowerBound"]
    for row in recorded["instanceTypes"]:
        for offering in row["offerings"]:
            offering["price"] += 0.03
            offering["surcharges"] = {"volumes": 0.025, "address": 0.005}
    recorded["settings"] = {"NODE_PRICE_PER_HOUR": 0.02}
    path.write_text(json.dumps(recorded))

    assert main(["cost", "--world", str(path), "-o", "json"], {}) == 0

    answer = json.loads(capsys.readouterr().out)
    (pool,) = answer["nodePools"]
    assert answer["cost"] == pool["cost"] == pytest.approx(0.3)
    assert pool["parts"] == {"instance": 0.2, "volumes": 0.05, "address": 0.01, "fee": 0.04}
    assert answer["lowerBound"] > of_instances
    assert main(["cost", "--world", str(path), "-o", "wide"], {}) == 0
    assert "volumes" in capsys.readouterr().out
    assert main(["explain", "node", "a", "--world", str(path)], {}) == 0
    output = capsys.readouterr().out
    assert "0.1500 $/h (instance 0.1000, volumes 0.0250, address 0.0050, fee 0.0200)" in output


def test_nodes_without_a_known_price_are_not_counted_and_none_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = world(("a", "small", pods("web", 1)), ("b", "small", pods("db", 1)))
    recorded["nodes"][0]["metadata"]["labels"][labels.INSTANCE_TYPE] = "withdrawn"
    path = tmp_path / "world.json"
    path.write_text(json.dumps(recorded))
    assert main(["cost", "--world", str(path)], {}) == 0
    assert "1 node without a known price not counted." in capsys.readouterr().out

    recorded["instanceTypes"] = []
    path.write_text(json.dumps(recorded))
    assert main(["cost", "--world", str(path)], {}) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no node has a known price" in printed.err


def test_an_unreachable_cluster_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost"], {}) == 2
    assert "KUBECONFIG" in capsys.readouterr().err


def test_nodes_outside_nodepools_are_fixed_and_no_gap_is_claimed_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.json"
    grouped = world(("a", "small", pods("web", 1)), ("b", "small", pods("db", 1)))
    del grouped["nodes"][0]["metadata"]["labels"][labels.NODEPOOL]
    grouped["nodeClaims"] = grouped["nodeClaims"][1:]
    path.write_text(json.dumps(grouped))

    assert main(["cost", str(path), "-o", "json"], {}) == 0
    assert json.loads(capsys.readouterr().out)["fixed"] == {"nodes": 1, "cost": 0.1}
    assert main(["cost", str(path)], {}) == 0
    printed = capsys.readouterr().out
    assert "of 0.1000 $/h" in printed
    assert "1 node outside NodePools fixed: `joiner advise`" in printed

    del grouped["nodes"][1]["metadata"]["labels"][labels.NODEPOOL]
    path.write_text(json.dumps({**grouped, "nodeClaims": []}))
    assert main(["cost", str(path)], {}) == 0
    printed = capsys.readouterr().out
    assert "(no NodePool)" in printed
    assert "gap" not in printed

    grouped["nodes"][0]["metadata"]["labels"]["eks.amazonaws.com/nodegroup"] = "system"
    path.write_text(json.dumps({**grouped, "nodeClaims": []}))
    assert main(["cost", str(path)], {}) == 0
    assert "node group system" in capsys.readouterr().out
    assert "no lower bound: 2 nodes outside NodePools; `joiner advise`" in printed
