"""Dashboards and alerts read what the controller serves, in Prometheus' own evaluation."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from controller.console.costhistory import COST, LOWER_BOUND
from testbed.environment import CHECKOUT
from tests.monitoring.ours import MONITORING, RULES, alerts, dashboards, queries_of
from tests.monitoring.prometheus import evaluated
from tests.monitoring.report import listed, missing, report

pytestmark = pytest.mark.cluster  # builds a Go program, as the control plane

RUNBOOKS = CHECKOUT / "docs" / "how-to" / "runbooks.md"


def source() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render", MONITORING / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", dashboards(), ids=lambda path: path.stem)
def test_every_panel_shows_something_on_a_small_cluster(path: Path) -> None:
    queries = queries_of(path)
    results, _ = evaluated(queries)

    assert {
        query: result["error"] for query, result in zip(queries, results, strict=True)
    } == dict.fromkeys(queries, "")
    assert [missing(result) for result in results if missing(result)] == []
    assert [
        query for query, result in zip(queries, results, strict=True) if not result["series"]
    ] == []


def test_the_cost_history_of_the_page_reads_metrics_that_the_controller_serves() -> None:
    results, _ = evaluated([COST % "", LOWER_BOUND % ""])

    assert [result["error"] for result in results] == ["", ""]
    assert [result["series"] for result in results] == [1, 1]  # one series each


def test_the_dashboards_are_rendered_from_their_source() -> None:
    made = source()

    assert {path.stem: path.read_text() for path in dashboards()} == {
        uid: made.written(uid) for uid in made.DASHBOARDS
    }


def test_prometheus_accepts_the_rules_and_finds_their_metrics() -> None:
    queries = [alert["expr"] for alert in alerts()]
    results, faults = evaluated(queries, rules=RULES.read_text())

    assert faults == []
    for query, result in zip(queries, results, strict=True):
        assert result["error"] == "", query
        assert missing(result) == [], query


def test_each_alert_fires_on_its_fault() -> None:
    """The page has errors, no ready NodePool, a full NodePool and pods without a node."""
    results, _ = evaluated([alert["expr"] for alert in alerts()])

    fired = {
        alert["alert"] for alert, result in zip(alerts(), results, strict=True) if result["series"]
    }
    assert fired == {
        "JoinerClusterStateNotSynced",
        "JoinerPodsUnschedulable",
        "JoinerNodeClassNotReady",
        "JoinerNodePoolNotReady",
        "JoinerNodePoolNearLimit",
        "JoinerInsufficientCapacity",
        "JoinerCloudErrors",
        "JoinerReconcileErrors",
    }


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    headings = re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.MULTILINE)

    assert sorted(headings) == sorted(alert["alert"] for alert in alerts())
    for alert in alerts():
        anchor = alert["annotations"]["runbook"].partition("#")[2]
        assert anchor == alert["alert"].lower()


def test_the_docs_state_for_every_published_query_whether_it_works() -> None:
    assert len(list(listed())) > 100
    page = CHECKOUT / "docs" / "reference" / "dashboards.md"

    assert page.read_text() == report().rstrip() + "\n"
